"""`ckpt prove`: does going on from a checkpoint give, bit for bit, what an unbroken run gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labassist.ledger import verdict
from labassist.ledger.records import Verdict, to_document
from labassist.ledger.store import Ledger
from labassist.resume import signature
from labassist.resume.experiment import Experiment, Follow, Say, interrupt
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
    at: int | None,
    kill: bool,
    follow: Follow,
    say: Say,
) -> Proved:
    """Make the three runs of `plan` and compare them; the verdict is journalled with the resumed one.

    Raises InputError when a run fails or the interruption leaves nothing to compare.
    """
    made = interrupt(workspace, ledger, plan, at, kill, follow, say)
    say(f"the run that goes on from step {made.origin.step}")
    resumed = made.resume(f"ckpt prove: resumed from step {made.origin.step}", [])
    found, read = compare(made, resumed)

    def record(run: dict[str, Any]) -> dict[str, Any]:
        return {**run, "verdict": to_document(found)}

    ledger.change("verdict", resumed["id"], record)
    ledger.save_view()
    each = signature.differences(made.curve(made.unbroken), made.curve(resumed), made.origin.step)
    return Proved(made, resumed, found, read, each, _rng(made, resumed))


def compare(made: Experiment, resumed: dict[str, Any]) -> tuple[Verdict, Signature]:
    """Return the verdict on a resumed run against the unbroken one, and what the difference points to."""
    ours, theirs = made.curve(made.unbroken), made.curve(resumed)
    last = made.unbroken["step"]
    tensors = made.tensors(made.unbroken, last)
    pair = None if tensors is None else (tensors, made.tensors(resumed, last) or {})
    found = verdict.compare(ours, theirs, pair)
    report = made.report
    suspects = {
        one.state for one in report.found.findings if one.severity in ("warning", "error") and one.state
    }
    read = signature.read(ours, theirs, made.origin.step, suspects, report.found.fp16)
    if resumed["state"] != "finished":
        why = f"the resumed run {resumed['state']}: {resumed.get('reason', '')}".rstrip(": ")
        found.likely_causes.insert(0, why)
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
    return found, read


def _rng(made: Experiment, resumed: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the generators at every step of which both runs kept a checkpoint."""
    compared = []
    for step in range(made.origin.step + 1, made.unbroken["step"] + 1):
        ours = made.ledger.checkpoint(made.unbroken["id"], step)
        theirs = made.ledger.checkpoint(resumed["id"], step)
        if ours and theirs:
            compared.append({"step": step, "equal": ours.get("rng") == theirs.get("rng")})
    return compared
