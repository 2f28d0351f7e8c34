"""The first lab's loop: what recording costs, and how it stands beside nanoGPT.

    python bench/first_loop.py --nanogpt DIR --text tinyshakespeare.txt [--only recording speed loss] [--json FILE]

DIR is a checkout of karpathy/nanoGPT; it is copied and never changed. Both sides run as processes of their
own, in turn (one pair after the other), on the same text, settings and thread count:

recording   seconds between `hello` and `finish` with nothing recorded, over those with the curve recorded
            and ten checkpoints (at least 0.98)
speed       our tokens a second over nanoGPT's: medians over groups of 20 steps, warm-up, evaluation and
            checkpoints left out (at least 1)
loss        loss over the whole validation text, one evaluator for both, median of the seeds: ours is no
            higher than nanoGPT's + 0.01
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from array import array
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "labs" / "01-first-loop"
sys.path[:0] = [str(ROOT), str(LAB)]

from labassist.record.environment import environment_for  # noqa: E402

GROUP = 20  # steps whose time is taken together: our curve has milliseconds
WARM_UP = 40  # first steps that are left out
NEVER = 10**9


class Ours:
    """Runs of the lab's train.py, started by an order as the launcher would."""

    def __init__(self, folder: Path, text: Path, threads: int) -> None:
        self.folder, self.text, self.threads, self.count = folder, text, threads, 0

    def run(self, steps: int, seed: int, checkpoint: int, record: str = "on") -> Path:
        """Train and return the run folder."""
        config = tomllib.loads((LAB / "train.toml").read_text())
        del config["profiles"], config["schema"]
        config |= {"steps": steps, "device": "cpu"}
        config["data"]["path"] = str(self.text)
        config["every"] = {"eval": NEVER, "checkpoint": checkpoint}
        self.count += 1
        run_dir = self.folder / f"run-{self.count}"
        run_dir.mkdir()
        order = {
            "protocol": 1, "run": run_dir.name, "job": "01-first-loop/train", "mode": "exact", "seed": seed,
            "threads": self.threads, "config": config,
        }  # fmt: skip
        (run_dir / "order.json").write_text(json.dumps(order))
        environ = {**os.environ, **environment_for("exact", seed, self.threads), "PYTHONPATH": str(ROOT)}
        environ |= {"LABASSIST_RUN_DIR": str(run_dir), "LABASSIST_RECORD": record}
        command = [sys.executable, str(LAB / "train.py")]
        subprocess.run(command, env=environ, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        return run_dir

    def seconds(self, run_dir: Path) -> float:
        """Return the time from hello to finish."""
        told = [json.loads(line) for line in (run_dir / "events-rank0.jsonl").read_text().splitlines()]
        times = {event["event"]: datetime.fromisoformat(event["time"]) for event in told}
        return (times["finish"] - times["hello"]).total_seconds()

    def step_seconds(self, run_dir: Path) -> float:
        """Return the median time of a step."""
        rows = curve(run_dir)
        times = [row["t"] for row in rows if "loss" in row]
        groups = zip(times[WARM_UP::GROUP], times[WARM_UP + GROUP :: GROUP], strict=False)
        return float(statistics.median((end - begin) / GROUP for begin, end in groups))

    def loss(self, run_dir: Path) -> float:
        """Return the loss over the whole validation text, recorded at the end."""
        return float(next(row["val_loss"] for row in curve(run_dir) if "val_loss" in row))


class NanoGPT:
    """Runs of a copy of nanoGPT with the settings of its README for a CPU."""

    def __init__(self, folder: Path, checkout: Path, text: Path, threads: int) -> None:
        self.home, self.threads = folder / "nanoGPT", threads
        shutil.copytree(checkout, self.home, ignore=shutil.ignore_patterns(".git"))
        characters = text.read_text(encoding="utf-8")
        self.alphabet = sorted(set(characters))
        number = {character: at for at, character in enumerate(self.alphabet)}
        numbers = [number[character] for character in characters]
        cut = int(len(numbers) * 0.9)
        self.validation = numbers[cut:]
        data = self.home / "data" / "shakespeare_char"
        for name, part in (("train", numbers[:cut]), ("val", numbers[cut:])):
            (data / f"{name}.bin").write_bytes(array("H", part).tobytes())
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(self.alphabet)}))
        self.source = (self.home / "train.py").read_text()

    def run(self, steps: int, seed: int) -> str:
        """Train and return what was printed; the checkpoint after `steps` updates is in out/ckpt.pt."""
        assert "torch.manual_seed(1337 +" in self.source
        text = self.source.replace("torch.manual_seed(1337 +", f"torch.manual_seed({seed} +")
        (self.home / "train.py").write_text(text)
        options = {
            "device": "cpu", "compile": False, "eval_iters": 1, "log_interval": 1, "block_size": 64,
            "batch_size": 12, "n_layer": 4, "n_head": 4, "n_embd": 128, "max_iters": steps,
            "lr_decay_iters": steps, "dropout": 0.0, "eval_interval": steps, "always_save_checkpoint": True,
            "out_dir": "out",
        }  # fmt: skip
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py"]
        command += [f"--{name}={value}" for name, value in options.items()]
        environ = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        done = subprocess.run(command, cwd=self.home, env=environ, check=True, capture_output=True, text=True)
        return done.stdout

    def step_seconds(self, printed: str) -> float:
        """Return the median time of a step."""
        times = [float(word) / 1000 for word in re.findall(r"^iter \d+: .* time ([\d.]+)ms", printed, re.M)]
        times = times[WARM_UP:-1]  # the last one holds the evaluation
        groups = [times[at : at + GROUP] for at in range(0, len(times) - GROUP + 1, GROUP)]
        return statistics.median(sum(group) / GROUP for group in groups)

    def loss(self) -> float:
        """Return the loss over the whole validation text by the lab's own evaluator."""
        import torch

        sys.path.append(str(self.home))  # last: its train.py is not the one meant below
        from model import GPT, GPTConfig
        from train import evaluate

        kept = torch.load(self.home / "out" / "ckpt.pt", weights_only=True)
        gpt = GPT(GPTConfig(**kept["model_args"]))
        gpt.load_state_dict(kept["model"])

        class Same(torch.nn.Module):
            """nanoGPT's model with the two names that the evaluator uses."""

            context = kept["model_args"]["block_size"]

            def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                loss: torch.Tensor = gpt.eval()(x, y.contiguous())[1]
                return loss

        return float(evaluate(Same(), torch.tensor(self.validation)))


