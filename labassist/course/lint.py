"""What `labs lint` does: every promise of docs/writing-a-lab.md, tried on the labs of a workspace."""

from __future__ import annotations

from collections.abc import Sequence

from labassist.course.lint_report import Report
from labassist.course.lint_run import Say, lint_run
from labassist.course.lint_static import Parse, lint_static
from labassist.course.load import Course
from labassist.workspace import Workspace


def lint(workspace: Workspace, names: Sequence[str], parse: Parse, real: bool, say: Say) -> list[Report]:
    """Return a report for each named lab, or for all; with `real` also from running it.

    A lab that is wrong statically is not run. Raises InputError when a name is no lab's.
    """
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
                lint_run(course, lab, report, say)
        reports.append(report)
    return reports
