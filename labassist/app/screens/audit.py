"""Is everything that was recorded as it was: the answer of `labassist audit`, with each problem's file and tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import AUDIT
from labassist.app.big import big
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.pager import Pager
from labassist.app.words import Line, Signs
from labassist.errors import counted

KEY = "audit"


class AuditScreen(LabScreen):
    """Audits one run, and shows what was checked and what was found."""

    NAME = AUDIT
    AUTO_FOCUS = "Pager"

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self._found: Mapping[str, Any] | None = None
        self._problem = ""

    def body(self) -> Iterable[Widget]:
        """Return the page."""
        yield Pager(plain=self.lab.plain, id="list")

    def on_mount(self) -> None:
        """Begin to audit."""
        super().on_mount()
        self.lab.desk.errands.ask(KEY, "audit", self.run)
        self._show()

    def on_unmount(self) -> None:
        """Nobody waits for the answer any more."""
        self.lab.desk.errands.drop(KEY)

    def title_line(self) -> list[Line]:
        """Return what is audited and the answer in a word."""
        parts: list[Line] = [[("Audit of run ", "strong"), (words.short(self.run), "strong")]]
        if self._found is not None:
            marks, count = self.lab.signs, len(self._found["problems"])
            said = counted(count, "problems")
            good = self._found["ok"]
            parts.append([(f"{marks.yes} ok" if good else f"{marks.no} {said}", "good" if good else "bad")])
        elif not self._problem:
            parts.append([("reading every byte …", "dim")])
        return parts

    def sources(self) -> list[Source]:
        """Return where the counts come from."""
        counts = (self._found or {}).get("checked", {})
        said = f"counted by labassist audit {self.run}, which hashes each against what the journal promised"
        return [Source(name, f"{count:,}", said) for name, count in counts.items()]

    def hear(self, message: Message) -> None:
        """Take the answer."""
        super().hear(message)
        if isinstance(message, messages.Answered) and message.key == KEY:
            self._found, self._problem = message.document, message.problem
            self._show()
            self.refresh_lines()

    def _show(self) -> None:
        marks = self.lab.signs
        if self._problem:
            lines: list[Line] = [[(f"{marks.no} no answer: ", "bad"), (self._problem, "plain")]]
        elif self._found is None:
            lines = [[("hashing checkpoints, curves, objects and code; esc gives it up", "dim")]]
        else:
            lines = audit_page(self._found, marks, plain=self.lab.plain)
        self.query_one(Pager).show(lines)


def audit_page(found: Mapping[str, Any], marks: Signs, *, plain: bool) -> list[Line]:
    """Return the answer of `audit --json` as lines: the verdict, each problem with its place, what was checked."""
    good = bool(found["ok"])
    word, kind = ("OK", "good") if good else ("ALTERED", "bad")
    lines: list[Line] = [[(row, kind)] for row in big(word, plain=plain)]
    lines.append([])
    if good:
        lines.append([(f"{marks.yes} ", "good"), ("every byte that was promised is as it was", "plain")])
    for problem in found["problems"]:
        lines.append([(f"{marks.no} {problem['code']}", "bad"), (f"  {problem['message']}", "plain")])
        if problem.get("tensor"):
            lines.append([("    tensor  ", "dim"), (problem["tensor"], "strong")])
        if problem.get("path"):
            line = f", line {problem['line']}" if problem.get("line") else ""
            lines.append([("    file    ", "dim"), (f"ledger/{problem['path']}{line}", "plain")])
        if problem.get("run"):
            lines.append([("    run     ", "dim"), (problem["run"], "plain")])
    counts = ", ".join(counted(count, name) for name, count in found["checked"].items())
    lines += [[], [("checked  ", "dim"), (counts, "plain")]]
    lines.append([("head     ", "dim"), (found["head"], "plain")])
    if found.get("not_covered"):
        lines += [[], [("no promise was made about", "head")]]
        lines += [[(f"  {path}", "dim")] for path in found["not_covered"]]
    return lines
