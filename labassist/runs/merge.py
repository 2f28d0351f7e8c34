"""Take runs from a parcel into a ledger: everything is checked first, and an import can be repeated.

Objects and files come first, the journal's `import` entry of a run last, so a death in between leaves nothing
that counts. The entry names the lines of the other journal that made the documents, so that its chain can
still be verified here. A run that is here already is left as it is, or brought up to date where it went on
over there; notes of both sides are kept. One that cannot be reconciled is passed over and named, with what goes
on from it, and the others come.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from labassist.errors import CheckpointError, LedgerError, counted
from labassist.ledger import canonical, codestore, origin
from labassist.ledger.entries import RUN_NAME, Entry
from labassist.ledger.objects import Objects
from labassist.ledger.origin import MARKS, Line, Replayed, without_place
from labassist.ledger.refs import needed
from labassist.ledger.room import MAX_RUN_BYTES
from labassist.ledger.store import Ledger
from labassist.ledger.view import COURSE
from labassist.record.inspect import inspect
from labassist.record.protocol import CHECKPOINTS, file_sha256
from labassist.runs.artifacts import checkpoints_place
from labassist.runs.belongings import lacking, put_back
from labassist.runs.parcel import Parcel

Place = Callable[[Path, Path], None]
"""Puts a file that is a parcel's into the ledger: moves, links or copies it."""

What = Literal["new", "newer", "same", "refused"]


