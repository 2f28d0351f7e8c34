"""The answer of an audit: what was checked, what was found, and what no promise covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labassist.errors import counted, some
from labassist.ledger.anchor import Anchor
from labassist.ledger.problems import Problem
from labassist.ledger.records import to_document
from labassist.record.inspect import FOREIGN_SUFFIX


@dataclass
class Audit:
    """What was checked and what was found."""

    head: str = ""
    records: int = 0
    checked: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    anchor: Anchor | None = None
    """The one that was held against the journal, or that was made."""
    not_covered: list[str] = field(default_factory=list)
    """Files that carry no promise, or not for all of their bytes; relative to the ledger folder."""

    @property
    def ok(self) -> bool:
        """True when everything that was checked is as it was."""
        return not self.problems

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `audit --json`."""
        return {
            "ok": self.ok,
            "head": self.head,
            "records": self.records,
            "checked": self.checked,
            "problems": [to_document(problem) for problem in self.problems],
            "not_covered": self.not_covered,
            "anchor": {**self.anchor._asdict(), "line": self.anchor.line} if self.anchor else None,
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        counts = ", ".join(counted(count, name) for name, count in self.checked.items())
        lines = [f"{'ok' if self.ok else 'NOT OK'}: {counted(self.records, 'runs')}; checked {counts}"]
        lines += [f"  {line}" for line in _folded(self.problems)]
        if self.not_covered:
            lines.append("not covered (no promise was made about these):")
            gone = [
                line for line in self.not_covered if FOREIGN_SUFFIX in line and line.endswith(" is gone)")
            ]
            over = [line for line in self.not_covered if FOREIGN_SUFFIX in line and " wrote over " in line]
            folded = {*gone, *over}
            lines += [f"  {line}" for line in self.not_covered if line not in folded]
            if folded:
                lines.append(
                    f"  {counted(len(folded), 'checkpoints')} in folders of their trainers: {len(gone)} deleted, "
                    f"{len(over)} written over by a later run (--json names each)"
                )
        lines.append(f"head {self.head}")
        if self.anchor:
            lines.append(self.anchor.line)
        return "\n".join(lines)

    def count(self, name: str, by: int = 1) -> None:
        """Count something as checked."""
        self.checked[name] = self.checked.get(name, 0) + by


def _folded(problems: list[Problem]) -> list[str]:
    """Return a line for each problem: code, place, run, message; what is the same of several runs is one line."""
    runs: dict[tuple[str, str, str], list[str]] = {}
    for problem in problems:
        place = problem.path + (f" line {problem.line}" if problem.line else "")
        known = runs.setdefault((problem.code, place, problem.message), [])
        if problem.run and problem.run not in problem.path and problem.run not in known:
            known.append(problem.run)
    lines = []
    for (code, place, message), named in runs.items():
        run = f"run {named[0]}" if named else ""
        if len(named) > 1:
            run = f"{len(named)} runs ({some(named, 3)})"
        lines.append(": ".join(part for part in (code, place, run, message) if part))
    return lines
