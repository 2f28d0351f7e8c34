"""Check the store itself, and mend what follows from the journal: head, snapshot, positions, manifests.

An audit asks whether the records are as they were; this asks whether the files that hold them fit together.
Nothing is ever dropped: what a repair takes out of the way lies in `ledger/aside/<n>/` under its old path.
While the journal itself is damaged nothing is mended, because everything else is derived from it.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from labassist.errors import LabError, LedgerError
from labassist.ledger import canonical, records, view
from labassist.ledger.aside import Aside
from labassist.ledger.audit import read_journal
from labassist.ledger.entries import GENESIS, Entry, Head, decode_head
from labassist.ledger.heads import make_head, set_torn_aside
from labassist.ledger.objects import Objects
from labassist.ledger.records import to_document
from labassist.ledger.refs import closure, needed
from labassist.ledger.verify import verify
from labassist.ledger.view import CHECKPOINTS, RUNS, Tables
from labassist.record.durable import write_file
from labassist.record.protocol import file_sha256

_PATIENCE_S = 5.0
_OBJECT_TEMPORARY = re.compile(r"\.tmp-(\d+)-[0-9a-f]+")


class Finding(msgspec.Struct):
    """One thing in the store that does not fit."""

    code: str
    """Stable name, as `head-behind`."""
    path: str
    """Relative to the ledger folder."""
    message: str
    harmless: bool = False
    """True: it costs nothing and is no sign of damage."""
    repair: str = ""
    """What `--repair` does about it, or has done; empty: it cannot be rebuilt from the journal."""
    mended: bool = False


@dataclass
class Fsck:
    """A check of one ledger folder, and what was mended."""

    folder: Path
    repair: bool = False
    checked: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    tables: Tables = field(default_factory=Tables)
    refused: str = ""
    """Why nothing is mended: the journal cannot be trusted, and all else follows from it. Empty where it can."""

    def __post_init__(self) -> None:
        self.aside = Aside(self.folder)

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The run documents by id."""
        rows = self.tables.documents[RUNS].values()
        return {row["id"]: row for row in rows if isinstance(row.get("id"), str)}

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoint documents."""
        return list(self.tables.documents[CHECKPOINTS].values())

    @property
    def ok(self) -> bool:
        """True when nothing is left that matters."""
        return all(finding.harmless or finding.mended for finding in self.findings)

    def add(
        self,
        code: str,
        path: Path,
        message: str,
        *,
        harmless: bool = False,
        how: str = "",
        mend: Callable[[], str | None] | None = None,
    ) -> None:
        """Note a finding. With --repair `mend` is called, which may say more than `how`, unless that is refused."""
        name = path.relative_to(self.folder).as_posix()
        finding = Finding(code, name, message, harmless, how)
        if mend is not None and self.refused:
            finding.repair = f"refused: nothing is mended while {self.refused}"
        elif mend is not None and self.repair:
            try:
                finding.repair, finding.mended = mend() or how, True
            except (OSError, LabError) as error:
                finding.repair = f"could not be mended: {error}"
        self.findings.append(finding)

    def put_aside(self, path: Path) -> Callable[[], str]:
        """Return the mend that moves a file or folder aside."""
        return lambda: f"moved to {self.aside.move(path)}"

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `fsck --json`."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "findings": [to_document(finding) for finding in self.findings],
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        counts = ", ".join(f"{count} {name}" for name, count in self.checked.items())
        lines = [f"{'ok' if self.ok else 'NOT OK'}: checked {counts}"]
        for one in self.findings:
            lines.append(f"  {one.code}: {one.path}: {one.message}" + (" (harmless)" if one.harmless else ""))
            if one.mended:
                lines.append(f"    mended: {one.repair}")
            elif one.repair:
                lines.append(f"    {one.repair}" if self.repair else f"    --repair: {one.repair}")
        return "\n".join(lines)


def check_store(check: Fsck) -> None:
    """Check the journal, what is derived from it, and the objects. Raises LedgerError without a ledger."""
    folder = check.folder
    if not (folder / "journal.jsonl").exists() and not (folder / "head").exists():
        raise LedgerError(
            "there is no ledger here: nothing is journalled yet",
            where=str(folder),
            mend="record a run, or import one (again: what a killed import left is used by the next)",
        )
    with _writers_lock(check) as journal:
        _check_torn(check, journal)
        check.entries, check.tables = read_journal(folder)
        check.checked["journal entries"] = len(check.entries)
        _check_journal(check)
        _check_head(check)
        _check_view(check)
        _check_positions(check)
    _check_objects(check)
    _check_leftovers(check)


@contextmanager
def _writers_lock(check: Fsck) -> Iterator[int]:
    """Hold the writers' lock of the journal and give its file, -1 where there is none to hold.

    Where nothing is to be mended it is only tried. A process that keeps it for seconds is a finding, and
    then nothing is mended.
    """
    path = check.folder / "journal.jsonl"
    try:
        fd = os.open(path, (os.O_RDWR if check.repair else os.O_RDONLY) | os.O_CLOEXEC)
    except FileNotFoundError:
        yield -1
        return
    except OSError as error:
        raise LedgerError(f"cannot be opened: {error.strerror}", where=str(path)) from error
    try:
        kind = fcntl.LOCK_EX if check.repair else fcntl.LOCK_SH
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                if not check.repair:
                    fcntl.flock(fd, fcntl.LOCK_UN)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    if check.repair:
                        check.refused = "another process holds the writers' lock"
                    message = (
                        f"a process has held the writers' lock for {_PATIENCE_S:g} s: every writer waits"
                    )
                    check.add("journal-locked", path, message)
                    break
                time.sleep(0.05)
        yield fd
    finally:
        os.close(fd)


def _check_torn(check: Fsck, journal: int) -> None:
    """Note a last line that was cut short; its bytes are kept beside the journal."""
    path = check.folder / "journal.jsonl"
    if journal < 0:
        return
    size = os.fstat(journal).st_size
    whole = os.pread(journal, size, 0).rfind(b"\n") + 1
    if whole == size:
        return

    def mend() -> str:
        kept = set_torn_aside(check.folder, journal, whole)
        return f"moved to {kept.name if kept else 'nowhere'}"

    message = f"a write was cut short: {size - whole} bytes after the last whole line"
    check.add("journal-torn", path, message, how="the bytes are kept in journal.torn-<n>", mend=mend)


def _check_journal(check: Fsck) -> None:
    """Note what is wrong with the chain itself: none of it can be rebuilt."""
    for problem in verify(check.folder):
        if not problem.code.startswith("journal-"):
            continue  # head and positions have their own checks, which know the mend
        check.refused = "the journal is damaged"
        path = check.folder / problem.path
        run = f"run {problem.run}: " if problem.run else ""
        message = f"{run}{problem.message}; restore it from a copy, nothing is mended while it is damaged"
        check.add(problem.code, path, message)
    newest = max((entry.schema for entry in check.entries), default=0)
    if newest > records.SCHEMA:
        check.refused = "the journal is one of a newer labassist"
        message = f"a newer labassist wrote it (schema {newest}, this one knows {records.SCHEMA})"
        check.add("schema-newer", check.folder / "journal.jsonl", message, harmless=True)


def _head(check: Fsck) -> Head:
    last = check.entries[-1] if check.entries else None
    return Head(last.hash, last.n, last.end) if last else Head(GENESIS, 0, 0)


def _check_head(check: Fsck) -> None:
    path, want = check.folder / "head", _head(check)

    def write() -> None:
        make_head(check.folder, want)

    def replace() -> str:
        kept = check.aside.move(path)
        write()
        return f"written anew at entry {want.entries}; the old one is {kept}"

    anew = f"written anew at entry {want.entries}"
    unseen = "what was cut off before now shows only in the runs' positions or against an anchor"
    try:
        head = decode_head(path.read_bytes())
    except FileNotFoundError:
        check.add("head-missing", path, f"head is gone; {unseen}", how=anew, mend=write)
        return
    except (OSError, msgspec.MsgspecError) as error:
        check.add("head-damaged", path, f"head cannot be read ({error}); {unseen}", how=anew, mend=replace)
        return
    if head.entries < want.entries and not check.refused:
        message = f"it names entry {head.entries} of {want.entries}, as after a power cut"
        check.add("head-behind", path, message, harmless=True, how=anew, mend=write)
    check.checked["head"] = 1


def _check_view(check: Fsck) -> None:
    path = check.folder / "view.json"
    if not path.exists():
        return

    def write() -> None:
        view.save(path, check.tables.documents, _head(check))

    def replace() -> str:
        kept = check.aside.move(path)
        write()
        return f"written anew; the old one is {kept}"

    check.checked["snapshot"] = 1
    anew = "written anew from the journal"
    snapshot = view.load(path)
    hashes = {entry.n: entry.hash for entry in check.entries}
    if snapshot is None:
        message = "something else wrote or cut it: its content does not match its own digest; it is not used"
        check.add("view-altered", path, message, how=anew, mend=replace)
    elif hashes.get(snapshot[1].entries) != snapshot[1].hash:
        message = "it shows a journal position that is not in the journal; it is not used"
        check.add("view-foreign", path, message, how=anew, mend=replace)
    elif snapshot[1].entries < len(check.entries):
        message = (
            f"it shows entry {snapshot[1].entries} of {len(check.entries)}: the rest is read from the journal"
        )
        check.add("view-stale", path, message, harmless=True, how=anew, mend=write)
    elif snapshot[0] != check.tables.documents:
        check.add("view-altered", path, "it does not show what the journal says", how=anew, mend=replace)


def _check_positions(check: Fsck) -> None:
    """Compare each run's positions with its entries; missing lines are no finding, wrong ones are."""
    expected: dict[str, list[bytes]] = {}
    for entry in check.entries:
        line = canonical.dumps({"n": entry.n, "hash": entry.hash})
        expected.setdefault(entry.run, []).append(line)
    for run_id in check.runs:
        path = check.folder / "runs" / run_id / "positions.jsonl"
        if not path.parent.is_dir():
            continue
        lines = expected.get(run_id, [])
        check.checked["runs' positions"] = check.checked.get("runs' positions", 0) + 1

        def write(path: Path = path, lines: list[bytes] = lines) -> str:
            kept = f"; the old ones are {check.aside.move(path)}" if path.exists() else ""
            write_file(path, b"".join(line + b"\n" for line in lines))
            return f"written anew from the journal{kept}"

        how = "written anew from the journal"
        try:
            wrong = set(path.read_bytes().split(b"\n")[:-1]) - set(lines)
        except FileNotFoundError:
            message = "the run's journal positions are gone"
            check.add("positions-missing", path, message, how=how, mend=write)
            continue
        if wrong:
            message = f"{len(wrong)} lines are not positions of entries of this run"
            check.add("positions-damaged", path, message, how=how, mend=write)


