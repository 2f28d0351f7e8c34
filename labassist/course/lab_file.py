"""Reads lab.toml strictly: every fault is one line that names the file, its line and the mend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from labassist.course.model import Alter, Check, Edit, JobRun, Lab, Predict, Step, StepKind
from labassist.course.toml_lines import Place, line_of
from labassist.errors import InputError, did_you_mean
from labassist.runs.config import read_toml

FILE = "lab.toml"
KINDS: tuple[str, ...] = get_args(StepKind)
NEEDS_TABLE = {"predict": "predict", "run": "run", "edit": "edit", "check": "check"}
"""Kind of a step -> the table without which it makes no sense. An edit needs its check too."""

_LAB_KEYS = ("title", "summary", "weeks", "needs", "hours", "rent_hours", "steps")
_STEP_KEYS = ("id", "title", "kind", "predict", "run", "edit", "hints", "check")
_RUN_KEYS = ("job", "profile", "set", "command", "lint")
_ALTER_KEYS = (
    "criterion",
    "run",
    "series",
    "by",
    "config",
    "field",
    "to",
    "tensor",
    "verdict",
    "file",
    "find",
    "put",
)
_NAME = re.compile(r"[a-z][a-z0-9-]*")


def read_lab(folder: Path) -> Lab:
    """Return the lab of a folder. Raises InputError, which names line and mend, on any fault in lab.toml.

    The texts of the steps must be there; nothing else is opened.
    """
    path = folder / FILE
    name = f"labs/{folder.name}/{FILE}"
    tables = read_toml(path, name)
    file = _File(name, path.read_text(encoding="utf-8"))
    top = _Table(file, (), tables, _LAB_KEYS)
    steps = tuple(_step(table, folder) for table in top.tables("steps"))
    if not steps:
        raise file.fault((), "it has no steps", "write [[steps]]")
    seen: dict[str, int] = {}
    for at, step in enumerate(steps):
        if step.id in seen:
            raise file.fault(("steps", at, "id"), f"a second step {step.id!r}", "give each its own id")
        seen[step.id] = at
    return Lab(
        id=folder.name,
        title=top.text("title"),
        summary=top.text("summary"),
        weeks=_weeks(top),
        needs=top.text("needs"),
        hours=top.number("hours", 0.0),
        rent_hours=top.number("rent_hours", 0.0),
        folder=folder,
        steps=steps,
    )


def faulty(folder: Path, problem: str) -> Lab:
    """Return what stands for a lab that cannot be read: its name and what is wrong."""
    return Lab(folder.name, folder.name, "", (0, 0), "", 0.0, 0.0, folder, (), problem)


@dataclass(frozen=True)
class _File:
    """A lab.toml as it is named in errors, and its text for finding lines."""

    name: str
    text: str

    def fault(self, place: Place, what: str, mend: str) -> InputError:
        return InputError(what, where=f"{self.name}:{line_of(self.text, place)}", mend=mend)


class _Table:
    """One table, all of its keys known; each value is asked for by its type."""

    def __init__(
        self, file: _File, place: tuple[str | int, ...], data: Mapping[str, Any], known: Iterable[str]
    ) -> None:
        self.file, self.place, self.data = file, place, data
        names = list(known)
        for key in data:
            if key not in names:
                raise self.fault(
                    key, f"unknown key {key!r}{did_you_mean(key, names)}", f"there are {', '.join(names)}"
                )

    def fault(self, key: str, what: str, mend: str) -> InputError:
        return self.file.fault((*self.place, key) if key else self.place, what, mend)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default, 'it is text: write {} = "…"')
        if not isinstance(value, str) or not (value.strip() or value == default):
            raise self.fault(key, f"{key} must be text", f'write {key} = "…"')
        return value

    def number(self, key: str, default: float) -> float:
        value = self._get(key, default, "")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self.fault(key, f"{key} must be a number from 0 on", f"write {key} = 1.5")
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._get(key, [], "")
        if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
            raise self.fault(key, f"{key} must be a list of texts", f'write {key} = ["…"]')
        return tuple(value)

    def table(self, key: str, known: Iterable[str]) -> _Table | None:
        if key not in self.data:
            return None
        value = self.data[key]
        if not isinstance(value, dict):
            raise self.fault(key, f"{key} must be a table", f"write {key} = {{ … }}")
        return _Table(self.file, (*self.place, key), value, known)

    def tables(self, key: str, known: Iterable[str] = _STEP_KEYS) -> list[_Table]:
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.fault(key, f"{key} must be a list of tables", f"write [[{key}]], or {key} = [{{ … }}]")
        names = list(known)
        return [_Table(self.file, (*self.place, key, at), one, names) for at, one in enumerate(value)]

    def _get(self, key: str, default: Any, mend: str) -> Any:
        if key not in self.data and default is None:
            raise self.fault("", f"{key} is missing", mend.format(key))
        return self.data.get(key, default)


def _weeks(top: _Table) -> tuple[int, int]:
    value = top.data.get("weeks")
    if not (
        isinstance(value, list)
        and len(value) == 2
        and all(type(one) is int for one in value)
        and 1 <= value[0] <= value[1]
    ):
        raise top.fault(
            "weeks" if "weeks" in top.data else "", "weeks must be two week numbers", "write weeks = [1, 4]"
        )
    return value[0], value[1]


def _step(table: _Table, folder: Path) -> Step:
    step_id = table.text("id")
    if not _NAME.fullmatch(step_id) or step_id.startswith("measured-"):
        raise table.fault(
            "id",
            f"{step_id!r} cannot be a step's id",
            "use small letters, digits and `-`; begin with a letter",
        )
    kind = table.text("kind")
    if kind not in KINDS:
        raise table.fault(
            "kind", f"unknown kind {kind!r}{did_you_mean(kind, KINDS)}", f"there are {', '.join(KINDS)}"
        )
    step = Step(
        id=step_id,
        title=table.text("title"),
        kind=kind,  # type: ignore[arg-type]
        text=folder / "steps" / f"{step_id}.md",
        predict=_predict(table.table("predict", ("question", "options", "unit"))),
        run=_run(table.table("run", _RUN_KEYS), folder.name),
        edit=_edit(table.table("edit", ("file", "find"))),
        hints=table.texts("hints"),
        check=_check(table.table("check", ("alter", "solution", "seconds"))),
    )
    needed = NEEDS_TABLE.get(kind)
    for name in (needed, "check" if kind == "edit" else None):
        if name and getattr(step, name) is None:
            raise table.fault("", f"a step of kind {kind!r} needs a table {name!r}", f"write [steps.{name}]")
    if step.run is not None and kind != "run":
        raise table.fault("run", f"a step of kind {kind!r} has no run", 'take it out, or write kind = "run"')
    if step.edit is not None and kind not in ("edit", "run"):
        raise table.fault(
            "edit", f"a step of kind {kind!r} has no edit", 'take it out, or write kind = "edit"'
        )
    if step.check is not None and kind in ("read", "predict"):
        raise table.fault(
            "check", f"a step of kind {kind!r} is not checked", "take it out, or change the kind"
        )
    if not step.text.is_file():
        raise table.fault("id", f"its text steps/{step_id}.md is not there", "write it")
    return step


def _predict(table: _Table | None) -> Predict | None:
    if table is None:
        return None
    options = table.data.get("options", {})
    good = isinstance(options, dict) and all(
        len(key) == 1 and key.isalpha() and isinstance(value, str) and value for key, value in options.items()
    )
    if not good or len(options) == 1:
        raise table.fault(
            "options", "options are two or more letters, each with its text", 'write { a = "…", b = "…" }'
        )
    if options and "unit" in table.data:
        raise table.fault("unit", "a choice has no unit", "take it out, or take the options out")
    return Predict(table.text("question"), dict(options), table.text("unit", ""))


def _run(table: _Table | None, lab: str) -> JobRun | None:
    if table is None:
        return None
    job, command = table.text("job", ""), table.texts("command")
    if bool(job) == bool(command):
        raise table.fault(
            "", "a run names a job or a command", 'write job = "LAB/JOB", or command = ["replay", "@last"]'
        )
    if command and ("profile" in table.data or "set" in table.data):
        raise table.fault(
            "command", "profile and set belong to a job", "write them among the command's words"
        )
    lint = _run(table.table("lint", ("profile", "set", "job", "command")), lab) if _complete(table) else None
    if job and "/" not in job:
        job = f"{lab}/{job}"
    if command[:1] == ("run",) and len(command) > 1 and "/" in command[1]:
        return JobRun(command[1], *_words(command[2:]), command, lint)
    return JobRun(job, table.text("profile", ""), table.texts("set"), command, lint)


def _words(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the profile and the sets that the words of a `run` command give."""
    pairs = list(pairwise(words)) + [
        tuple(word.split("=", 1)) for word in words if word.startswith(("--set=", "--profile="))
    ]
    profile = next((value for option, value in reversed(pairs) if option == "--profile"), "")
    return profile, tuple(value for option, value in pairs if option == "--set")


