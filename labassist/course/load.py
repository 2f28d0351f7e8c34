"""The course of a workspace: its labs, found and named, and the texts of their steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from labassist import content
from labassist.course.lab_file import FILE, faulty, read_lab
from labassist.course.model import Lab, Step
from labassist.errors import InputError, did_you_mean
from labassist.workspace import Workspace


@dataclass(frozen=True)
class Course:
    """All labs of a workspace, in the order of their names; a faulty one has a `problem` and no steps."""

    workspace: Workspace
    labs: tuple[Lab, ...]

    @classmethod
    def load(cls, workspace: Workspace, lint: bool = False) -> Course:
        """Read the labs of the package, and those in the workspace's labs/ that the package lacks.

        With `lint` each run step stands for what the linter runs in its place. Nothing of a fault in a lab is
        raised; raises InputError when this installation has no content.
        """
        found: dict[str, Path] = {}
        for labs in (content.root() / "labs", workspace.labs):
            for path in labs.glob(f"*/{FILE}"):
                found.setdefault(path.parent.name, path.parent)
        read = [_read(found[name]) for name in sorted(found)]
        named = [replace(lab, short=_short(lab.id, found)) for lab in read]
        return cls(workspace, tuple(map(_for_lint, named) if lint else named))

    def lab(self, name: str) -> Lab:
        """Return the lab called `01-first-loop`, or `01` for short.

        Raises InputError when there is none, when several begin so, or when its files have a fault.
        """
        found = self.named(name)
        if found.problem:
            raise InputError(found.problem)
        return found

    def named(self, name: str) -> Lab:
        """Return the lab of this name, faulty or not. Raises InputError when there is none, or several."""
        ids = [lab.id for lab in self.labs]
        matches = [lab for lab in self.labs if name == lab.id] or [
            lab for lab in self.labs if name and lab.id.startswith(name)
        ]
        if len(matches) > 1:
            raise InputError(
                f"{name!r} means {', '.join(lab.id for lab in matches)}", mend="give more of the name"
            )
        if not matches:
            raise InputError(
                f"there is no lab {name!r}{did_you_mean(name, ids)}",
                mend=f"labs here: {', '.join(ids) or 'none'}",
            )
        return matches[0]

    def find(self, name: str) -> tuple[Lab, Step | None]:
        """Return the lab and step of `LAB/STEP`, a step by its id or number from 1; of `LAB` alone no step."""
        lab_name, slash, step_name = name.partition("/")
        lab = self.lab(lab_name)
        return lab, step_of(lab, step_name) if slash else None

    def folder(self, lab: Lab) -> Path:
        """Return the learner's folder of a lab, in the workspace."""
        return self.workspace.labs / lab.id

    def place(self, lab: Lab, step: Step) -> tuple[Path, int]:
        """Return the file that an edit step opens, absolute, and its line.

        Where its text was edited away: the line that sets the same name, the nearest to where the text was; else
        the line where the text was in the lab's own file, which the learner's is a copy of; else line 1.
        """
        assert step.edit is not None
        path, find = self.folder(lab) / step.edit.file, step.edit.find
        lines = _lines(path)
        for at, line in enumerate(lines, 1):
            if find in line:
                return path, at
        first = next(
            (at for at, line in enumerate(_lines(lab.folder / step.edit.file), 1) if find in line), 1
        )
        name = find.partition("=")[0].strip() if "=" in find else ""
        same = [at for at, line in enumerate(lines, 1) if name and line.partition("=")[0].strip() == name]
        return path, min(same, key=lambda at: abs(at - first), default=max(1, min(first, len(lines))))


def _lines(path: Path) -> list[str]:
    """Return a file's lines; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []


def step_of(lab: Lab, name: str) -> Step:
    """Return a step by its id, or by its number from 1. Raises InputError, naming the nearest."""
    if name.isdecimal() and 1 <= int(name) <= len(lab.steps):
        return lab.steps[int(name) - 1]
    ids = [step.id for step in lab.steps]
    if name in ids:
        return lab.steps[ids.index(name)]
    raise InputError(
        f"lab {lab.id} has no step {name!r}{did_you_mean(name, ids)}",
        mend=f"steps: {', '.join(f'{at} {one}' for at, one in enumerate(ids, 1))}",
    )


def text(step: Step, lang: str = "en") -> str:
    """Return a step's Markdown, in Chinese where that is asked for and there. Raises InputError when unreadable."""
    twin = step.text.with_suffix(".zh.md")
    path = twin if lang == "zh" and twin.is_file() else step.text
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"the step's text cannot be read: {reason}", where=str(path)) from error


def _read(folder: Path) -> Lab:
    try:
        return read_lab(folder)
    except InputError as error:
        return faulty(folder, str(error))


def _short(lab_id: str, ids: Iterable[str]) -> str:
    number = lab_id.partition("-")[0]
    return number if number.isdecimal() and sum(one.startswith(number) for one in ids) == 1 else lab_id


def _for_lint(lab: Lab) -> Lab:
    steps = (replace(step, run=step.run.lint) if step.run and step.run.lint else step for step in lab.steps)
    return replace(lab, steps=tuple(steps))
