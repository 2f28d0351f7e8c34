"""Commands of the course: labs, steps, checks and hints."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers
    from labassist.course.load import Course
    from labassist.course.model import Lab, Step
    from labassist.ledger.store import Ledger

NOT_KEPT = "the ledger is read-only, so this cannot be kept"


def register(sub: Subparsers) -> None:
    """Add the commands of this group."""
    from labassist.cli.parsing import command

    parser = command(
        sub,
        "labs",
        labs,
        help="list the labs, what is done and what comes next; or check labs that you write",
        example="labassist labs\nlabassist labs --map\nlabassist labs lint --static 01-first-loop",
    )
    parser.add_argument("--map", action="store_true", help="the route by weeks, with hours and money")
    inner = parser.add_subparsers(
        title="commands", metavar="[lint]", dest="labs_command", parser_class=type(parser)
    )
    linter = command(
        inner,
        "lint",
        lint,
        help="check lab files: --static reads them, --run trains their runs and tries every check",
        example="labassist labs lint --static\nlabassist labs lint --run 01-first-loop",
    )
    linter.add_argument("lint_labs", nargs="*", metavar="LAB", help="only these labs (default: all)")
    which = linter.add_mutually_exclusive_group()
    which.add_argument("--static", action="store_true", help="only read: seconds (the default)")
    which.add_argument("--run", action="store_true", dest="real", help="run, check and spoil: kept by digest")

    parser = command(
        sub,
        "lab",
        lab,
        help="show a lab's next step, or the one that is named; commit to a guess; say that it was read",
        example="labassist lab 01\nlabassist lab 01/clip --predict b\nlabassist lab 01/1 --done",
    )
    parser.add_argument("lab", metavar="LAB[/STEP]", help="01 or 01-first-loop; a step by its name or number")
    parser.add_argument("--predict", metavar="X", help="your guess: a letter, a number or a text")
    parser.add_argument("--done", action="store_true", help="a step of kind read: it was read")
    _language(parser)

    parser = command(
        sub,
        "check",
        check,
        help="check what was recorded for a step, or for a whole lab; nothing is trained",
        example="labassist check 01/clip",
    )
    parser.add_argument("lab", metavar="LAB[/STEP]", help="01 or 01-first-loop; a step by its name or number")
    _language(parser)

    parser = command(sub, "hint", hint, help="take a step's next hint", example="labassist hint 01/attention")
    parser.add_argument("lab", metavar="LAB/STEP", help="a step by its name or number")


def _language(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lang",
        choices=("en", "zh"),
        default="en",
        help="language of the texts, where a lab has them in it (en)",
    )


def labs(args: argparse.Namespace) -> int:
    """List the labs."""
    from labassist.cli.course_text import labs_text, map_text
    from labassist.cli.output import emit
    from labassist.course.answers import labs_answer
    from labassist.course.progress import standing

    course, ledger = _opened(args)
    answer = labs_answer(course, standing(course, ledger))
    emit(answer, args.json, lambda: map_text(answer) if args.map else labs_text(answer))
    return 0


def lab(args: argparse.Namespace) -> int:
    """Show a step; keep a guess or a done-mark first."""
    from labassist.cli.course_text import lab_text
    from labassist.cli.output import emit, written
    from labassist.course import progress
    from labassist.errors import InputError

    course, ledger = _opened(args)
    found, step = course.find(args.lab)
    if args.predict is not None or args.done:
        if step is None:
            raise InputError(
                "name the step too", where=args.lab, mend=f"as labassist lab {args.lab}/{found.steps[0].id}"
            )
        _writable(ledger)
        if args.predict is not None:
            progress.guess(course, ledger, found, step, written(args.predict, "guess"))
        if args.done:
            progress.done(ledger, found, step)
    answer = _lab_answer(course, ledger, found, step, args.lang)
    emit(answer, args.json, lambda: lab_text(answer))
    return 0


def check(args: argparse.Namespace) -> int:
    """Run one check, or those of a lab; 1 when one does not pass."""
    from labassist.cli.course_text import check_text
    from labassist.cli.output import emit, say
    from labassist.course import checking, progress
    from labassist.course.answers import lab_answer, step_answer
    from labassist.errors import InputError

    course, ledger = _opened(args)
    found, step = course.find(args.lab)
    before = progress.standing(course, ledger, [found])[found.id]
    if step is not None:
        now = next(one for one in before.steps if one.step is step)
        if now.standing == "locked":
            raise InputError("guess first", where=args.lab, mend=progress.how_to_guess(found, step))
        chosen = [step]
    else:
        chosen = [one.step for one in before.steps if progress.begun(one)]
    kept, results = True, {}
    for one in [
        *chosen,
        *(more for more in progress.unanswered(found, ledger.marks()) if more not in chosen),
    ]:
        results[one.id] = checking.ask(course, found, one)
        if ledger.readonly:
            kept = False
        else:
            progress.keep(ledger, found, one, results[one.id])
    after = progress.standing(course, ledger, [found])[found.id]
    shown = [progress.with_answer(one, results[one.step.id]) for one in after.steps if one.step in chosen]
    answer = {
        "lab": lab_answer(after),
        "ok": all(one.done for one in shown) if shown else after.next is None,
        "steps": [step_answer(course, found, one, args.lang) for one in shown],
        "kept": kept,
        "note": "" if kept else NOT_KEPT,
    }
    if not kept:
        say(f"note: {NOT_KEPT}")
    emit(answer, args.json, lambda: check_text(answer))
    return 0 if answer["ok"] else 1


def hint(args: argparse.Namespace) -> int:
    """Take the next hint."""
    from labassist.cli.course_text import hint_text
    from labassist.cli.output import emit, say
    from labassist.course import progress
    from labassist.errors import InputError

    course, ledger = _opened(args)
    found, step = course.find(args.lab)
    if step is None:
        raise InputError(
            "name the step too", where=args.lab, mend=f"as labassist hint {args.lab}/{found.steps[0].id}"
        )
    number, kept = progress.hint(ledger, found, step)
    answer = {
        "lab": found.id,
        "step": step.id,
        "number": number,
        "total": len(step.hints),
        "hint": step.hints[number - 1],
        "hints": list(step.hints[:number]),
        "kept": kept,
        "note": "" if kept else NOT_KEPT,
    }
    if not kept:
        say(f"note: {NOT_KEPT}")
    emit(answer, args.json, lambda: hint_text(answer))
    return 0


def lint(args: argparse.Namespace) -> int:
    """Check lab files; 1 when something is wrong with them."""
    from labassist.cli.course_text import lint_text
    from labassist.cli.output import emit, say
    from labassist.course import lint as linter
    from labassist.workspace import Workspace

    workspace = Workspace.find(args.workspace)
    reports = linter.lint(workspace, args.lint_labs, _parsed, real=args.real, say=say)
    answer: dict[str, Any] = {
        "ok": all(report.ok for report in reports),
        "labs": [report.document() for report in reports],
    }
    emit(answer, args.json, lambda: lint_text(answer))
    return 0 if answer["ok"] else 1


def _parsed(words: Sequence[str]) -> argparse.Namespace | None:
    """Read a command line that stands in a lab, with the real parser."""
    import contextlib
    import io

    from labassist.cli.main import parse
    from labassist.cli.parsing import UsageError
    from labassist.errors import InputError

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return parse(words)
    except UsageError as error:
        raise InputError(str(error)) from error
    except SystemExit:
        return None


def _opened(args: argparse.Namespace) -> tuple[Course, Ledger]:
    from labassist.cli.opening import opened
    from labassist.course.load import Course

    workspace, ledger = opened(args)
    return Course.load(workspace), ledger


def _lab_answer(course: Course, ledger: Ledger, found: Lab, step: Step | None, lang: str) -> dict[str, Any]:
    from labassist.course.answers import lab_answer, step_answer
    from labassist.course.progress import standing

    one = standing(course, ledger, [found])[found.id]
    coming = one.next.step if one.next else None
    return {
        "lab": lab_answer(one),
        "step": (step or coming or found.steps[-1]).id,
        "next": coming.id if coming else "",
        "steps": [step_answer(course, found, each, lang) for each in one.steps],
        "kept": True,
        "note": "",
    }


def _writable(ledger: Ledger) -> None:
    from labassist.errors import LedgerError

    if ledger.readonly:
        raise LedgerError(
            NOT_KEPT, where=str(ledger.folder), mend="work in a workspace of your own: labassist new DIR"
        )
