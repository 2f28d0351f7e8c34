"""What each step of the resume lab must have shown, from recorded runs and their verdicts."""

from __future__ import annotations

from typing import Any

from labassist.course.evidence import Evidence, Missing
from labassist.course.model import Criterion, Measured
from labassist.errors import counted

TRAIN = ("train", "tiny")
LEARNT = 2.5
"""Nats a character: knowing how often each character comes gives about 3.1, and the run ends near 2.1."""
PARTS = {
    "model": "the model comes back",
    "optimizer": "the optimizer comes back",
    "scheduler": "the schedule comes back",
    "scaler": "the loss scale comes back",
    "data_position": "the data position comes back",
}
EARLY, LATE, BOUND = 50, 450, 0.01
FIRST = {
    "data_position": ("without the data position the first step sees other rows", "batch"),
    "scaler": ("without the scaler nothing differs until the scale would change", "scale"),
}
SHOWS = {
    "rng": ("without the random state the first step differs", 1),
    "model": ("without the weights the first step differs", 1),
    "optimizer": ("without the optimizer the second step differs", 2),
    "scheduler": ("without the schedule the second step differs", 2),
}


def short(run: dict[str, Any]) -> str:
    """Return how a run is named in a source."""
    return f"run {run['id'].rpartition('-')[2]}"


def word(run: dict[str, Any]) -> str:
    """Return a run's verdict."""
    return str(run["verdict"]["verdict"])


def bitwise(name: str, run: dict[str, Any]) -> Criterion:
    return Criterion(name, word(run) == "BITWISE", "BITWISE", word(run), f"verdict of {short(run)}")


def unbroken(found: Evidence) -> dict[str, Any]:
    """Return the newest run that nothing interrupted."""
    for run in found.runs(*TRAIN):
        if not run.get("resumed_from"):
            return run
    raise Missing("no unbroken run yet", run="labassist run 03-resume/train --profile tiny")


