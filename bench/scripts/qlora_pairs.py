"""Lab 07's own trainer, the recording taken out of half of its steps: what recording costs a step.

python qlora_pairs.py RESULT --profile gpu-24gb --set accumulate=1 …       in a workspace, under `labassist run --`
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers

from labassist import record
from labassist.runs.jobs import load_job, resolve
from labassist.workspace import Workspace

WARM_UP = 8


class Pairs(transformers.TrainerCallback):
    """Takes the recording out of a trainer for half of its steps, and times each with the GPU's work done.

    So all of the recording's own time counts, though in training most of it passes while the GPU works.
    """

    def __init__(self, recording, trainer) -> None:
        self.recording = recording
        self.trainer = trainer
        self.began = 0.0
        self.seconds: dict[str, list[float]] = {"with": [], "without": []}
        self.wrapped = {
            name: (getattr(type(trainer), name).__get__(trainer), getattr(trainer, name))
            for name in ("get_batch_samples", "training_step", "_get_grad_norm")
        }

    def on_step_end(self, _args, state, _control, **_):
        """Take the step's time, and put the recording in or out for the next one."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        step, now = state.global_step, time.perf_counter()
        if step > WARM_UP:
            self.seconds["without" if self.recording._over else "with"].append(now - self.began)
        # with, without, without, with: a drift of the clocks falls on both alike.
        off = step % 4 in (1, 2)
        self.recording._over = off
        for name, (plain, recorded) in self.wrapped.items():
            setattr(self.trainer, name, plain if off else recorded)
        self.began = time.perf_counter()

    def told(self) -> dict[str, object]:
        """Return throughput with the recording over that without: the median of pairs of neighbouring steps.

        `low` and `high` bound 95% of the medians of resampled pairs.
        """
        pairs = [b / a for a, b in zip(self.seconds["with"], self.seconds["without"], strict=False)]
        draw = random.Random(0)
        again = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
        return {
            "ratio": statistics.median(pairs),
            "low": again[50],
            "high": again[1950],
            "pairs": len(pairs),
            "step_s": {side: statistics.median(times) for side, times in self.seconds.items()},
        }


def main() -> None:
    result = Path(sys.argv[1])
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile")
    parser.add_argument("--threads")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args(sys.argv[2:])
    job = load_job(Workspace.find(), "07-qlora/sft")
    config = resolve(job, args.profile, None, [*args.sets, "every.checkpoint=1000000", "every.eval=1000000"])
    order = dataclasses.replace(record.read_order(), config=config.nested)
    record.read_order = lambda *_: order
    sys.path.insert(0, str(job.folder))
    made: list[Pairs] = []
    attach = record.attach

    def attached(trainer):
        callback = attach(trainer)
        # The last evaluation and checkpoint are not what is measured.
        trainer.args.eval_strategy = transformers.trainer_utils.IntervalStrategy.NO
        trainer.args.save_strategy = transformers.trainer_utils.SaveStrategy.NO
        made.append(Pairs(callback._recording, trainer))
        trainer.add_callback(made[0])
        return callback

    record.attach = attached
    import train

    train.main()
    tokens = config.flat["batch"] * config.flat["length"]
    answer = {"mode": order.mode, "model": config.flat["model.name"], "tokens": tokens, **made[0].told()}
    if torch.cuda.is_available():
        answer["peak_reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    result.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
