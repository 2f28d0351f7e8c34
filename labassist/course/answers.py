"""What the course's commands answer with --json, and the app's screens are made of (docs/writing-a-lab.md)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from labassist.course.load import Course, text
from labassist.course.model import Lab, Step
from labassist.course.progress import LabStanding, StepStanding, how, moment
from labassist.errors import LabError


def labs_answer(course: Course, standings: Mapping[str, LabStanding]) -> dict[str, Any]:
    """Return the answer of `labs`."""
    labs = [lab_answer(standings[lab.id]) for lab in course.labs]
    good = [lab for lab in course.labs if not lab.problem]
    last = max(standings.values(), key=lambda one: one.worked, default=None)  # of equals the first
    first = next(
        (one for one in (last, *standings.values()) if one is not None and one.next is not None), None
    )
    return {
        "labs": labs,
        "next": f"{first.lab.id}/{first.next.step.id}" if first and first.next else "",
        "week": first.lab.weeks[0] if first else max((lab.weeks[1] for lab in good), default=0),
        "weeks": max((lab.weeks[1] for lab in good), default=0),
        "hours": _rounded(sum(one.hours for one in standings.values())),
        "money": _rounded(sum(one.money for one in standings.values())),
        "plan_hours": _rounded(sum(lab.hours for lab in good)),
        "plan_rent_hours": _rounded(sum(lab.rent_hours for lab in good)),
    }


def lab_answer(one: LabStanding) -> dict[str, Any]:
    """Return LAB: a lab and how far it is."""
    lab = one.lab
    return {
        "id": lab.id,
        "short": lab.short,
        "title": lab.title,
        "summary": lab.summary,
        "weeks": list(lab.weeks),
        "needs": lab.needs,
        "hours": lab.hours,
        "rent_hours": lab.rent_hours,
        "problem": lab.problem,
        "done": one.done,
        "total": len(one.steps),
        "stale": sum(step.verdict is not None and step.verdict.stale for step in one.steps),
        "spent": {"hours": _rounded(one.hours), "money": _rounded(one.money)},
        "next": None
        if one.next is None
        else {
            "id": one.next.step.id,
            "number": number(lab, one.next.step),
            "title": one.next.step.title,
        },
    }


def step_answer(course: Course, lab: Lab, one: StepStanding, lang: str) -> dict[str, Any]:
    """Return STEP: a step, its text, and where the learner stands with it."""
    step = one.step
    try:
        markdown = text(step, lang)
    except LabError as error:
        markdown = str(error)
    return {
        "id": step.id,
        "number": number(lab, step),
        "title": step.title,
        "kind": step.kind,
        "standing": one.standing,
        "stale": one.verdict is not None and one.verdict.stale,
        "text": markdown,
        "predict": None if step.predict is None else asdict(step.predict),
        "guess": _guess(one),
        "measured": None if one.measured is None else asdict(one.measured),
        "run": _run(one),
        "edit": _edit(course, lab, one),
        "hints": {"taken": list(step.hints[: one.hints]), "total": len(step.hints)},
        "check": None
        if one.verdict is None
        else {
            "ok": one.verdict.ok,
            "criteria": [asdict(criterion) for criterion in one.verdict.criteria],
            "missing": one.verdict.missing,
            "time": one.verdict.time,
            "stale": one.verdict.stale,
        },
        "how": how(lab, step),
    }


def number(lab: Lab, step: Step) -> int:
    """Return a step's number, from 1."""
    return [other.id for other in lab.steps].index(step.id) + 1


def _guess(one: StepStanding) -> dict[str, Any] | None:
    if one.guess is None:
        return None
    predict = one.step.predict
    option = predict.options.get(one.guess, "") if predict else ""
    unit = f" {predict.unit}" if predict and predict.unit else ""
    return {"value": one.guess, "text": option or f"{one.guess}{unit}", "time": one.guessed}


def _run(one: StepStanding) -> dict[str, Any] | None:
    run = one.step.run
    if run is None:
        return None
    return {
        "job": run.job,
        "profile": run.profile,
        "sets": list(run.sets),
        "words": list(run.words),
        "line": shlex.join(("labassist", *run.words)),
        "newest": one.newest,
    }


def _edit(course: Course, lab: Lab, one: StepStanding) -> dict[str, Any] | None:
    edit = one.step.edit
    if edit is None:
        return None
    path, line = course.place(lab, one.step)
    changed = one.verdict is not None and path.is_file() and path.stat().st_mtime > moment(one.verdict.time)
    place = str(path.relative_to(course.workspace.root))
    return {"file": place, "line": line, "find": edit.find, "changed": changed}


def _rounded(value: float) -> float:
    return round(value, 2)