def interrupted(
    found: Evidence, states: list[str], command: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the newest proved run whose earlier segments ended so, and these segments."""
    for run in found.runs(*TRAIN):
        if run.get("verdict") and not run.get("dropped"):
            earlier = found.lineage(run)[:-1]
            if [segment["state"] for segment in earlier] == states:
                return run, earlier
    raise Missing(
        "no such experiment has an answer yet", run=f"labassist ckpt prove 03-resume/train {command}"
    )


# ---------------------------------------------------------------------------- the run and the checkpoint


def whole(found: Evidence) -> list[Criterion]:
    run = found.run("whole")
    seen = found.series(run, "eval_loss")
    epochs, (step, last) = run["config"]["epochs"], seen[-1]
    return [
        Criterion(
            "there is an evaluation after each epoch",
            len(seen) == epochs,
            f"{epochs}",
            f"{len(seen)}",
            f"{short(run)}, series eval_loss",
        ),
        Criterion(
            "it has learnt something",
            last < LEARNT,
            f"eval_loss below {LEARNT}",
            f"{last:.3f}",
            f"{short(run)} step {step}",
        ),
    ]


def mine(found: Evidence) -> list[Criterion]:
    said = found.program(["mine.py", "--check"])
    return [
        Criterion(
            name,
            said[state],
            "equal after loading",
            "equal" if said[state] else "not equal",
            "labs/03-resume/mine.py --check",
        )
        for state, name in PARTS.items()
    ]


def proved(found: Evidence) -> list[Criterion]:
    for run in found.runs("mine", "tiny"):
        if run.get("verdict"):
            break
    else:
        raise Missing("it has not been proved yet", run="labassist ckpt prove 03-resume/mine --profile tiny")
    begun = run["resumed_from"]["step"]
    return [
        bitwise("your checkpoint resumes bit for bit", run),
        Criterion(
            "it went on from half way",
            begun == run["step"] // 2,
            f"step {run['step'] // 2}",
            f"step {begun}",
            short(run),
        ),
    ]


# ---------------------------------------------------------------------------- interruptions


def five(found: Evidence) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return interrupted(found, ["stopped"] * 4, "--profile tiny --at 100 --at 200 --at 300 --at 400")


def restarts(found: Evidence) -> list[Criterion]:
    run, earlier = five(found)
    begun = [segment["resumed_from"]["step"] for segment in [*earlier[1:], run]]
    return [
        bitwise("the last evaluation is equal to the bit", run),
        Criterion(
            "it was interrupted after each tenth epoch",
            begun == [100, 200, 300, 400],
            "went on from steps 100, 200, 300, 400",
            f"went on from steps {', '.join(map(str, begun))}",
            short(run),
        ),
    ]


def measured_restarts(found: Evidence) -> Measured:
    run, _ = five(found)
    ours, theirs = (found.series(one, "eval_loss")[-1][1] for one in (unbroken(found), run))
    option = "a" if ours == theirs else "b" if abs(ours - theirs) < 0.01 else "c"
    text = f"{theirs!r} against {ours!r}: difference {theirs - ours:g}"
    return Measured(text, f"{short(run)}, last eval_loss", option)


def went_on(run: dict[str, Any], last: dict[str, Any], found: Evidence) -> Criterion:
    """Say whether a run began at the newest checkpoint of the segment that was interrupted last."""
    _, manifest = found.checkpoint(last)
    begun = run["resumed_from"]["step"]
    return Criterion(
        "it went on from its last whole checkpoint",
        begun == manifest["step"],
        f"step {manifest['step']}",
        f"step {begun}",
        f"{short(run)}, checkpoints of {short(last)}",
    )


def killed(found: Evidence) -> list[Criterion]:
    run, [last] = interrupted(found, ["failed"], "--profile tiny --kill --at 230")
    return [
        Criterion(
            "the trainer died of signal 9", last.get("signal") == 9, "9", f"{last.get('signal')}", short(last)
        ),
        went_on(run, last, found),
        bitwise("the end is the same, bit for bit", run),
    ]


def measured_killed(found: Evidence) -> Measured:
    run, [last] = interrupted(found, ["failed"], "--profile tiny --kill --at 230")
    begun, every = run["resumed_from"]["step"], run["config"]["every.checkpoint"]
    option = "b" if begun % every == 0 and begun else "c" if begun == last["step"] else "a"
    text = (
        f"step {begun}, recorded up to {last['step']}: done twice: {counted(last['step'] - begun, 'steps')}"
    )
    return Measured(text, f"{short(last)}, {short(run)}", option)


def vanished(found: Evidence) -> list[Criterion]:
    run, [last] = interrupted(found, ["lost"], "--profile tiny --vanish --at 330")
    reason = last.get("reason", "")
    return [
        Criterion(
            "nobody could write how it ended",
            bool(reason) and "exit" not in last and "signal" not in last,
            "a reason, and no exit status",
            reason or "no reason",
            short(last),
        ),
        went_on(run, last, found),
        bitwise("the end is the same, bit for bit", run),
    ]


# ---------------------------------------------------------------------------- without each state


def ablation(found: Evidence, step: int) -> dict[str, dict[str, Any]]:
    """Return the newest resumes from `step` by the state that each left out; empty for the control."""
    rows: dict[str, dict[str, Any]] = {}
    for run in found.runs(*TRAIN):
        if run.get("verdict") and (run.get("resumed_from") or {}).get("step") == step:
            rows.setdefault("".join(run.get("dropped", [])), run)
    for state in ("", *FIRST, *SHOWS):
        if state not in rows:
            what = (
                f"no resume without {state} from step {step} yet"
                if state
                else "no resume with everything yet"
            )
            raise Missing(what, run=f"labassist ckpt ablate 03-resume/train --profile tiny --at {step}")
    return rows


def early(found: Evidence) -> list[Criterion]:
    rows = ablation(found, EARLY)
    criteria = []
    for state, (name, expected) in FIRST.items():
        series = rows[state]["verdict"]["first_difference"]["series"]
        criteria.append(
            Criterion(
                name,
                series == expected,
                f"{expected} differs first",
                f"{series} differs first",
                short(rows[state]),
            )
        )
    for state, (name, expected) in SHOWS.items():
        first = rows[state]["verdict"]["first_difference"]
        criteria.append(
            Criterion(
                name,
                first["resumed_step"] == expected,
                f"step {expected} after the resume",
                f"step {first['resumed_step']} ({first['series']})",
                short(rows[state]),
            )
        )
    return [*criteria, bitwise("with everything not a bit differs", rows[""])]


def measured_early(found: Evidence) -> Measured:
    row = ablation(found, EARLY)["optimizer"]
    ours, theirs = dict(found.series(unbroken(found), "loss")), found.series(row, "loss")
    first = next(step for step, loss in theirs if loss != ours[step]) - EARLY
    return Measured(
        f"step {first} after the resume", f"{short(row)}, series loss", {1: "a", 2: "b"}.get(first, "c")
    )


def costs(found: Evidence) -> dict[str, tuple[float, dict[str, Any]]]:
    """Return by lost state how far the last evaluation is from the unbroken run's, and the run."""
    rows = ablation(found, LATE)
    ours = found.series(unbroken(found), "eval_loss")[-1][1]
    return {
        state: (abs(found.series(row, "eval_loss")[-1][1] - ours), row)
        for state, row in rows.items()
        if state
    }


def late(found: Evidence) -> list[Criterion]:
    by_state = costs(found)
    criteria = [
        Criterion(
            name,
            by_state[state][0] >= BOUND,
            f"{BOUND} or more",
            f"{by_state[state][0]:.4f}",
            short(by_state[state][1]),
        )
        for state, name in (("model", "lost weights show"), ("scheduler", "a lost schedule shows"))
    ]
    rest = {state: cost for state, (cost, _) in by_state.items() if state not in ("model", "scheduler")}
    return [
        *criteria,
        Criterion(
            "a bound of 0.01 does not find the other four",
            max(rest.values()) < BOUND,
            f"each below {BOUND}",
            ", ".join(f"{state} {cost:.4f}" for state, cost in rest.items()),
            "last eval_loss of the resumes from step 450",
        ),
    ]


def measured_late(found: Evidence) -> Measured:
    by_state = costs(found)
    moved = [state for state, (cost, _) in by_state.items() if cost >= BOUND]
    text = f"{len(moved)} of {len(by_state)}: {', '.join(moved)}"
    option = "a" if not moved else "b" if len(moved) < 3 else "c" if len(moved) < 6 else "d"
    return Measured(text, "last eval_loss of the resumes from step 450", option)
