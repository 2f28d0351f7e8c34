"""Where a learner stands: guesses, done-marks, hints and verdicts, kept in the ledger, and what follows from them.

Nothing here runs a check. A verdict stands until a failing re-check; when something that its check read has
changed since, it is called stale.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from labassist.course import noted
from labassist.course.checking import Answer
from labassist.course.evidence import settings
from labassist.course.load import Course
from labassist.course.model import Criterion, Lab, Measured, Standing, Step
from labassist.errors import InputError
from labassist.ledger.records import CriterionLine, Mark, Outcome
from labassist.ledger.store import Ledger
from labassist.runs.terms import spent

PAUSE_S = 30 * 60.0
"""A longer gap between two things that a learner did was a break, not work."""

Marks = list[Mark]


@dataclass(frozen=True)
class Verdict:
    """What a check said, and when."""

    ok: bool
    criteria: tuple[Criterion, ...]
    missing: str
    time: str
    stale: bool
    """Something that the check read has changed since."""


@dataclass(frozen=True)
class StepStanding:
    """Where a learner stands with one step."""

    step: Step
    standing: Standing
    guess: str | None
    guessed: str
    """When, empty without a guess."""
    hints: int
    """How many were taken."""
    verdict: Verdict | None
    measured: Measured | None
    newest: str
    """The newest run that fits the step, in whatever state; empty without one."""

    @property
    def done(self) -> bool:
        """True when the learner may call it done."""
        return self.standing == "done"


@dataclass(frozen=True)
class LabStanding:
    """Where a learner stands with a lab."""

    lab: Lab
    steps: tuple[StepStanding, ...]
    hours: float
    """Time spent, from what was journalled; breaks are not counted."""
    money: float
    """What its runs cost on rented machines, where a price was recorded."""
    worked: float
    """When it was worked on last, in seconds since the epoch; 0 where it never was."""

    @property
    def done(self) -> int:
        """How many steps are done."""
        return sum(one.done for one in self.steps)

    @property
    def next(self) -> StepStanding | None:
        """The first step that is not done."""
        return next((one for one in self.steps if not one.done), None)


def standing(course: Course, ledger: Ledger, labs: Iterable[Lab] | None = None) -> dict[str, LabStanding]:
    """Return lab id -> where the learner stands, for some labs or all. Reads the ledger and hashes small files."""
    marks = ledger.marks()
    return {lab.id: _lab(course, ledger, lab, marks) for lab in (course.labs if labs is None else labs)}


def guess(course: Course, ledger: Ledger, lab: Lab, step: Step, said: str) -> str:
    """Journal a guess and return it as it is kept.

    Raises InputError for a step without a question, a wrong letter, what is no number where one is asked for,
    and another guess than the one that was measured already; LedgerError when the ledger cannot be written.
    """
    value = _guessed(lab, step, said)

    def fn(marks: Marks) -> Mark | None:
        before = noted.guess(marks, lab.id, step.id)
        if before == value:
            return None
        source = _measured_by(course, ledger, lab, step, marks) if before is not None else ""
        if source:
            raise InputError(
                f"you guessed {before}, and that was measured since ({source}): a guess stands",
                where=f"{lab.id}/{step.id}",
            )
        return Mark(lab.id, step.id, "guess", now(), guess=value)

    ledger.mark(fn)
    return value


def done(ledger: Ledger, lab: Lab, step: Step) -> None:
    """Journal that a read step was read. Raises InputError for a step that is not done by saying so."""
    if step.kind != "read":
        raise InputError(
            f"a step of kind {step.kind} is not done by saying so",
            where=f"{lab.id}/{step.id}",
            mend=f"it is done when {how(lab, step)}",
        )

    def fn(marks: Marks) -> Mark | None:
        before = any(mark.kind == "done" for mark in _of(marks, lab, step))
        return None if before else Mark(lab.id, step.id, "done", now())

    ledger.mark(fn)


def hint(ledger: Ledger, lab: Lab, step: Step) -> tuple[int, bool]:
    """Take the next hint: return its number from 1, and whether that it was taken is kept.

    After the last one the last is returned again. Raises InputError when the step has no hints.
    """
    if not step.hints:
        raise InputError("this step has no hints", where=f"{lab.id}/{step.id}")
    number = 0

    def fn(marks: Marks) -> Mark | None:
        nonlocal number
        taken = _hints(_of(marks, lab, step))
        number = min(taken + 1, len(step.hints))
        return None if taken >= len(step.hints) else Mark(lab.id, step.id, "hint", now(), hint=number)

    if ledger.readonly:
        fn(ledger.marks())
        return number, False
    ledger.mark(fn)
    return number, True


def keep(ledger: Ledger, lab: Lab, step: Step, answer: Answer) -> None:
    """Journal what a check found, unless the last one found the same in the same artefacts.

    What merely is not there yet is kept only where it re-opens a step that was done or failed.
    """
    mark = Mark(
        lab.id,
        step.id,
        "check",
        now(),
        ok=answer.ok,
        missing=answer.missing,
        criteria=[CriterionLine(c.name, c.ok, c.expected, c.got, c.source) for c in answer.criteria],
        measured=None
        if answer.measured is None
        else Outcome(answer.measured.text, answer.measured.source, answer.measured.option),
        evidence=answer.evidence,
    )

    def fn(marks: Marks) -> Mark | None:
        last = _last_check(_of(marks, lab, step))
        if last is None:
            return None if answer.missing and not answer.measured else mark
        same = all(getattr(last, key) == getattr(mark, key) for key in ("ok", "missing", "evidence"))
        before = _criteria(last) == answer.criteria and _measured(last) == answer.measured
        return None if same and before else mark

    ledger.mark(fn)


def unanswered(lab: Lab, marks: Marks) -> list[Step]:
    """Return the guessed steps whose measurement a check may find: predict steps that have none yet."""
    found = []
    for step in lab.steps:
        mine = _of(marks, lab, step)
        last = _last_check(mine)
        if step.kind == "predict" and _guess(mine) and (last is None or _measured(last) is None):
            found.append(step)
    return found


def begun(one: StepStanding) -> bool:
    """Say whether there may be something to check: an exercise, a run that fits, or an earlier verdict."""
    if one.standing == "locked" or one.step.kind in ("read", "predict"):
        return False
    return bool(
        one.step.kind != "run" or one.newest or one.verdict or not (one.step.run and one.step.run.job)
    )


def now() -> str:
    """Return the UTC time as the ledger writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def how(lab: Lab, step: Step) -> str:
    """Return what makes a step done, to be read after `it is done when`."""
    if step.kind == "read":
        return f"you say so: labassist lab {lab.short}/{step.id} --done"
    if step.kind == "predict":
        return f"you have guessed: {how_to_guess(lab, step)}"
    if step.kind == "run" and step.check is None:
        return "a run with these values has finished"
    return f"its check passes: labassist check {lab.short}/{step.id}"


