"""Why a GPU runs below its highest clock: names, severity and accumulated time of NVML's reason bits.

The bits are those of `nvmlDeviceGetCurrentClocksEventReasons` (older name: clocks throttle reasons). A single
snapshot says little, since a power cap comes and goes many times a second: judge by `ThrottleTime`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Severity = Literal["neutral", "warn", "alarm"]

_ORDER: dict[Severity, int] = {"neutral": 0, "warn": 1, "alarm": 2}


class Reason(NamedTuple):
    """One reason for a lowered clock."""

    bit: int
    name: str
    severity: Severity
    meaning: str


# The power cap is where a busy GPU should be; a clock limit by voltage reliability is where an unloaded cap ends.
REASONS = (
    Reason(0x001, "idle", "neutral", "nothing runs on the GPU"),
    Reason(0x002, "clock setting", "neutral", "someone set the application clocks"),
    Reason(0x004, "SW power cap", "neutral", "at its power limit: normal under load"),
    Reason(0x008, "HW slowdown", "alarm", "the hardware halves its clocks: heat, power brake or supply"),
    Reason(0x010, "sync boost", "neutral", "held to the clock of its slowest partner"),
    Reason(0x020, "SW thermal", "warn", "the driver lowers clocks to stay below its temperature target"),
    Reason(0x040, "HW thermal", "alarm", "too hot: the hardware lowers clocks by half or more"),
    Reason(0x080, "power brake", "alarm", "the power supply asked the GPU to slow down"),
    Reason(0x100, "display clock", "neutral", "a display sets the clock"),
    Reason(0x200, "board limit", "neutral", "at a limit of the board"),
    Reason(0x400, "reliability", "neutral", "at the highest clock its voltage allows"),
)

_BY_NAME = {reason.name: reason for reason in REASONS}
_KNOWN = sum(reason.bit for reason in REASONS)


def names(bits: int) -> list[str]:
    """Return the reasons in `bits` by name; bits nobody has named yet come last, together, in hex (`0x8000`)."""
    found = [reason.name for reason in REASONS if bits & reason.bit]
    unknown = bits & ~_KNOWN
    return [*found, hex(unknown)] if unknown else found


def severity(name: str) -> Severity:
    """Return how bad a reason is. An unknown bit is neutral: it is shown, but no ground for an alarm."""
    reason = _BY_NAME.get(name)
    return reason.severity if reason else "neutral"


def meaning(name: str) -> str:
    """Return what a reason means, in a few words."""
    reason = _BY_NAME.get(name)
    return reason.meaning if reason else "a reason that this labassist does not know"


def worst(found: Iterable[str]) -> Severity:
    """Return the highest severity among the named reasons; neutral for none."""
    return max((severity(name) for name in found), key=_ORDER.__getitem__, default="neutral")


LONGEST_GAP_S = 5.0
"""What happened in a longer silence than this is unknown."""


class ThrottleTime:
    """Seconds spent under each reason, from samples: each sample stands for the time since the one before."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.total = 0.0
        self._last: float | None = None

    def add(self, time: float, bits: int | None) -> None:
        """Account one sample taken at `time` (seconds). `None`: the GPU did not say, nothing is counted."""
        last, self._last = self._last, time
        if last is None or bits is None:
            return
        gap = min(max(time - last, 0.0), LONGEST_GAP_S)
        self.total += gap
        for name in names(bits):
            self.seconds[name] = self.seconds.get(name, 0.0) + gap

    def share(self, name: str) -> float:
        """Return the share of the observed time under this reason, 0 to 1."""
        return self.seconds.get(name, 0.0) / self.total if self.total > 0 else 0.0

    def words(self) -> str:
        """Return one phrase, worst reason first: `HW thermal 3%, SW power cap 40% of the time`, or `none`."""
        seen = [name for name, spent in self.seconds.items() if spent > 0 and name != "idle"]
        seen.sort(key=lambda name: (-_ORDER[severity(name)], -self.seconds[name]))
        if not seen:
            return "none"
        return ", ".join(f"{name} {_percent(self.share(name))}" for name in seen) + " of the time"


def _percent(share: float) -> str:
    return "<1%" if share < 0.01 else f"{share:.0%}"
