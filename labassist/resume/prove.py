"""`ckpt prove`: does going on from a checkpoint give, bit for bit, what an unbroken run gives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from labassist.ledger import verdict
from labassist.ledger.curves import Curve
from labassist.ledger.records import Verdict
from labassist.ledger.store import Ledger
from labassist.resume import signature
from labassist.resume.experiment import Experiment, Follow, How, Say, broken_off, interrupt
from labassist.resume.signature import Signature
from labassist.runs.launch import Plan
from labassist.workspace import Workspace


@dataclass
class Proved:
    """The answer, with the three runs that gave it."""

    experiment: Experiment
    resumed: dict[str, Any]
    verdict: Verdict
    signature: Signature
    differences: dict[str, Any]
    """Series -> its own first difference, with the step counted from the resume too."""
    rng: list[dict[str, Any]]
    """Checkpoints of both runs whose random generators were compared: `step`, `equal`."""

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `ckpt prove --json`."""
        made, found = self.experiment, self.verdict
        report = made.report
        return {
            "verdict": found.verdict,
            "job": made.unbroken["job"],
            "runs": {
                "uninterrupted": made.unbroken["id"],
                "interrupted": made.interrupted["id"],
                "resumed": self.resumed["id"],
            },
            "interrupted_at": made.interrupted["step"],
            "interruptions": [{"run": origin.run, "resumed_from": origin.step} for origin, _ in made.origins],
            "resumed_from": {"step": made.origin.step, "path": str(made.checkpoint)},
            "compared": {"steps": found.steps, "series": found.series, "tensors": found.tensors},
            "rng": self.rng,
            "first_difference": found.first_difference,
            "differences": self.differences,
            "culprit": self.signature.culprit,
            "likely_causes": found.likely_causes,
            "check": {
                "verdict": report.verdict,
                "findings": [one.document() for one in report.found.findings if one.severity != "info"],
            },
        }


def prove(
    workspace: Workspace,
    ledger: Ledger,
    plan: Plan,
    *,
    at: Sequence[int],
    how: How,
    follow: Follow,
    say: Say,
) -> Proved:
    """Make the runs of `plan` and compare them; the verdict is journalled with the last of the resumed ones.

    `at` has the steps of the interruptions, in order; empty means one half way. Raises InputError when a run
    fails or an interruption leaves nothing to compare.
    """
    made = interrupt(workspace, ledger, plan, at, how, follow, say)
    say(f"the run that goes on from step {made.origin.step}")
    resumed = made.resume(f"ckpt prove: resumed from step {made.origin.step}", [])
    found, read = compare(made, resumed)
    return Proved(made, resumed, found, read, _differences(made, resumed), _rng(made, resumed))


def compare(made: Experiment, resumed: dict[str, Any]) -> tuple[Verdict, Signature]:
    """Return the verdict on a resumed run against the unbroken one, and what the difference points to.

    The verdict is journalled with the resumed run.
    """
    last = made.unbroken["step"]
    tensors = made.tensors(made.unbroken, last)
    pair = None if tensors is None else (tensors, made.tensors(resumed, last) or {})
    pairs = [(made.curve(made.unbroken, rank), made.curve(resumed, rank)) for rank in made.ranks]
    found = verdict.worst(
        [verdict.compare(ours, theirs, None if rank else pair) for rank, (ours, theirs) in enumerate(pairs)]
    )
    report = made.report
    suspects = {
        one.state for one in report.found.findings if one.severity in ("warning", "error") and one.state
    }
    read = signature.earliest([_read(made, *one, suspects) for one in pairs])
    if resumed["state"] != "finished":
        found.likely_causes.insert(0, broken_off(resumed))
        if found.verdict == "BITWISE":
            found.verdict = "INCOMPLETE"
    if found.verdict == "DIVERGED" and read.first:
        found.first_difference = read.first
        found.likely_causes = [read.words, *found.likely_causes[1:]]
        found.likely_causes += [
            f"{one.path or one.state}: {one.message}"
            for one in report.found.findings
            if one.severity in ("warning", "error") and one.state == read.culprit
        ]
    verdict.keep(made.ledger, resumed["id"], found)
    return found, read


def _read(made: Experiment, ours: Curve, theirs: Curve, suspects: Collection[str]) -> Signature:
    origin = _since(made, ours, theirs)
    return signature.read(ours, theirs, origin, suspects, made.report.found.fp16)


def _since(made: Experiment, ours: Curve, theirs: Curve) -> int:
    """Return the step of the resume after which the runs differ: of several the last one before that."""
    origins = [origin.step for origin, _ in made.origins]
    first = signature.first_difference(ours, theirs, origins[0])
    return max((step for step in origins if first and step < first["step"]), default=origins[0])


def _differences(made: Experiment, resumed: dict[str, Any]) -> dict[str, Any]:
    """Return each series' own first difference, of several ranks the earliest."""
    found: dict[str, Any] = {}
    for rank in made.ranks:
        ours, theirs = made.curve(made.unbroken, rank), made.curve(resumed, rank)
        for name, facts in signature.differences(ours, theirs, _since(made, ours, theirs)).items():
            if name not in found or facts["step"] < found[name]["step"]:
                found[name] = facts
    return found


def _rng(made: Experiment, resumed: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the generators at every step of which both runs kept a checkpoint."""
    compared = []
    for step in range(made.origin.step + 1, made.unbroken["step"] + 1):
        ours = made.ledger.checkpoint(made.unbroken["id"], step)
        theirs = made.ledger.checkpoint(resumed["id"], step)
        if ours and theirs:
            compared.append({"step": step, "equal": ours.get("rng") == theirs.get("rng")})
    return compared
