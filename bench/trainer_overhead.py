"""What the one line costs a script on a CPU: less than 1% of a step of 20 ms.

    python bench/trainer_overhead.py

One Trainer trains a small model with steps of about 20 ms. Half of its steps run with the line and half
without, in the order with, without, without, with; the cost is the median difference of neighbouring
steps. The direct time of the line's own code is measured too, in place: it is what a busy machine cannot
blur. Both are compared with 20 ms. Needs the packages of `labassist[train]`. Exit status 0 when both are
under 1%.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from labassist import record

SHARE = 0.01
STEP_S = 0.020
STEPS = 3000
DIRECT = 300
"""The last steps, all with the line, in which its own code is timed."""
WARM_UP = 20


class Alternate(TrainerCallback):
    """Puts the line in or out for the next step, and takes the time of each."""

    def __init__(self, recording: Any, trainer: Any) -> None:
        self.recording = recording
        self.trainer = trainer
        self.began = 0.0
        self.seconds: dict[str, list[float]] = {"with": [], "without": []}
        self.direct: Direct | None = None
        self.wrapped = {
            name: (getattr(type(trainer), name).__get__(trainer), getattr(trainer, name))
            for name in ("get_batch_samples", "training_step", "_get_grad_norm")
        }

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Take the step's time, and change sides."""
        now, step = time.perf_counter(), state.global_step
        if step > STEPS - DIRECT:
            return
        if step == STEPS - DIRECT:
            self.direct = Direct(self.recording, self.trainer)
            return
        if step > WARM_UP:
            self.seconds["without" if self.recording._over else "with"].append(now - self.began)
        off = step % 4 in (1, 2)
        self.recording._over = off
        for name, (plain, recorded) in self.wrapped.items():
            setattr(self.trainer, name, plain if off else recorded)
        self.began = time.perf_counter()


class Direct:
    """Adds up the time that the line's own code takes in a step, what it wraps left out."""

    def __init__(self, recording: Any, trainer: Any) -> None:
        recording._over = False
        self.inner = 0.0
        self.own = 0.0
        self.steps: list[float] = []
        ahead = recording.resumer.ahead
        for owner, name in ((ahead, "_batches"), (recording, "_step"), (recording, "_grad_norm")):
            setattr(owner, name, self.inside(getattr(owner, name)))
        for name in ("get_batch_samples", "training_step", "grad_norm", "on_pre_optimizer_step"):
            setattr(recording, name, self.outside(getattr(recording, name)))
        recording.on_step_end = self.outside(recording.on_step_end, last=True)
        trainer.get_batch_samples = recording.get_batch_samples
        trainer.training_step = recording.training_step
        trainer._get_grad_norm = recording.grad_norm

    def inside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Time what is wrapped."""

        def timed(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **more)
            finally:
                self.inner += time.perf_counter() - began

        return timed

    def outside(self, call: Callable[..., Any], last: bool = False) -> Callable[..., Any]:
        """Time the wrapper, without what it wraps."""

        def timed(*args: Any, **more: Any) -> Any:
            inner, began = self.inner, time.perf_counter()
            done = call(*args, **more)
            self.own += time.perf_counter() - began - (self.inner - inner)
            if last:
                self.steps.append(self.own)
                self.own = 0.0
            return done

        return timed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "lab" / "ledger" / "runs" / "bench"
        run.mkdir(parents=True)
        order = {"protocol": 1, "run": "bench", "job": "bench", "mode": "fast", "seed": 1, "threads": 1}
        order |= {"config": {}, "inputs": {}, "root": str(Path(folder) / "lab")}
        (run / "order.json").write_text(json.dumps(order))
        os.environ["LABASSIST_RUN_DIR"] = str(run)
        trainer = make(Path(folder) / "lab" / "out")
        callback = record.attach(trainer)
        recording: Any = callback._recording
        pairs = Alternate(recording, trainer)
        trainer.add_callback(pairs)
        trainer.train()
    step = statistics.median(pairs.seconds["without"])
    differences = [a - b for a, b in zip(pairs.seconds["with"], pairs.seconds["without"], strict=False)]
    assert pairs.direct is not None
    own = statistics.median(pairs.direct.steps[1:])
    paired = statistics.median(differences)
    results = {
        "step_ms": step * 1e3,
        "paired_us": paired * 1e6,
        "paired_share": paired / STEP_S,
        "own_us": own * 1e6,
        "own_share": own / STEP_S,
        "pairs": len(differences),
    }
    good = results["paired_share"] < SHARE and results["own_share"] < SHARE
    print(
        f"{'PASS' if good else 'FAIL'}  a step of {step * 1e3:.1f} ms: the line's own code takes {own * 1e6:.0f} "
        f"microseconds ({results['own_share']:.2%} of 20 ms), and paired steps differ by {paired * 1e6:.0f} "
        f"({results['paired_share']:.2%}; < 1%)"
    )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if good else 1


def make(output: Path) -> Trainer:
    """Return a trainer whose step takes about 20 ms on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
    )
    rows = [{"input_ids": (row := torch.randint(3, 512, (64,)).tolist()), "labels": row} for _ in range(512)]

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        ids = torch.tensor([row["input_ids"] for row in batch])
        return {"input_ids": ids, "labels": ids.clone()}

    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=6,
        max_steps=STEPS,
        logging_steps=STEPS,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(LlamaForCausalLM(config), arguments, data_collator=collate, train_dataset=rows)


if __name__ == "__main__":
    sys.exit(main())