def _check_objects(check: Fsck) -> None:
    objects = Objects(check.folder / "objects")
    manifests = {
        document["manifest"]: check.folder / document["path"]
        for document in check.checkpoints
        if "manifest" in document
    }
    there = list(objects)
    check.checked["objects"] = len(there)
    damaged = {sha for sha in there if file_sha256(objects.path(sha)) != sha}

    def own(sha: str) -> Path:
        place: Path = manifests[sha]
        return place if place.is_file() else place / "manifest.json"

    def again(sha: str) -> str | None:
        """Store a checkpoint's manifest once more, from the checkpoint itself."""
        source = own(sha)
        if file_sha256(source) != sha:
            raise LedgerError("the checkpoint's own manifest is another one", where=str(source))
        kept = f"; the old one is {check.aside.move(objects.path(sha))}" if sha in damaged else ""
        objects.put_file(source)
        return f"stored again from its checkpoint{kept}"

    def finding(sha: str, code: str, message: str) -> None:
        path = objects.folder / sha
        if sha in manifests and own(sha).is_file():
            how = "stored again from its checkpoint"
            check.add(code, path, message, how=how, mend=lambda: again(sha))
        else:
            check.add(code, path, f"{message}; restore it from a copy of this ledger")

    for sha in sorted(damaged):
        finding(sha, "object-damaged", "its content is not what its name says")
    gone: dict[str, str] = {}
    for document in check.runs.values():
        for one in needed(document, objects):
            if one.sha not in gone and not objects.has(one.sha):
                gone[one.sha] = f"the {one.what} of run {one.run} is gone"
    gone |= {sha: "a checkpoint's manifest is gone" for sha in manifests if not objects.has(sha)}
    for sha, message in sorted(gone.items()):
        finding(sha, "object-missing", message)
    named = closure([to_document(entry) for entry in check.entries], objects)
    orphans = [sha for sha in there if sha not in named]
    if orphans:
        message = f"{len(orphans)} objects are named by nothing, as after a start that was refused; the first is {orphans[0][:12]}…"
        check.add("object-orphan", objects.folder, message, harmless=True)


def _check_leftovers(check: Fsck) -> None:
    """Note temporary files whose writer died."""
    left = [path for name in ("head.tmp", "view.tmp") if (path := check.folder / name).exists()]
    for path in sorted((check.folder / "objects").glob(".tmp-*")):
        match = _OBJECT_TEMPORARY.fullmatch(path.name)
        if match is None or not _alive(int(match[1])):
            left.append(path)
    for path in left:
        message = "its writer died before it was whole"
        how = "moved aside"
        check.add("leftover", path, message, harmless=True, how=how, mend=check.put_aside(path))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