def how_to_guess(lab: Lab, step: Step) -> str:
    """Return the command line that commits to a guess."""
    return f"labassist lab {lab.short}/{step.id} --predict {_choices(step)}"


def with_answer(one: StepStanding, answer: Answer) -> StepStanding:
    """Return a standing with the verdict that was just given, where the ledger did not take it.

    A step whose artefacts are not there yet shows what it lacks, which is not journalled.
    """
    if one.step.check is None:
        return replace(one, measured=answer.measured or one.measured)
    time = one.verdict.time if one.verdict else now()
    verdict = Verdict(answer.ok, answer.criteria, answer.missing, time, False)
    state: Standing = "done" if answer.ok else "open" if answer.missing else "failed"
    return replace(one, standing=state, verdict=verdict, measured=answer.measured or one.measured)


def locked(step: Step, marks: Marks) -> bool:
    """Say whether a step of this name waits for a guess before its run; `marks` are the step's."""
    return step.predict is not None and step.kind != "predict" and _guess(marks) is None


# --- what follows from the marks


def _lab(course: Course, ledger: Ledger, lab: Lab, marks: Marks) -> LabStanding:
    steps = tuple(_step(course, ledger, lab, step, _of(marks, lab, step)) for step in lab.steps)
    times = [mark.time for mark in marks if mark.lab == lab.id]
    money = 0.0
    for run in noted.runs_of_lab(ledger, lab.id):
        times += [str(run.get("created", "")), str(run.get("ended", ""))]
        money += spent(run, time.time())
    return LabStanding(lab, steps, _worked(times) / 3600, money, max(map(moment, times), default=0.0))


def _step(course: Course, ledger: Ledger, lab: Lab, step: Step, marks: Marks) -> StepStanding:
    last = _last_check(marks)
    verdict = None
    if last is not None and step.check is not None:
        stale = any(
            noted.digest(name, ledger, lab.id, lab.folder, course.folder(lab)) != digest
            for name, digest in last.evidence.items()
        )
        verdict = Verdict(last.ok, _criteria(last), last.missing, last.time, stale)
    fitting = _fitting(course, ledger, lab, step)
    newest = str(fitting[0]["id"]) if fitting else ""
    given = next((mark for mark in reversed(marks) if mark.kind == "guess"), None)
    return StepStanding(
        step,
        _standing(step, marks, verdict, fitting),
        None if given is None else given.guess,
        "" if given is None else given.time,
        _hints(marks),
        verdict,
        None if last is None else _measured(last),
        newest,
    )