def curve(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics-rank0.jsonl").read_text().splitlines()]


def verdict(name: str, ok: bool, text: str, **numbers: Any) -> dict[str, Any]:
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {text}", flush=True)
    return {"name": name, "pass": ok, **numbers}


def in_turn(
    pairs: int, one: Callable[[int], float], two: Callable[[int], float]
) -> list[tuple[float, float]]:
    """Measure both `pairs` times, the order turned round each time."""
    measured = []
    for at in range(pairs):
        if at % 2:
            second = two(at)
            measured.append((one(at), second))
        else:
            measured.append((one(at), two(at)))
        print(f"  pair {at + 1}: {measured[-1][0]:.5g} and {measured[-1][1]:.5g}", flush=True)
    return measured


def recording(ours: Ours, steps: int, pairs: int) -> dict[str, Any]:
    def seconds(record: str) -> Callable[[int], float]:
        return lambda at: ours.seconds(ours.run(steps, at, steps // 10, record))

    measured = in_turn(pairs, seconds("off"), seconds("on"))
    ratio = statistics.median(off / on for off, on in measured)
    text = f"{ratio:.4f} of the speed without a record, {steps} steps, 10 checkpoints, {pairs} pairs (≥ 0.98)"
    return verdict("recording", ratio >= 0.98, text, ratio=ratio, pairs=measured, steps=steps)


def speed(ours: Ours, nano: NanoGPT, steps: int, pairs: int) -> dict[str, Any]:
    measured = in_turn(
        pairs,
        lambda at: 12 * 64 / ours.step_seconds(ours.run(steps, at, NEVER)),
        lambda at: 12 * 64 / nano.step_seconds(nano.run(steps, at)),
    )
    ratio = statistics.median(one / two for one, two in measured)
    one, two = (statistics.median(side) for side in zip(*measured, strict=True))
    text = f"{ratio:.3f} of nanoGPT's, {one:.0f} against {two:.0f} tokens/s, {pairs} pairs (≥ 1)"
    return verdict("speed", ratio >= 1, text, ratio=ratio, pairs=measured, steps=steps)


def loss(ours: Ours, nano: NanoGPT, steps: int, seeds: list[int]) -> dict[str, Any]:
    one, two = [], []
    for seed in seeds:
        one.append(ours.loss(ours.run(steps, seed, NEVER)))
        nano.run(steps, seed)
        two.append(nano.loss())
        print(f"  seed {seed}: {one[-1]:.4f} and {two[-1]:.4f}", flush=True)
    here, there = statistics.median(one), statistics.median(two)
    text = f"{here:.4f} against nanoGPT's {there:.4f}, {steps} steps, {len(seeds)} seeds (≤ + 0.01)"
    return verdict("loss", here <= there + 0.01, text, ours=one, nanogpt=two, seeds=seeds, steps=steps)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT (for speed and loss)")
    parser.add_argument("--text", type=Path, required=True, help="tiny Shakespeare, or any text")
    parser.add_argument("--only", nargs="+", choices=["recording", "speed", "loss"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000, help="steps of recording and loss")
    parser.add_argument("--speed-steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, 1338, 1339])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    wanted = options.only or (["recording", "speed", "loss"] if options.nanogpt else ["recording"])
    if options.nanogpt is None and wanted != ["recording"]:
        parser.error("speed and loss need --nanogpt DIR")
    text = options.text.resolve()
    with tempfile.TemporaryDirectory(prefix="first-loop-") as name:
        ours = Ours(Path(name), text, options.threads)
        results = []
        if "recording" in wanted:
            results.append(recording(ours, options.steps, options.pairs))
        if options.nanogpt:
            nano = NanoGPT(Path(name), options.nanogpt, text, options.threads)
            if "speed" in wanted:
                results.append(speed(ours, nano, options.speed_steps, options.pairs))
            if "loss" in wanted:
                results.append(loss(ours, nano, options.steps, options.seeds))
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "results": results}, indent=1) + "\n")
    return 0 if all(result["pass"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
