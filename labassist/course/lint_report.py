"""What `labs lint` finds about a lab."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
