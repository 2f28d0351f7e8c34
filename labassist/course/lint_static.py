"""The part of the linter that only reads: texts, links, commands, jobs, edits, checks, hints, solutions."""

from __future__ import annotations

import re
import shlex
import unicodedata
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from labassist import content
from labassist.course import check_names
from labassist.course.checking import function_name
from labassist.course.lint_report import Report
from labassist.course.load import Course, step_of
from labassist.course.model import JobRun, Lab, Step
from labassist.errors import InputError
from labassist.runs.jobs import load_job, resolve
from labassist.workspace import Workspace

Parse = Callable[[Sequence[str]], Namespace | None]
"""Reads the words after `labassist`; None for --help. Raises InputError for what is no command line."""

LINES = 20
COLUMNS = 80
LAID_OUT = 78
"""Columns of a row that stands as it was written: the app has a margin, and folding would break a table."""
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PROMPT = re.compile(r"\s*\$ (labassist\b.*)")
_QUOTED = re.compile(r"`(labassist(?: [^`]*)?)`")
_STOPS = {"|", ">", ">>", "2>", "&&", ";", "&"}
_HINTED = ("edit", "run", "check")


def lint_static(course: Course, lab: Lab, parse: Parse, report: Report) -> None:
    """Add to the report whatever can be seen to be wrong without running anything."""
    home = _home(course, lab)
    for step in lab.steps:
        for path in (step.text, step.text.with_suffix(".zh.md")):
            if path.is_file():
                _text(course, home, lab, path, parse, report)
        place = f"{lab.id}/{step.id}"
        for hint in step.hints:
            _commands(course, home, hint, place, parse, report)
        for run in (step.run, step.run.lint if step.run else None):
            if run is not None:
                _run(course, home, run, place, parse, report)
        if step.kind in _HINTED and not step.hints:
            report.fault(place, f"a step of kind {step.kind} needs a hint")
        _edit(lab, step, place, report)
    known = {name for step in lab.steps for name in (f"{step.id}.md", f"{step.id}.zh.md")}
    for path in sorted((lab.folder / "steps").glob("*.md")):
        if path.name not in known:
            report.fault(f"labs/{lab.id}/steps/{path.name}", "belongs to no step")
    _checks(lab, report)


def _home(course: Course, lab: Lab) -> Workspace:
    """Return the folder whose labs/ holds a lab as its author wrote it, as a place to look jobs up in."""
    ours = content.root()
    return Workspace(ours) if lab.folder.is_relative_to(ours) else course.workspace


def _text(course: Course, home: Workspace, lab: Lab, path: Path, parse: Parse, report: Report) -> None:
    name = f"labs/{lab.id}/steps/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        report.fault(name, "is not UTF-8 text")
        return
    lines = text.rstrip("\n").split("\n")
    if len(lines) > LINES:
        report.fault(f"{name}:{LINES + 1}", f"has {len(lines)} lines; a step's text has at most {LINES}")
    for number, line in enumerate(lines, 1):
        most = LAID_OUT if line.startswith("  ") else COLUMNS
        if columns(line) > most:
            report.fault(f"{name}:{number}", f"takes {columns(line)} columns; there are {most}")
        for target in _LINK.findall(line):
            wrong = _link(target, path, lab.folder.parent)
            if wrong:
                report.fault(f"{name}:{number}", f"the link {target} {wrong}")
        _commands(course, home, line, f"{name}:{number}", parse, report)


def columns(line: str) -> int:
    """Return how many terminal columns a line takes: a Chinese sign takes two."""
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in line
    )


def _link(target: str, path: Path, labs: Path) -> str:
    """Return what is wrong with a link, or nothing."""
    url = urlsplit(target)
    if url.scheme in ("http", "https"):
        return "" if re.fullmatch(r"[\w.-]+\.\w+(:\d+)?", url.netloc) else "is no address"
    if url.scheme:
        return f"has the scheme {url.scheme}; only http, https and files of the labs can be followed"
    file = (path.parent / url.path).resolve() if url.path else path.resolve()
    if not file.is_relative_to(labs.resolve()):
        return "leads out of labs/, which is all that a workspace is sure to have"
    if not file.exists():
        return "leads to no file"
    if url.fragment and url.fragment not in set(anchors(file)):
        return f"names a heading that {file.name} does not have"
    return ""


def anchors(file: Path) -> Iterator[str]:
    """Yield the anchors of a Markdown file's headings, as they are made everywhere: small letters and hyphens."""
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        heading = re.match(r"#+\s+(.*?)\s*#*$", line)
        if heading:
            yield re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")