def _complete(table: _Table) -> bool:
    """Say whether a run has a `lint` table, after giving it the job that it goes without saying."""
    lint = table.data.get("lint")
    if isinstance(lint, dict) and "command" not in lint and "job" in table.data:
        lint.setdefault("job", table.data["job"])
    return lint is not None


def _edit(table: _Table | None) -> Edit | None:
    return None if table is None else Edit(table.text("file"), table.text("find"))


def _check(table: _Table | None) -> Check | None:
    if table is None:
        return None
    seconds = table.number("seconds", 60.0)
    if not seconds:
        raise table.fault("seconds", "a check needs some time", "write seconds = 60")
    alters = tuple(_alter(one) for one in table.tables("alter", _ALTER_KEYS))
    return Check(alters, table.text("solution", ""), seconds)


def _alter(table: _Table) -> Alter:
    quantities = [
        key for key in ("series", "config", "field", "tensor", "verdict", "file") if key in table.data
    ]
    if len(quantities) != 1:
        raise table.fault(
            "", "an alter changes one quantity", "name one of series, config, field, tensor, verdict, file"
        )
    partner = {"series": "by", "config": "to", "field": "to", "file": "find"}.get(quantities[0])
    if partner and partner not in table.data:
        raise table.fault("", f"an alter of a {quantities[0]} needs {partner!r}", f"write {partner} = …")
    by = table.data.get("by", 1.0)
    if isinstance(by, bool) or not isinstance(by, int | float):
        raise table.fault("by", "by must be a number", "write by = 10.0")
    return Alter(
        criterion=table.text("criterion"),
        run=table.text("run", ""),
        series=table.text("series", ""),
        by=float(by),
        config=table.text("config", ""),
        field=table.text("field", ""),
        to=table.data.get("to"),
        tensor=table.text("tensor", ""),
        verdict=table.text("verdict", ""),
        file=table.text("file", ""),
        find=table.text("find", ""),
        put=table.text("put", ""),
    )
