"""What each step of the first lab must have shown. Everything is read from recorded runs, nothing is trained."""

from __future__ import annotations

import json
import math
import struct
from itertools import pairwise
from typing import Any

from labassist.course.evidence import Evidence, Missing
from labassist.course.model import Criterion, Measured
from labassist.errors import counted

NEAR = 0.1
"""Of ln V: with random weights the scores are small, not zero. Ten seeds lay within 0.06."""
LEARNT = 3.5
"""Between 3.92 (a rate of 2e-4) and 3.24 (1e-3): of six seeds of either, those nearest to each other."""
JUMP, JUMPS = 0.5, 5
"""A rise of the loss from one step to the next, in nats, and how many make it unstable: 18 to 27 in six seeds."""
TURN = 0.2
"""Rise of the validation loss above its lowest that is more than its noise."""
ROUNDING = 1e-10
"""In 64 bits two right ways to compute the same differ by about 1e-16 of it; a wrong one by far more."""


def tail(run_id: str) -> str:
    """Return the part of a run's id by which people call it."""
    return run_id.rpartition("-")[2]


def short(run: dict[str, Any]) -> str:
    """Return how a run is named in a source: by the last part of its id."""
    return f"run {tail(run['id'])}"


# ---------------------------------------------------------------------------- the first runs