@dataclass
class Merged:
    """What an import brought."""

    new: list[str] = field(default_factory=list)
    newer: list[str] = field(default_factory=list)
    """Runs that were here and have gone on over there."""
    same: list[str] = field(default_factory=list)
    checkpoints: int = 0
    """Whole checkpoints that came along and were not here."""
    marks: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """Run -> why it was passed over."""
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `import --json`."""
        return {
            "new": self.new,
            "newer": self.newer,
            "same": self.same,
            "checkpoints": self.checkpoints,
            "course_marks": self.marks,
            "refused": self.refused,
            "notes": self.notes,
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        lines = [f"imported {run}" for run in self.new] + [f"brought up to date {run}" for run in self.newer]
        counts = f"{counted(len(self.new), 'new runs')}, {len(self.newer)} brought up to date, {len(self.same)} here already"
        lines += [f"NOT imported {run}: {why}" for run, why in self.refused.items()]
        also = f"{counted(self.checkpoints, 'checkpoints')}, {counted(self.marks, 'course marks')}"
        return "\n".join([*lines, f"{counts}; {also}"])


def merge(parcel: Parcel, workspace: Path, ledger: Ledger, place: Place) -> Merged:
    """Import a parcel, but for runs that clash with those here. Raises LedgerError for damage; nothing is journalled then."""
    made = {run: origin.replay(lines, run) for run, lines in parcel.lines.items()}
    if set(parcel.runs) != made.keys() - {MARKS}:
        raise LedgerError(
            "the parcel's runs and the lines of its journal are not the same", where=parcel.host
        )
    plan, _ = _plan(parcel, ledger, made)
    for run in plan:
        _check_run(parcel, run, made[run], plan[run].what)
        _leave_out_damaged(parcel, run, made[run], _fresh(parcel, ledger, run))
    _bring_objects(parcel, ledger.objects)
    if parcel.code is not None:
        codestore.unpack(parcel.code, ledger.folder, list(plan), parcel.places, parcel.shallow)
    steps = {run: _bring_files(parcel, ledger, run, plan[run].what, place) for run in plan}
    notes = put_back(workspace, parcel.work, place)
    os.sync()  # before the journal says that they are here
    merged = Merged(notes=[*parcel.notes, *notes])
    with ledger.journal.locked():
        # Once more, because only now can nobody write in between.
        plan, refused = _plan(parcel, ledger, made)
        for run in [run for run in steps if run in plan]:
            _journal(parcel, ledger, run, plan[run], made[run], steps[run], merged)
        _merge_marks(parcel, ledger, made.get(MARKS), merged)
    merged.refused = refused
    brought = [document for run in (*merged.new, *merged.newer) if (document := made[run].run)]
    for what in lacking(workspace, brought, ledger.objects).values():
        merged.notes.append(f"a replay here will lack {what}; copy it there from {parcel.host}")
    ledger.save_view()
    return merged


class _Brings(NamedTuple):
    """What a parcel brings of one run."""

    what: What
    both: dict[str, Any] | None = None
    """The document with the changes of both sides, where this one has some too."""
    why: str = ""
    """Why it is refused."""
    another: bool = False
    """The run here is not the parcel's, so nothing that goes on from the parcel's can come."""


def _plan(
    parcel: Parcel, ledger: Ledger, made: dict[str, Replayed]
) -> tuple[dict[str, _Brings], dict[str, str]]:
    """Return what each run brings that can come, and of the others why they cannot."""
    known = _known_lines(ledger)
    plan: dict[str, _Brings] = {}
    refused: dict[str, str] = {}
    others = set()
    for run in parcel.runs:
        brings = _compare(ledger, known, run, parcel.lines[run], made[run])
        came_from = ((made[run].run or {}).get("resumed_from") or {}).get("run", "")
        if came_from in others:
            brings = _Brings("refused", why=f"it goes on from run {came_from}", another=True)
        if brings.what == "refused":
            refused[run] = brings.why
            others |= {run} if brings.another else set()
        else:
            plan[run] = brings
    return plan, refused


def _fresh(parcel: Parcel, ledger: Ledger, run: str) -> list[int]:
    """Return the steps of the checkpoints that come along and have no files here."""
    rows = {step: ledger.checkpoint(run, step) for step in parcel.steps(run)}
    return [step for step, row in rows.items() if row is None or row.get("left")]


def _known_lines(ledger: Ledger) -> dict[str, list[Line]]:
    """Return of each run the lines that it was imported with last, or those of this journal that made it."""
    found = {}
    for run, lines in origin.lines_by_run(ledger.folder).items():
        found[run] = lines
        for line in lines:
            entry = msgspec.json.decode(line.line[65:], type=Entry)
            if entry.origin:
                found[run] = origin.load(entry.origin, ledger.objects)
    return found


def _compare(
    ledger: Ledger, known: dict[str, list[Line]], run: str, lines: list[Line], made: Replayed
) -> _Brings:
    """Say whether a run is new, has gone on over there, brings nothing new, or cannot come."""
    here = ledger.run(run)
    if not RUN_NAME.fullmatch(run) or made.run is None:
        raise LedgerError(f"{run!r} is no run of its journal", where="the bundle", mend="export it again")
    if here is None:
        return _Brings("new")
    ours, theirs = ([line.hash for line in one] for one in (known[run], lines))
    if ours[: len(theirs)] == theirs:
        return _Brings("same")
    goes_on = theirs[: len(ours)] == ours
    if goes_on:
        both = _joined(origin.replay(known[run], run).run or {}, here, made.run)
        if both is not None:
            return _Brings("newer", both=both if both != made.run else None)
    checkpoints = {row["step"]: without_place(dict(row)) for row in ledger.checkpoints if row["run"] == run}
    if here == made.run and checkpoints == {k: without_place(v) for k, v in made.checkpoints.items()}:
        return _Brings("same")
    differing = sorted(key for key in here.keys() | made.run.keys() if here.get(key) != made.run.get(key))
    in_words = ", ".join(differing[:4]) or "their checkpoints"
    if goes_on:
        why = f"it was changed here since it was imported, and over there too: they differ in {in_words}"
        return _Brings("refused", why=why)
    why = f"another run has this id here; they differ in {in_words}"
    return _Brings("refused", why=why, another=True)


def _joined(base: dict[str, Any], here: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any] | None:
    """Return a document with what either side has changed since `base`; None where both changed one field otherwise.

    A note of both sides is ours with the lines of theirs that it lacks.
    """
    gone: Any = object()
    joined = {}
    for key in [*here, *(key for key in theirs if key not in here)]:
        was, ours, new = (one.get(key, gone) for one in (base, here, theirs))
        if ours not in (was, new) and new != was:
            if key != "note" or gone in (ours, new):
                return None
            have = ours.split("\n")
            value = "\n".join([*have, *(line for line in new.split("\n") if line not in have)])
        else:
            value = new if ours == was else ours
        if value is not gone:
            joined[key] = value
    return joined if len(canonical.dumps(joined)) <= MAX_RUN_BYTES else None


def _check_run(parcel: Parcel, run: str, made: Replayed, what: What) -> None:
    """Hold a run's files against its seals. Raises LedgerError."""
    assert made.run is not None  # _compare saw it
    for one in needed(made.run, _Packed(parcel)):
        if one.sha not in parcel.objects:
            raise LedgerError(f"the run's {one.what} did not come along", where=f"run {run}")
    files = parcel.files.get(run, {})
    if made.run.get("seals") and what != "same":
        for name, seal in json.loads(parcel.objects[made.run["seals"]].read_bytes()).items():
            if name not in files or _prefix(files[name], seal["bytes"]) != seal["sha256"]:
                raise LedgerError(f"{name} is not as it was sealed", where=f"run {run}", mend="copy it again")


