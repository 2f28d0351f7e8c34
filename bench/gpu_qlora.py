"""Prove on this machine that lab 07's own job replays and resumes bit for bit on a card, and what that costs.

    python bench/gpu_qlora.py --out bench/results/h200-qlora --budget 520

A 7B model (random weights of the real architecture) is fine-tuned by `labassist run 07-qlora/sft --profile gpu-24gb
--card 24GB`: recorded in exact mode, replayed, started again and killed with SIGKILL after its second checkpoint,
resumed, and the joined run compared with the unbroken one, every step and every tensor. Then the same trainer at batch
2 x 2048, one forward a step: recording on and off in alternating steps, and exact against fast mode (cost below 25%).
The bar of the recording is the median ratio of throughput, at least 0.995. A step of half a second that waits for its
own kernel launches varies by a tenth and more on a virtual machine: the ratio's interval, the time that passes inside
the recording, and what steps without it differ by among themselves stand beside it. Every answer is kept as JSON, with
the GPU's UUID. Exit status 0 when all of it holds.
`--small` tries the same with a tiny architecture, on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_scripts import equal, keep

CLI = [sys.executable, "-m", "labassist"]
PAIRS = Path(__file__).parent / "scripts" / "qlora_pairs.py"
RATIO, COST = 0.995, 0.25
SMALL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tiny architecture, wherever this runs")
    parser.add_argument("--only", choices=("proof", "speed"), help="leave the other out")
    parser.add_argument("--steps", type=int, default=8, help="of the proof")
    parser.add_argument("--pairs", type=int, default=324, help="steps of each measurement of speed")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing is begun")
    parser.add_argument("--workspace", type=Path, help="folder that stays (default: a temporary one)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON answers")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        proof = Proof(args, args.workspace or Path(folder) / "lab")
        if args.only != "speed":
            proof.prove(args.steps)
        if args.only != "proof":
            proof.speed(args.pairs)
    found = proof.found | {"seconds": round(time.monotonic() - proof.began)}
    good = verdicts(found, args.only)
    found["pass"] = all(good.values())
    found["bars"] = good
    keep(args.out / "summary.json", found)
    print(json.dumps(found, indent=1))
    print(
        "PASS" if found["pass"] else f"FAIL: {', '.join(name for name, holds in good.items() if not holds)}"
    )
    return 0 if found["pass"] else 1


def verdicts(found: dict[str, Any], only: str | None) -> dict[str, bool]:
    """Return what was promised and whether it held."""
    bars: dict[str, bool] = {}
    if only != "speed":
        bars["replayed BITWISE"] = found.get("replay") == "BITWISE"
        bars["killed by SIGKILL"] = found.get("killed_by") == signal.SIGKILL
        bars["resumed BITWISE"] = found.get("resumed") == "BITWISE"
        bars["audit"] = found.get("audit") == "ok"
    if only != "proof":
        told = found.get("recording", {})
        bars["recording"] = told.get("ratio", 0) >= RATIO
        bars["exact"] = found.get("exact_cost", 1) < COST
    return bars


class Proof:
    """The runs of one workspace, and what came of them."""

    def __init__(self, args: argparse.Namespace, workspace: Path) -> None:
        self.began = time.monotonic()
        self.deadline = self.began + args.budget
        self.out = args.out
        self.workspace = workspace
        self.answers: dict[str, Any] = {}
        self.found: dict[str, Any] = {"gpu": gpu(), "versions": {}}
        if not workspace.exists():
            subprocess.run([*CLI, "new", str(workspace)], check=True, stdout=subprocess.DEVNULL)
        model = "random:qwen2.5-7b"
        self.job = ["07-qlora/sft", "--profile", "gpu-24gb", "--threads", "1", "--set", "exam.questions=0"]
        if args.small:
            (workspace / "small").mkdir(exist_ok=True)
            keep(workspace / "small" / "config.json", SMALL)
            model = f"random:{workspace / 'small' / 'config.json'}"
            self.job += ["--set", "length=128", "--set", "checkpointing=false"]
            if not self.found["gpu"]:
                self.job += ["--set", "optim.name=adamw_8bit"]
        self.job += ["--set", f"model.name={model}"]
        self.card = ["--card", "24GB"] if self.found["gpu"] else []

    def prove(self, steps: int) -> None:
        """Record, replay, kill and resume."""
        every = max(1, steps // 4)
        job = [*self.job, *self.card, "--set", f"steps={steps}", "--set", f"every.checkpoint={every}"]
        run = self.answer("run", job)
        self.found |= {
            name: run.get(name)
            for name in (
                "state",
                "step",
                "total_steps",
                "tokens_per_step",
                "tokens_per_s",
                "versions",
                "config",
            )
        }
        if run.get("state") != "finished":
            self.show_log(run)
            return
        self.found["memory"] = self.memory(run)
        replayed = self.answer("replay", [run["id"]])
        self.found |= {"replay": replayed.get("verdict"), "compared": replayed.get("compared")}
        killed = self.killed(job, 2 * every)
        self.found["killed_by"] = killed.get("signal")
        resumed = self.answer("resume", [killed.get("id", "@last")], as_="resumed")
        if resumed.get("state") != "finished":
            self.show_log(resumed)
        self.found["resumed_from"] = (resumed.get("resumed_from") or {}).get("step")
        unlike = self.answer("diff", [run["id"], resumed.get("id", "@last")])
        if unlike:
            self.found["resumed"] = "BITWISE" if equal(unlike) else "DIVERGED"
            self.found["resumed_steps"] = unlike["curves"]["loss"]["equal"]
            self.found["resumed_tensors"] = unlike["checkpoints"]["equal"]
        audit = self.answer("audit", [])
        self.found["audit"] = "ok" if audit.get("ok") else audit.get("problems")
        log = self.folder(resumed) / "log.txt"
        if log.exists():
            said = [line for line in log.read_text().splitlines() if line.startswith("labassist:")]
            self.found["said"] = said

    def killed(self, job: list[str], step: int) -> dict[str, Any]:
        """Return a run whose trainer is killed as soon as the checkpoint of `step` is sealed."""
        started = self.answer("run", ["--detach", *job], as_="killed")
        folder = self.folder(started)
        seal = folder / "checkpoints" / f"step-{step:08d}.manifest.json"
        while not seal.exists() and not (folder / "end.json").exists() and time.monotonic() < self.deadline:
            time.sleep(0.02)
        if seal.exists():
            os.kill(json.loads((folder / "alive").read_text())["trainer"], signal.SIGKILL)
        while not (folder / "end.json").exists() and time.monotonic() < self.deadline:
            time.sleep(0.1)
        time.sleep(2.0)  # the supervisor closes the record
        return self.answer("show", [started.get("id", "@last")], as_="killed")

    def speed(self, steps: int) -> None:
        """Measure what recording and what exact mode cost a step, the GPU's work awaited after each."""
        shutil.copy(PAIRS, self.workspace / "qlora_pairs.py")
        told = {}
        for mode in ("exact", "fast"):
            result = (self.out / f"speed-{mode}.json").resolve()
            words = [*self.job[1:], "--set", "accumulate=1", "--set", f"steps={steps}"]
            words += ["--set", "card=24GB"] if self.card else []
            script = ["python", "qlora_pairs.py", str(result), *words]
            run = self.answer("run", ["--mode", mode, "--threads", "1", "--", *script], as_=f"speed-{mode}")
            if not result.exists():
                self.show_log(run)
                return
            told[mode] = json.loads(result.read_text())
        self.found["recording"] = told["exact"]
        self.found["recording_fast"] = told["fast"]
        exact, fast = (told[mode]["step_s"]["with"] for mode in ("exact", "fast"))
        self.found["exact_cost"] = exact / fast - 1
        self.found["tokens_per_s_exact"] = told["exact"]["tokens"] / exact
        self.found["tokens_per_s_fast"] = told["fast"]["tokens"] / fast

    def memory(self, run: dict[str, Any]) -> list[str]:
        """Return what the trainer said of its memory, and of the card that it rehearsed."""
        log = (self.folder(run) / "log.txt").read_text()
        return [line for line in log.splitlines() if "GiB" in line]

    def folder(self, run: dict[str, Any]) -> Path:
        """Return the folder of a run."""
        return self.workspace / "ledger" / "runs" / str(run.get("id"))

    def show_log(self, run: dict[str, Any]) -> None:
        """Print the end of a run's log."""
        log = self.folder(run) / "log.txt"
        print(log.read_text()[-4000:] if log.exists() else f"no log: {run}", flush=True)

    def answer(self, verb: str, words: list[str], as_: str = "") -> dict[str, Any]:
        """Return the JSON answer of a command, and keep it; nothing where the budget is spent."""
        name = as_ or verb
        began = time.monotonic()
        if began > self.deadline:
            print(f"left out for time: {name}", flush=True)
            return {}
        done = subprocess.run(
            [*CLI, verb, "--json", *words],
            cwd=self.workspace,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        print(f"{name}: status {done.returncode}, {time.monotonic() - began:.1f} s", flush=True)
        document: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
        self.answers[name] = document
        keep(self.out / "answers.json", self.answers)
        return document


def gpu() -> dict[str, str]:
    """Return name, UUID, driver and memory of the first GPU; nothing where there is none."""
    keys = ("name", "uuid", "driver_version", "memory.total")
    try:
        told = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    return dict(zip(keys, [one.strip() for one in told.splitlines()[0].split(",")], strict=True))


if __name__ == "__main__":
    sys.exit(main())