def _commands(course: Course, home: Workspace, line: str, place: str, parse: Parse, report: Report) -> None:
    prompt = _PROMPT.fullmatch(line)
    for command in [prompt[1]] if prompt else _QUOTED.findall(line):
        try:
            words = shlex.split(command, comments=True)[1:]
        except ValueError as error:
            report.fault(place, f"`{command}` cannot be read: {error}")
            continue
        stop = next((at for at, word in enumerate(words) if word in _STOPS), len(words))
        _words(course, home, words[:stop], f"`{command}`", place, parse, report)


def _words(
    course: Course, home: Workspace, words: list[str], said: str, place: str, parse: Parse, report: Report
) -> None:
    """Report a command line that does not parse, or names a job, profile, key, lab or step that is not there."""
    try:
        args = parse(words)
        job = getattr(args, "job", None)
        if job and not job.isupper():
            resolve(
                load_job(home, job), getattr(args, "profile", None), None, getattr(args, "sets", None) or []
            )
        lab = getattr(args, "lab", None)
        if lab and not lab.isupper():
            course.find(lab)
        for name in getattr(args, "lint_labs", None) or []:
            course.named(name)
    except InputError as error:
        report.fault(place, f"{said}: {error}")


def _run(course: Course, home: Workspace, run: JobRun, place: str, parse: Parse, report: Report) -> None:
    said = f"`{shlex.join(('labassist', *run.words))}`"
    _words(course, home, list(run.words), said, place, parse, report)


def _edit(lab: Lab, step: Step, place: str, report: Report) -> None:
    if step.edit is not None:
        path = lab.folder / step.edit.file
        if not path.is_file():
            report.fault(place, f"edit.file {step.edit.file!r} is not there")
        else:
            count = path.read_text(encoding="utf-8", errors="replace").count(step.edit.find)
            if count != 1:
                report.fault(
                    place,
                    f"edit.find {step.edit.find!r} is found {count} times in {step.edit.file}, not once",
                )
    if step.check is None:
        return
    solution = step.check.solution
    if step.kind == "edit" and not solution:
        report.fault(place, "an edit step needs check.solution, a file in solutions/")
    if solution and step.edit is None:
        report.fault(place, "check.solution stands for an edited file, and the step edits none")
    if solution and not (lab.folder / "solutions" / solution).is_file():
        report.fault(place, f"solutions/{solution} is not there")
    _alters(lab, step, place, report)


def _alters(lab: Lab, step: Step, place: str, report: Report) -> None:
    assert step.check is not None
    for alter in step.check.alter:
        if alter.run:
            try:
                if step_of(lab, alter.run).run is None:
                    report.fault(place, f"alter.run {alter.run!r}: that step has no run")
            except InputError as error:
                report.fault(place, f"alter.run: {error}")
        if alter.file:
            solved = step.edit is not None and step.edit.file == alter.file and step.check.solution
            path = lab.folder / "solutions" / step.check.solution if solved else lab.folder / alter.file
            if not path.is_file():
                report.fault(place, f"alter.file {alter.file!r} is not there")
            elif not alter.find or alter.find not in path.read_text(encoding="utf-8", errors="replace"):
                report.fault(place, f"alter.find {alter.find!r} is not in {path.relative_to(lab.folder)}")


def _checks(lab: Lab, report: Report) -> None:
    path = lab.folder / "checks.py"
    name = f"labs/{lab.id}/checks.py"
    checked = {function_name(step): step for step in lab.steps if step.check is not None}
    if not path.is_file():
        for step in checked.values():
            report.fault(name, f"is not there, and the step {step.id} is checked")
        return
    try:
        found = check_names.read(path)
    except SyntaxError as error:
        report.fault(f"{name}:{error.lineno}", f"is no Python: {error.msg}")
        return
    measured = {f"measured_{function_name(step)}" for step in lab.steps if step.predict is not None}
    for function, line in found.checks.items():
        if function not in checked:
            report.fault(f"{name}:{line}", f"{function} is the check of no step")
    for function, line in found.measures.items():
        if function not in measured:
            report.fault(f"{name}:{line}", f"{function} measures no step with a predict table")
    for function, step in checked.items():
        assert step.check is not None
        place = f"{lab.id}/{step.id}"
        if function not in found.checks:
            report.fault(place, f"checks.py has no function {function}(found: Evidence) -> list[Criterion]")
            continue
        named = {alter.criterion for alter in step.check.alter}
        literal, whole = found.criteria[function]
        for criterion in sorted(literal - named):
            report.fault(place, f"no alter makes the criterion {criterion!r} fail")
        for criterion in sorted(named - literal) if whole else ():
            report.fault(place, f"an alter names the criterion {criterion!r}, which {function} does not have")