def alphabet(found: Evidence, run: dict[str, Any]) -> int:
    """Return how many characters a run's model knows, from the header of its last checkpoint."""
    folder, _ = found.checkpoint(run)
    with (folder / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return int(header["character.weight"]["shape"][0])


def first_loss(found: Evidence) -> list[Criterion]:
    run = found.run("first-loss")
    step, loss = found.series(run, "loss")[0]
    size = alphabet(found, run)
    return [
        Criterion(
            "the first loss is that of a model that knows nothing",
            step == 1 and abs(loss - math.log(size)) < NEAR,
            f"ln {size} = {math.log(size):.3f}, within {NEAR}",
            f"{loss:.3f}",
            f"{short(run)} step {step}; the {size} characters: its checkpoint",
        )
    ]


def measured_first_loss(found: Evidence) -> Measured:
    run = found.run("first-loss")
    step, loss = found.series(run, "loss")[0]
    size = alphabet(found, run)
    expected = {"a": 0.0, "b": 1.0, "c": math.log(size), "d": float(size)}
    nearest = min(expected, key=lambda letter: abs(expected[letter] - loss))
    return Measured(f"{loss:.3f}; ln {size} is {math.log(size):.3f}", f"{short(run)} step {step}", nearest)


def rate(found: Evidence) -> list[Criterion]:
    run = found.run("rate")
    wanted, warmup = run["config"]["optim.lr"], run["config"]["optim.warmup"]
    rates = found.series(run, "lr")
    top_step, top = max(rates, key=lambda one: one[1])
    last_step, last = rates[-1]
    step, loss = found.series(run, "val_loss")[-1]
    return [
        Criterion(
            "the rate climbs during the warm-up, then falls",
            (top_step, top) == (warmup + 1, wanted) and last < top / 2,
            f"highest at step {warmup + 1}: {wanted:g}; less than half of it at the end",
            f"highest at step {top_step}: {top:g}; {last:.2g} at step {last_step}",
            f"{short(run)}, series lr",
        ),
        Criterion(
            "it has learnt how often each character comes",
            loss < LEARNT,
            f"val_loss below {LEARNT}",
            f"{loss:.3f} with a rate of {wanted:g}",
            f"{short(run)} step {step}",
        ),
    ]


# ---------------------------------------------------------------------------- by hand


def compared(name: str, error: float | None, missing: str, source: str) -> Criterion:
    """Return the criterion that something is equal to PyTorch's, but for rounding."""
    got = missing or ("nothing of the right shape" if error is None else f"{error:.1e}")
    return Criterion(
        name, error is not None and error < ROUNDING, f"relative error below {ROUNDING:g}", got, source
    )


def attention(found: Evidence) -> list[Criterion]:
    told = found.program(["attention.py", "--check"])
    missing = "" if told["written"]["attention"] else "attention is not written yet"
    source = "attention.py --check"
    leak = told["leak"]
    return [
        compared("the same as PyTorch's attention", told["forward"], missing, source),
        Criterion(
            "no character looks ahead",
            leak == 0,
            "changing later characters moves earlier results by 0",
            missing or ("nothing of the right shape" if leak is None else f"{leak:.2g}"),
            source,
        ),
    ]


def gradient(found: Evidence) -> list[Criterion]:
    told = found.program(["attention.py", "--check"])
    missing = "" if told["written"]["attention_backward"] else "attention_backward is not written yet"
    return [
        compared(
            f"the gradient to {name} equals autograd's", told[f"d_{name}"], missing, "attention.py --check"
        )
        for name in ("query", "key", "value")
    ]


def block(found: Evidence) -> list[Criterion]:
    told = found.program(["block.py", "--check"])
    source = "block.py --check"
    missing = told["missing"]
    errors = told.get("weights", {})
    worst = None if not errors or None in errors.values() else max(errors.values())
    return [
        compared("the same as the Block of train.py", told.get("forward"), missing, source),
        compared("the gradient to x equals autograd's", told.get("dx"), missing, source),
        compared("the gradients to its six weights equal autograd's", worst, missing, source),
    ]


# ---------------------------------------------------------------------------- the loop


def jumps(losses: list[tuple[int, Any]]) -> int:
    """Return how often the loss rose by more than JUMP from one step to the next."""
    return sum(later - before > JUMP for (_, before), (_, later) in pairwise(losses))


def clip(found: Evidence) -> list[Criterion]:
    run = found.run("clip")
    losses, norms = found.series(run, "loss"), found.series(run, "grad_norm")
    count, steps = jumps(losses), len(losses)
    over = sum(norm > 1.0 for _, norm in norms)
    return [
        Criterion(
            "clipping was off", run["config"]["clip"] == "off", "off", str(run["config"]["clip"]), short(run)
        ),
        Criterion(
            "the loss jumps",
            count >= JUMPS,
            f"rises by more than {JUMP} at {JUMPS} steps or more",
            f"at {count} of {steps} steps; highest {max(value for _, value in losses):.3g}",
            f"{short(run)}, series loss",
        ),
        Criterion(
            "a limit of 1 would have been passed",
            over > 0,
            "some gradient norms above 1",
            f"{over} of {steps}; longest {max(norm for _, norm in norms):.3g}",
            f"{short(run)}, series grad_norm",
        ),
    ]


def measured_clip(found: Evidence) -> Measured:
    run = found.run("clip")
    losses = found.series(run, "loss")
    lost = next((step for step, loss in losses if not math.isfinite(loss)), None)
    if lost is not None:
        return Measured(f"not a number from step {lost}", f"{short(run)} step {lost}", "c")
    count = jumps(losses)
    text = f"{count} jumps by more than {JUMP}, and {losses[-1][1]:.2f} at the end"
    return Measured(text, f"{short(run)}, series loss", "b" if count >= JUMPS else "a")


def turn(found: Evidence, run: dict[str, Any]) -> tuple[int, float, int, float]:
    """Return step and value of the lowest validation loss, and of the last."""
    seen = found.series(run, "eval_loss")
    best_step, best = min(seen, key=lambda one: one[1])
    return best_step, best, *seen[-1]


def overfit(found: Evidence) -> list[Criterion]:
    run = found.run("overfit")
    best_step, best, last_step, last = turn(found, run)
    losses = [loss for _, loss in found.series(run, "loss")[-20:]]
    trained = sum(losses) / len(losses)
    _, whole = found.series(run, "val_loss")[-1]
    return [
        Criterion(
            "the validation loss turns",
            last - best > TURN,
            f"at the end more than {TURN} above its lowest",
            f"lowest {best:.3f} at step {best_step}, {last:.3f} at step {last_step}",
            f"{short(run)}, series eval_loss",
        ),
        Criterion(
            "the training text is known better than the rest",
            trained < whole - 0.5,
            f"the training loss 0.5 or more below val_loss {whole:.3f}",
            f"{trained:.3f}, the mean of the last {counted(len(losses), 'steps')}",
            f"{short(run)}, series loss",
        ),
    ]


def measured_overfit(found: Evidence) -> Measured:
    run = found.run("overfit")
    first = found.series(run, "eval_loss")[0][1]
    best_step, best, last_step, last = turn(found, run)
    option = "b" if last - best > TURN else "a" if last < first - TURN else "c"
    text = f"lowest {best:.3f} at step {best_step}, {last:.3f} at step {last_step}"
    return Measured(text, f"{short(run)}, series eval_loss", option)


# ---------------------------------------------------------------------------- recorded runs


def resumed(found: Evidence) -> tuple[dict[str, Any], int]:
    """Return the newest run that went on from another one, and the last step of that one."""
    for run in found.runs("train"):
        if run.get("resumed_from"):
            return run, found.series(run["resumed_from"]["run"], "loss")[-1][0]
    raise Missing("no run has gone on from another one yet", run=PROVE)


PROVE = "labassist ckpt prove 01-first-loop/train --profile tiny --at 70 --kill"


def resume(found: Evidence) -> list[Criterion]:
    run, killed = resumed(found)
    origin = run["resumed_from"]["step"]
    verdict = run.get("verdict") or {}
    return [
        Criterion(
            "it went on from a checkpoint",
            0 < origin <= killed,
            f"a step from 1 to {killed}, where the first run ended",
            f"step {origin}",
            f"{short(run)}, resumed_from",
        ),
        Criterion(
            "it ends as if it had never been killed",
            verdict.get("verdict") == "BITWISE",
            "BITWISE",
            verdict.get("verdict", f"not compared: {PROVE}"),
            f"{short(run)}, verdict on {counted(verdict.get('steps', 0), 'steps')} and {counted(verdict.get('tensors', 0), 'tensors')}",
        ),
    ]


def measured_resume(found: Evidence) -> Measured:
    run, killed = resumed(found)
    origin = run["resumed_from"]["step"]
    option = "a" if origin == 0 else "c" if origin == killed else "b"
    text = f"reached step {killed}, went on from {origin}: {counted(killed - origin, 'steps')} done twice"
    return Measured(text, f"{short(run)}, resumed_from", option)


def replay(found: Evidence) -> list[Criterion]:
    run = found.run("replay")
    verdict = run["verdict"]
    return [
        Criterion(
            "every step and every weight is the same",
            verdict["verdict"] == "BITWISE",
            "BITWISE",
            f"{verdict['verdict']}, {counted(verdict.get('tensors', 0), 'tensors')} compared",
            f"{short(run)}, the replay of {tail(run['replay_of'])}",
        ),
        Criterion(
            "every step was compared",
            verdict.get("steps", 0) == run["total_steps"],
            counted(run["total_steps"], "steps"),
            counted(verdict.get("steps", 0), "steps"),
            f"{short(run)}, verdict",
        ),
    ]


def first_difference(one: list[tuple[int, Any]], two: list[tuple[int, Any]]) -> int | None:
    """Return the first step at which two series differ in any bit; None where they do not."""
    ours, theirs = dict(one), dict(two)
    return next((step for step in sorted(ours) if ours[step] != theirs.get(step)), None)


def ulp(found: Evidence) -> list[Criterion]:
    moved, straight = found.run("ulp"), found.run("first-loss")
    a, b = straight["config"]["optim.lr"], moved["config"]["optim.lr"]
    rates = found.series(straight, "lr"), found.series(moved, "lr")
    at = first_difference(*rates)
    apart = abs(rates[1][0][1] / rates[0][0][1] - 1)
    batch = first_difference(found.series(straight, "batch"), found.series(moved, "batch"))
    source = f"{short(straight)} and {short(moved)}"
    return [
        Criterion(
            "the rates are neighbours",
            b == math.nextafter(a, 1.0),
            f"{math.nextafter(a, 1.0)!r}, the next number after {a!r}",
            f"{b!r}",
            f"{short(moved)}, config optim.lr",
        ),
        Criterion(
            "DIVERGED at step 1, by the rate",
            at == 1 and apart < 1e-12,
            "lr differs at step 1, by less than 1e-12 of it",
            f"lr differs at step {at}, by {apart:.1e} of it" if at else "the same lr at every step",
            f"{source}, series lr",
        ),
        Criterion(
            "both saw the same batches",
            batch is None,
            "the same at every step",
            "the same at every step" if batch is None else f"others from step {batch}",
            f"{source}, series batch",
        ),
    ]


def measured_ulp(found: Evidence) -> Measured:
    moved, straight = found.run("ulp"), found.run("first-loss")
    step = first_difference(found.series(straight, "loss"), found.series(moved, "loss"))
    option = "d" if step is None else "a" if step == 1 else "b" if step <= 3 else "c"
    text = "the same loss at every step" if step is None else f"the loss differs from step {step}"
    return Measured(text, f"{short(straight)} and {short(moved)}, series loss", option)


def written(found: Evidence) -> dict[str, Any]:
    """Return the newest run that wrote at a temperature of 0.2."""
    settings = {"steps": 600, "optim.lr": 3e-3, "sample.temperature": 0.2, "sample.length": 300}
    for run in found.runs("train", profile="tiny", **settings):
        return run
    words = " ".join(f"--set {key}={value}" for key, value in settings.items())
    raise Missing("no such run yet", run=f"labassist run 01-first-loop/train --profile tiny {words}")


def write(found: Evidence) -> list[Criterion]:
    run, first = written(found), found.run("first-loss")
    step, loss = found.series(run, "val_loss")[-1]
    _, before = found.series(first, "val_loss")[-1]
    note = run.get("note", "").strip()
    return [
        Criterion(
            "it has learnt more than a run of 120 steps",
            loss < before,
            f"val_loss below {before:.3f} of {short(first)}",
            f"{loss:.3f}",
            f"{short(run)} step {step}",
        ),
        Criterion(
            "a note is kept with the run",
            bool(note),
            "a note of yours",
            note or 'none: labassist note @last "what you saw"',
            f"{short(run)}, note",
        ),
    ]


def measured_write(found: Evidence) -> Measured:
    run = written(found)
    folder, _ = found.checkpoint(run)
    # What the model wrote are the last characters of the log, which lies two folders above.
    text = (folder.parents[1] / "log.txt").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    words = text[-run["config"]["sample.length"] :].split()
    different = len(set(words))
    option = "b" if different < 0.7 * len(words) else "a"
    return Measured(f"{different} different words of {len(words)}", f"{short(run)}, log", option)