def _standing(step: Step, marks: Marks, verdict: Verdict | None, fitting: list[dict[str, Any]]) -> Standing:
    if locked(step, marks):
        return "locked"
    if step.kind == "read":
        return "done" if any(mark.kind == "done" for mark in marks) else "open"
    if step.kind == "predict":
        return "done" if _guess(marks) is not None else "open"
    if step.check is None:
        return "done" if any(run["state"] == "finished" for run in fitting) else "open"
    if verdict is None or verdict.missing:
        return "open"
    return "done" if verdict.ok else "failed"


def _fitting(course: Course, ledger: Ledger, lab: Lab, step: Step) -> list[dict[str, Any]]:
    """Return the runs, in whatever state, that a step's job and values describe, newest first."""
    if step.run is None or not step.run.job:
        return []
    try:
        profile, config = settings(course, lab, step.run)
    except InputError:
        # The learner's own job file has a fault, or lacks the key: `labassist run` names it.
        return []
    return noted.of_step(noted.runs_of(ledger, step.run.job, profile, config))


def _measured_by(course: Course, ledger: Ledger, lab: Lab, step: Step, marks: Marks) -> str:
    """Return what measured the guessed thing after the guess, empty while nothing did."""
    mine = _of(marks, lab, step)
    last = _last_check(mine)
    measured = None if last is None else _measured(last)
    if measured is not None:
        return measured.source
    given = next((mark.time for mark in reversed(mine) if mark.kind == "guess"), "")
    for run in _fitting(course, ledger, lab, step):
        # A live run shows its curve already.
        if run["state"] in ("finished", "running") and str(run["created"]) >= given:
            return f"run {run['id']}"
    return ""


def _guessed(lab: Lab, step: Step, said: str) -> str:
    """Return a guess in the form in which it is kept."""
    where = f"{lab.id}/{step.id}"
    if step.predict is None:
        raise InputError("there is nothing to guess at this step", where=where)
    text = " ".join(said.split())
    if step.predict.options:
        if text.lower() not in step.predict.options:
            letters = ", ".join(f"{key} ({value})" for key, value in step.predict.options.items())
            raise InputError(f"{said!r} is none of the answers", where=where, mend=f"choose from {letters}")
        return text.lower()
    if not step.predict.unit:
        if not 0 < len(text) <= 200:
            raise InputError("a guess is a text of 1 to 200 signs", where=where)
        return text
    number = text.removesuffix(step.predict.unit).strip()
    if re.fullmatch(r"[+-]?(0,\d+|\d+,(\d{1,2}|\d{4,}))(e[+-]?\d+)?", number, re.IGNORECASE):
        number = number.replace(",", ".")  # 12,5; but 1,234 may be a thousand
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        mend = f"give a number of {step.predict.unit}, as 1250 or 0.5"
        raise InputError(f"{said!r} is no number", where=where, mend=mend)
    return number


def _choices(step: Step) -> str:
    if step.predict is None or not step.predict.options:
        return "NUMBER" if step.predict and step.predict.unit else "TEXT"
    return "|".join(step.predict.options)


def _of(marks: Marks, lab: Lab, step: Step) -> Marks:
    return [mark for mark in marks if mark.lab == lab.id and mark.step == step.id]


def _guess(marks: Marks) -> str | None:
    return next((mark.guess for mark in reversed(marks) if mark.kind == "guess"), None)


def _hints(marks: Marks) -> int:
    return max((mark.hint for mark in marks if mark.kind == "hint"), default=0)


def _last_check(marks: Marks) -> Mark | None:
    return next((mark for mark in reversed(marks) if mark.kind == "check"), None)


def _criteria(mark: Mark) -> tuple[Criterion, ...]:
    return tuple(Criterion(one.name, one.ok, one.expected, one.got, one.source) for one in mark.criteria)


def _measured(mark: Mark) -> Measured | None:
    one = mark.measured
    return None if one is None else Measured(one.text, one.source, one.option)


def _worked(times: Iterable[str]) -> float:
    """Return the seconds between the first and the last of these times, without the breaks."""
    moments = sorted(moment for moment in map(moment, times) if moment)
    gaps = (later - earlier for earlier, later in pairwise(moments))
    return sum(gap for gap in gaps if gap <= PAUSE_S)


def moment(time: str) -> float:
    """Return a ledger's time as seconds since the epoch; 0 for one that is none."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
