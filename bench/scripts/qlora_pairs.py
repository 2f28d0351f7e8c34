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
from labassist.record import lag
from labassist.runs.jobs import load_job, resolve
from labassist.workspace import Workspace

WARM_UP = 24
"""Steps before anything is measured: the recording's buffers are made in its first nine."""

ADD = lag.Pieces.add


SIDES = ("with", "without", "again")
"""`again` is without the recording too: what the ratio of `without` to it shows is noise."""
PARTS = (*SIDES, "no file", "no digest", "no values")
"""What `--parts` compares: all of the recording, none, and all but one of its parts."""


class Pairs(transformers.TrainerCallback):
    """Takes the recording out of a trainer for some of its steps, and times each with the GPU's work done.

    So all of the recording's own time counts, though in training most of it passes while the GPU works. The sides
    follow each other in blocks of every side once, in an order drawn anew for each block: a drift of the clocks, an
    epoch's end or a logged step falls on all alike.
    """

    def __init__(self, recording, trainer, sides=SIDES) -> None:
        self.recording = recording
        self.trainer = trainer
        self.sides = sides
        self.draw = random.Random(0)
        self.order: list[str] = []
        self.side = "with"
        self.began = 0.0
        self.steps: list[tuple[str, float]] = []
        self.own: dict[str, list[float]] = {}
        for owner, name in (
            (recording, "get_batch_samples"),
            (recording, "grad_norm"),
            (recording, "on_step_end"),
        ):
            setattr(owner, name, self.timed(name, getattr(owner, name)))
        trainer.get_batch_samples = recording.get_batch_samples
        trainer._get_grad_norm = recording.grad_norm
        recording._batches = self.outside("get_batch_samples", recording._batches)
        recording._grad_norm = self.outside("grad_norm", recording._grad_norm)
        self.wrapped = {
            name: (getattr(type(trainer), name).__get__(trainer), getattr(trainer, name))
            for name in ("get_batch_samples", "training_step", "_get_grad_norm")
        }
        self.append = self.record = None

    def timed(self, name, call):
        """Return a call whose seconds on the CPU's clock are kept, those of `outside` not counted."""

        def timed(*args, **more):
            self.inner = 0.0
            began = time.perf_counter()
            done = call(*args, **more)
            if self.side == "with" and self.trainer.state.global_step > WARM_UP:
                self.own.setdefault(name, []).append(time.perf_counter() - began - self.inner)
            return done

        return timed

    def outside(self, _name, call):
        """Return a call of the trainer's own, whose time is not the recording's."""

        def outside(*args, **more):
            began = time.perf_counter()
            done = call(*args, **more)
            self.inner = time.perf_counter() - began
            return done

        return outside

    def on_step_end(self, _args, state, _control, **_):
        """Take the step's time, and put the recording in or out for the next one."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if state.global_step > WARM_UP:
            self.steps.append((self.side, now - self.began))
            self.order = self.order or self.draw.sample(self.sides, len(self.sides))
            self.side = self.order.pop()
        self.set(self.side)
        self.began = time.perf_counter()

    def set(self, side: str) -> None:
        """Make the recording what the next step's side says."""
        off = side in ("without", "again")
        self.recording._over = off
        for name, (plain, recorded) in self.wrapped.items():
            setattr(self.trainer, name, plain if off else recorded)
        recorder, lagged = self.recording._recorder, self.recording._lagged
        self.append = self.append or recorder._append
        self.record = self.record or lagged.record
        recorder._append = (lambda _: None) if side == "no file" else self.append
        lagged.record = (lambda *_, **__: None) if side == "no values" else self.record
        lag.Pieces.add = (lambda *_: None) if side == "no digest" else ADD

    def told(self) -> dict[str, object]:
        """Return throughput with the recording over that without, and what of it is noise.

        `noise` is the same comparison of steps without the recording among themselves. `own_ms` is the time that
        passes inside the recording, whatever it waits for, by part: their sum over a step is `own_share`.
        """
        times = {side: [seconds for one, seconds in self.steps if one == side] for side in self.sides}
        own = {name: 1000 * statistics.median(some) for name, some in self.own.items()}
        step = statistics.median(times["without"])
        return {
            **ratio(times["with"], times["without"]),
            "noise": ratio(times["again"], times["without"]),
            "step_s": {side: statistics.median(some) for side, some in times.items()},
            "own_ms": own,
            "own_share": sum(own.values()) / 1000 / step,
            "own_ms_most": {name: 1000 * max(some) for name, some in self.own.items()},
            "steps": [[side, round(seconds, 4)] for side, seconds in self.steps],
        }


def ratio(with_: list[float], without: list[float]) -> dict[str, float]:
    """Return the median ratio of neighbouring steps; `low` and `high` bound 95% of the medians of resampled pairs."""
    pairs = [b / a for a, b in zip(with_, without, strict=False)]
    draw = random.Random(0)
    again = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return {"ratio": statistics.median(pairs), "low": again[50], "high": again[1950], "pairs": len(pairs)}


def main() -> None:
    result = Path(sys.argv[1])
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile")
    parser.add_argument("--threads")
    parser.add_argument(
        "--parts", action="store_true", help="leave out one part of the recording at a time, too"
    )
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
        made.append(Pairs(callback._recording, trainer, PARTS if args.parts else SIDES))
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
