"""The checkpoints that the ledger knows, and what `ckpt check` says of them, as lists and words. No terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labassist.app.messages import CheckpointsRead
from labassist.app.words import Line, Signs

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger

QUICK_ABOVE = 4 * 1024**3
"""Bytes of a folder's checkpoints above which their checksums are left out: seconds a gigabyte."""

STATES = {
    "present": ("yes", "good", "present", ""),
    "derived": ("derived", "plain", "derived", "worked out again on load, not stored"),
    "not_applicable": ("none", "dim", "not needed", ""),
    "absent": ("no", "bad", "absent", ""),
    "torn": ("no", "bad", "torn", ""),
    "inconsistent": ("alarm", "warn", "inconsistent", ""),
}
"""A state's presence -> its sign, kind, word, and what that means where no finding says it."""

SEVERITIES = {
    "error": ("no", "bad"),
    "warning": ("alarm", "warn"),
    "notice": ("dot", "plain"),
    "info": ("dot", "dim"),
}
VERDICTS = {"EXACT": ("yes", "good"), "DEGRADED": ("alarm", "warn"), "BROKEN": ("no", "bad")}

MEANING = {
    "EXACT": "all that an exact resume needs is there",
    "DEGRADED": "it resumes, but not exactly",
    "BROKEN": "torn, corrupt or inconsistent: do not resume from it",
}


@dataclass(frozen=True)
class Place:
    """A checkpoint that can be looked at, or a folder that was typed and is not read yet."""

    path: Path
    """Absolute."""
    folder: Path
    """What is checked: the folder with this checkpoint and its siblings."""
    step: int | None = None
    bytes: int = 0
    time: str = ""
    run: str = ""
    """Id of the run that made it; empty for a folder from elsewhere."""
    over: str = ""
    """Id of the later run that wrote into the same folder; empty where these are still its own files."""

    def same(self, other: Place) -> bool:
        """Say whether this is the same checkpoint of the same run, however it is listed now."""
        return (self.path, self.run, self.step) == (other.path, other.run, other.step)


def read_checkpoints(ledger: Ledger) -> CheckpointsRead:
    """Return every checkpoint of the ledger that is still there, the newest run first, its newest step first.

    Several runs may have written into one folder: the files there are those of the last one.
    """
    places = []
    last: dict[Path, tuple[str, str]] = {}
    for row in ledger.checkpoints.all():
        if row.get("pruned"):
            continue
        path = _folder(ledger.folder / row["path"])
        if path is not None and path.exists():
            places.append(
                Place(path, path.parent, row["step"], row.get("bytes", 0), row.get("time", ""), row["run"])
            )
            last[path] = max(last.get(path, ("", "")), (row.get("time", ""), row["run"]))
    places = [
        place if last[place.path][1] == place.run else replace(place, over=last[place.path][1])
        for place in places
    ]
    places.sort(key=lambda place: (place.run, place.step or 0), reverse=True)
    return CheckpointsRead(places)


def _folder(path: Path) -> Path | None:
    """Return where a checkpoint's files lie: its own folder, or the one that a foreign one's manifest names."""
    if path.suffix != ".json":
        return path.resolve()
    try:
        named = Path(json.loads(path.read_bytes())["folder"])
    except (OSError, ValueError, KeyError):
        return None
    return (path.resolve().parents[4] / named).resolve()


@dataclass
class Checked:
    """What a check of one folder said."""

    answer: Mapping[str, Any] | None = None
    """The document of `ckpt check`; None while it is made, or where there is none."""
    problem: str = ""
    quick: bool = False
    """Without checksums."""

    @property
    def busy(self) -> bool:
        """Whether the answer is still to come."""
        return self.answer is None and not self.problem

    def of(self, path: Path) -> Mapping[str, Any] | None:
        """Return what was said of one checkpoint."""
        if self.answer is None:
            return None
        several = self.answer.get("checkpoints")
        if several is None:
            return self.answer
        return next((one for one in several if Path(one["path"]) == path), None)

    def resumes_from(self, path: Path) -> bool:
        """Say whether this is the one of its folder to resume from."""
        if self.answer is None or "checkpoints" not in self.answer:
            return False
        best = self.answer["resume_from"]
        return best is not None and Path(best) == path


def typed(path: Path, answer: Mapping[str, Any]) -> list[Place]:
    """Return the checkpoints of a folder that was typed, the newest first."""
    several = answer.get("checkpoints")
    if several is None:
        return [Place(path, path, answer["step"])]
    return [Place(Path(one["path"]), path, one["step"]) for one in reversed(several)]


def quick(places: Iterable[Place], folder: Path) -> bool:
    """Say whether a folder's checkpoints are too large for their checksums to be waited for."""
    return sum(place.bytes for place in places if place.folder == folder) > QUICK_ABOVE


def head(found: Mapping[str, Any], marks: Signs) -> list[Line]:
    """Return the verdict, the format and what it is of, in parts."""
    sign, kind = VERDICTS[found["verdict"]]
    ranks = found["world_size"] or 1
    return [
        [(f"{getattr(marks, sign)} {found['verdict']}", kind)],
        [(" ".join(filter(None, (found["format"], found["framework_version"]))), "plain")],
        [(f"step {found['step']:,}", "plain")] if found["step"] is not None else [],
        [(f"{ranks:,} ranks", "plain")] if ranks > 1 else [],
    ]


SAID_AT = 29
"""Cells before what is said of a state: its name, its sign and its word."""


def states(found: Mapping[str, Any], marks: Signs) -> list[Line]:
    """Return the six states, each with its sign, its word and what is to say of it."""
    lines: list[Line] = []
    for state, presence in found["states"].items():
        sign, kind, word, meaning = STATES[presence]
        mark = {"derived": "~", "none": "-"}.get(sign) or getattr(marks, sign)
        said = next((one["message"] for one in found["findings"] if one["state"] == state), "")
        lines.append(
            [
                (f"{state.replace('_', ' '):<14}", "plain"),
                (f"{mark} {word:<13}", kind),
                (said or meaning, "dim"),
            ]
        )
    return lines


def finding_lines(one: Mapping[str, Any], found: Mapping[str, Any], marks: Signs) -> list[Line]:
    """Return one finding whole: what it is, what follows, how it is mended, and where it stands."""
    sign, kind = SEVERITIES[one["severity"]]
    place = ", ".join(
        filter(
            None,
            (
                one["path"],
                f"rank {one['rank']}" if one["rank"] is not None else "",
                f"state {one['state'].replace('_', ' ')}" if one["state"] else "",
            ),
        )
    )
    lines: list[Line] = [
        [(f"{getattr(marks, sign)} {one['code']}", kind), (f"  {one['severity']}", "dim")],
        [],
        [(one["message"], "strong")],
        [],
        [("what follows  ", "head"), (one["consequence"], "plain")],
        [],
        [("mend  ", "head"), (one["mend"], "plain")],
    ]
    if place:
        lines += [[], [("where  ", "head"), (place, "plain")]]
    return [*lines, [], [(f"{found['verdict']}: {MEANING[found['verdict']]}", "dim")]]