def _leave_out_damaged(parcel: Parcel, run: str, made: Replayed, steps: list[int]) -> None:
    """Hold checkpoints against their manifests, and take a damaged one out: the rest may be all that is left."""
    for step in steps:
        row = made.checkpoints.get(step)
        inside = f"checkpoints/step-{step:08d}/"
        folder = parcel.files[run][f"{inside}COMMIT"].parent
        damage = ""
        try:
            inspect(folder)
            if row is None or file_sha256(folder / "manifest.json") != row["manifest"]:
                damage = "it is not the one journalled"
        except CheckpointError as error:
            damage = error.what
        if damage:
            kept = {name: path for name, path in parcel.files[run].items() if not name.startswith(inside)}
            parcel.files[run] = kept
            parcel.notes.append(
                f"the checkpoint at step {step} of run {run} is damaged and stays out: {damage}; "
                "copy it again, if it is whole where it came from"
            )


class _Packed(Objects):
    """The objects of a parcel, wherever they lie."""

    def __init__(self, parcel: Parcel) -> None:
        super().__init__(Path())
        self._places = parcel.objects

    def path(self, sha: str) -> Path:
        """Return where the object lies."""
        super().path(sha)
        return self._places.get(sha, Path(sha))


def _prefix(path: Path, size: int) -> str:
    """Return the SHA-256 of a file's first bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest() if size == 0 else ""


def _bring_objects(parcel: Parcel, objects: Objects) -> None:
    for sha, path in parcel.objects.items():
        if not objects.has(sha) and objects.put_file(path) != sha:
            raise LedgerError("an object is not what its name says", where=str(path), mend="copy it again")


def _bring_files(parcel: Parcel, ledger: Ledger, run: str, what: What, place: Place) -> list[int]:
    """Put a run's files where they belong; return the steps of the checkpoints that were not here."""
    folder = ledger.run_folder(run)
    new = _fresh(parcel, ledger, run)
    wanted = {f"step-{step:08d}" for step in new}
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, path in parcel.files.get(run, {}).items():
            parts = Path(name).parts
            own = parts[0] == CHECKPOINTS and len(parts) > 1
            if own and len(parts) > 2 and parts[1] not in wanted:
                continue
            target = checkpoints_place(folder) / Path(*parts[1:]) if own else folder / name
            # What another trainer keeps in the run's folder may come later than the run.
            if (what == "same" and len(parts) <= 2) or (not own and len(parts) > 1 and target.exists()):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            place(path, target)
            if len(parts) == 1:
                target.chmod(0o600)  # a log may hold anything that a script printed
    except OSError as error:
        raise LedgerError(
            f"the run cannot be put here: {error.strerror}; nothing is journalled yet",
            where=str(folder),
            mend="free some space, then import again",
        ) from error
    return new


def _journal(
    parcel: Parcel,
    ledger: Ledger,
    run: str,
    brings: _Brings,
    made: Replayed,
    steps: list[int],
    merged: Merged,
) -> None:
    """Write the `import` entry of a run, where it brings anything, and after it what only this side knows."""
    what = brings.what
    left = f"on {parcel.host}, as it was on {parcel.made[:10]}"
    rows = []
    for step, document in made.checkpoints.items():
        here = ledger.checkpoint(run, step)
        if here is not None and step not in steps:
            continue  # its files are here, or were dropped here on purpose
        row = without_place(document)
        if document.get("pruned"):
            row["pruned"] = True
        elif step not in steps and not (ledger.folder / row["path"]).exists():
            row["left"] = document.get("left") or left
        rows.append(row)
    {"new": merged.new, "newer": merged.newer, "same": merged.same}[what].append(run)
    merged.checkpoints += len(steps)
    if what == "same" and not steps:
        return
    kept = origin.store(parcel.lines[run], ledger.objects)
    ledger.put("import", run, run=None if what == "same" else made.run, checkpoints=rows, origin=kept)
    if brings.both is not None:
        ledger.write("note", brings.both)


def _merge_marks(parcel: Parcel, ledger: Ledger, made: Replayed | None, merged: Merged) -> None:
    """Add the marks of the course that are not here, under one entry."""
    here = [dict(row) for row in ledger.db.table(COURSE)]
    fresh = [mark for mark in (made.marks if made else []) if mark not in here]
    if not fresh:
        return
    first = ledger.next_id(COURSE)
    rows = {str(first + number): mark for number, mark in enumerate(fresh)}
    kept = origin.store(parcel.lines[MARKS], ledger.objects)
    ledger.journal.append("import", put={COURSE: rows}, origin=kept)
    merged.marks = len(fresh)


def moved(source: Path, target: Path) -> None:
    """Move a file, across disks too."""
    shutil.move(source, target)


def linked(source: Path, target: Path) -> None:
    """Link a file that neither side will ever write again; copy it where that cannot be."""
    if "checkpoints" in target.parts[-4:-1]:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another disk, or a file system without links: the copy below is as good
    copied(source, target)


def copied(source: Path, target: Path) -> None:
    """Copy a file."""
    shutil.copyfile(source, target)
