"""What `labs lint` does: every promise of docs/writing-a-lab.md, tried on the labs of a workspace."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labassist.course.load import Course
from labassist.workspace import Workspace

Parse = Callable[[Sequence[str]], Namespace | None]
"""Reads the words after `labassist`; None for --help. Raises InputError for what is no command line."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a lab's files."""

    place: str
    message: str


@dataclass(frozen=True)
class Altered:
    """One quantity that was spoiled, and the criteria that then failed."""

    step: str
    criterion: str
    what: str
    failed: tuple[str, ...]


@dataclass
class Report:
    """What was found about one lab."""

    lab: str
    problems: list[Fault] = field(default_factory=list)
    altered: list[Altered] = field(default_factory=list)
    kept: bool = False
    """The answer is that of an earlier run of the same files."""

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems

    def fault(self, place: str, message: str) -> None:
        """Add something wrong."""
        self.problems.append(Fault(place, message))

    def document(self) -> dict[str, Any]:
        """Return the JSON document of one lab."""
        return {
            "lab": self.lab,
            "ok": self.ok,
            "kept": self.kept,
            "problems": [asdict(one) for one in self.problems],
            "altered": [asdict(one) for one in self.altered],
        }


def lint(
    workspace: Workspace, names: Sequence[str], parse: Parse, real: bool, say: Callable[[str], None]
) -> list[Report]:
    """Return a report for each named lab, or for all; with `real` also from running it.

    A lab that is wrong statically is not run. Raises InputError when a name is no lab's.
    """
    from labassist.course.lint_static import lint_static

    course = Course.load(workspace)
    labs = [course.named(name) for name in names] if names else list(course.labs)
    reports = []
    for lab in labs:
        report = Report(lab.id)
        if lab.problem:
            place, _, message = lab.problem.partition(": ")
            report.fault(place, message)
        else:
            lint_static(course, lab, parse, report)
            if real and report.ok:
                from labassist.course.lint_run import lint_run

                lint_run(course, lab, report, say)
        reports.append(report)
    return reports
