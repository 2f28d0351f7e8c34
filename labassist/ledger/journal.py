"""The journal: an append-only, hash-chained file that is the truth of the ledger (docs/formats.md).

TinyDB's tables and view.json are derived from it. Any number of processes may append and read at once:
writers take `flock` on the journal itself; readers need no lock, because a line counts only once its
newline is there.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from labassist import __version__
from labassist.errors import LedgerError
from labassist.ledger import canonical, records
from labassist.ledger.entries import (
    GENESIS,
    RUN_NAME,
    Documents,
    Entry,
    Head,
    chain,
    decode_entry,
    decode_head,
    last_line,
    parse,
    split,
    whole_lines,
)
from labassist.ledger.heads import HEAD_BYTES, head_bytes, make_head, set_torn_aside
from labassist.ledger.problems import Problem
from labassist.ledger.verify import verify

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
_NO_WRITING = {errno.EROFS, errno.EACCES, errno.EPERM}
DAMAGED = "see `labassist audit` and `labassist fsck`, and restore the ledger from a copy"

_log = logging.getLogger(__name__)


class Journal:
    """`journal.jsonl` and `head` of a ledger folder, open for appending unless `readonly`.

    A missing journal is made, unless the folder is read-only or the file `head` says that there was one.
    A journal that may not be written is opened read-only. Nothing is read before the first `refresh`,
    `seek` or `append`. Raises LedgerError when there is no journal and none can be made.
    """

    def __init__(self, folder: Path, readonly: bool = False) -> None:
        self.folder = folder
        self.path = folder / "journal.jsonl"
        self.readonly = readonly
        self.head = GENESIS
        self.entries = 0
        self.bytes = 0
        self.newest_schema = 0
        """Highest schema of the entries read so far."""
        self.listener: Callable[[Entry], None] | None = None
        """Called once for each entry, in order, whoever wrote it."""
        self.mutex = threading.RLock()
        self._fd = -1
        self._depth = 0
        self._open()

    def close(self) -> None:
        """Close the file. The journal cannot be used afterwards."""
        with self.mutex:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def refresh(self) -> list[Entry]:
        """Read, verify and return the entries that were appended since the last look.

        Costs one `stat` when there are none. Raises LedgerError naming the line that breaks the chain.
        """
        with self.mutex:
            found: list[Entry] = []
            try:
                self._read_new(found)
            except LedgerError:
                # A lock-free read can meet a torn line while its writer's successor sets it aside.
                if self._depth or self.readonly:
                    raise
                self._acquire()
                try:
                    self._read_new(found)
                finally:
                    self._release()
            return found

    def seek(self, head: Head) -> bool:
        """Start after the entry that `head` names, trusting those before it; False if it is not there."""
        with self.mutex:
            if head.bytes == 0:
                return head.entries == 0 and head.hash == GENESIS
            try:
                stored, body = split(last_line(self._fd, head.bytes))
                entry = decode_entry(body)
            except (ValueError, msgspec.MsgspecError):
                return False
            if stored != head.hash or entry.n != head.entries:
                return False
            self.head, self.entries, self.bytes = head.hash, head.entries, head.bytes
            self.newest_schema = max(self.newest_schema, entry.schema)
            return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writers' lock, with all entries read. May be nested.

        Raises LedgerError when the ledger is read-only or its file system has no locks.
        """
        if self.readonly:
            raise LedgerError(
                "the ledger is read-only", where=str(self.folder), mend="copy it to write in it"
            )
        with self.mutex:
            if self._depth == 0:
                self._acquire()
            self._depth += 1
            try:
                if self._depth == 1:
                    self.refresh()
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._release()

    def append(
        self,
        kind: str,
        *,
        run: str = "",
        put: Documents | None = None,
        delete: dict[str, list[str]] | None = None,
        drop: list[str] | None = None,
        origin: str = "",
    ) -> Entry:
        """Append one entry and return it as read back; it is on the disk when this returns.

        `head` moves after the entry was synced, so that a power cut can never leave `head` beyond the journal.
        Raises LedgerError, with nothing appended, when the entry is not JSON, the disk is full, the ledger
        is read-only or newer than this labassist, or the journal is shorter than `head` says.
        """
        if run and not RUN_NAME.fullmatch(run):
            raise LedgerError(f"{run!r} cannot be a run id", where=str(self.folder))
        with self.locked():
            if self.newest_schema > records.SCHEMA:
                raise LedgerError(
                    f"the ledger was written by a newer labassist (schema {self.newest_schema}, "
                    f"this one knows {records.SCHEMA})",
                    where=str(self.folder),
                    mend="upgrade labassist to write in it",
                )
            body: dict[str, Any] = {
                "n": self.entries + 1,
                "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "by": __version__,
                "schema": records.SCHEMA,
                "kind": kind,
                "run": run,
            }
            changes = {"put": put, "delete": delete, "drop": drop, "origin": origin}
            body.update({name: change for name, change in changes.items() if change})
            try:
                data = canonical.dumps(body)
            except (TypeError, ValueError) as error:
                raise LedgerError(f"a {kind} entry cannot be written as JSON: {error}", where=run) from error
            self._check_head()
            self._set_torn_aside()
            head = Head(chain(self.head, data), self.entries + 1, self.bytes + len(data) + 66)
            line = f"{head.hash} ".encode("ascii") + data
            try:
                entry = parse(line, self.head, head.entries)
            except ValueError as error:
                raise LedgerError(f"a {kind} entry {error}", where=run) from error
            self._write(line + b"\n")
            self._accept(entry, head.bytes)
            self._move_head(head)
            if run:
                self._note_position(entry)
            return entry

    def lost(self, before: Head | None) -> str:
        """Say that the journal is shorter than a `head` that was read before the last refresh; empty where not."""
        if before is None or before.bytes <= self.bytes:
            return ""
        return f"the journal was cut: head names {before.entries} entries and {self.entries} are there"

    def read_head(self) -> Head | None:
        """Return the file `head`; None where it is missing or damaged."""
        try:
            return decode_head((self.folder / "head").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None

    def verify(self) -> list[Problem]:
        """Check the whole journal from its first byte, against `head` and the runs' positions too."""
        return verify(self.folder)

    def _open(self) -> None:
        """Open the file, and make it with its first `head` where it is missing."""
        flags = os.O_RDONLY if self.readonly else os.O_RDWR | os.O_APPEND
        try:
            if not self.readonly and not self.path.exists():
                self._create()
            self._fd = os.open(self.path, flags | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NO_WRITING and not self.readonly and self.path.exists():
                self.readonly = True
                self._open()
                return
            raise LedgerError(
                f"the journal cannot be opened: {error.strerror}",
                where=str(self.path),
                mend="name the workspace with --workspace, or make one with `labassist new DIR`",
            ) from error
        self._pid = os.getpid()
        self._inode = os.fstat(self._fd).st_ino

    def _create(self) -> None:
        """Make an empty journal and a `head` that says so. Another process may be doing the same."""
        if (self.folder / "head").exists():
            raise LedgerError(
                "journal.jsonl is gone, but head says that there was one",
                where=str(self.folder),
                mend=DAMAGED,
            )
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._pid = os.getpid()
        try:
            self._acquire()
            try:
                if os.fstat(self._fd).st_size == 0:
                    make_head(self.folder, Head(GENESIS, 0, 0))
            finally:
                self._release()
        finally:
            os.close(self._fd)

    def _acquire(self) -> None:
        """Take the writers' lock, waiting for it."""
        if os.getpid() != self._pid:
            # A forked child shares its parent's open file, and with it the parent's lock.
            os.close(self._fd)
            self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise LedgerError(
                f"this file system has no locks ({error.strerror}), so two writers would destroy the ledger",
                where=str(self.folder),
                mend="keep the workspace on a local disk",
            ) from error

    def _release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read_new(self, found: list[Entry]) -> None:
        """Append the new whole lines, verified, to `found`."""
        try:
            stat = self.path.stat()
        except OSError as error:
            raise LedgerError(f"cannot be read: {error.strerror}", where=str(self.path)) from error
        if stat.st_ino != self._inode or stat.st_size < self.bytes:
            raise LedgerError(
                "the journal was replaced or cut while it was open", where=str(self.path), mend="start again"
            )
        if stat.st_size == self.bytes:
            return
        for line in whole_lines(self._fd, self.bytes):
            try:
                entry = parse(line, self.head, self.entries + 1)
            except ValueError as error:
                where = f"{self.path} line {self.entries + 1}"
                raise LedgerError(str(error), where=where, mend=DAMAGED) from error
            self._accept(entry, self.bytes + len(line) + 1)
            found.append(entry)

    def _accept(self, entry: Entry, end: int) -> None:
        """Count an entry as read."""
        entry.end = end
        self.head, self.entries, self.bytes = entry.hash, entry.n, end
        self.newest_schema = max(self.newest_schema, entry.schema)
        if self.listener:
            self.listener(entry)

    def _check_head(self) -> None:
        """Refuse to append over a cut tail: the new `head` would hide it."""
        path = self.folder / "head"
        mend = f"{DAMAGED}; deleting the file head accepts the journal as it stands"
        try:
            head = decode_head(path.read_bytes())
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            raise LedgerError("head is damaged", where=str(path), mend=mend) from error
        if lost := self.lost(head):
            raise LedgerError(lost, where=str(self.path), mend=mend)
        if head.bytes == self.bytes and head.hash != self.head:
            raise LedgerError("the journal is not the one that head names", where=str(self.path), mend=mend)

    def _set_torn_aside(self) -> None:
        """Move what follows the last whole line (a write that was cut short) to `journal.torn-<n>`."""
        try:
            set_torn_aside(self.folder, self._fd, self.bytes)
        except OSError as error:
            raise self._unwritable(error) from error

    def _move_head(self, head: Head) -> None:
        """Rewrite `head` after its entry is safe: one write of one length, so that no kill leaves half of it.

        It is not fsynced: after a power cut it may lag behind the journal, never run ahead.
        """
        path = self.folder / "head"
        try:
            if not path.exists():
                # Whoever takes `head` away takes a witness away: what is cut before now does not show in it.
                _log.warning(
                    "%s: head was gone and is written anew at entry %d; only the runs' own positions and an "
                    "anchor can show that entries were cut off before it",
                    self.folder,
                    head.entries,
                )
                make_head(self.folder, head)
                return
            if path.stat().st_size != HEAD_BYTES:
                make_head(self.folder, head)
                return
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, head_bytes(head))
            finally:
                os.close(fd)
        except OSError as error:
            # The entry itself is safe; only this witness of it is missing.
            _log.warning("%s: head was not moved to entry %d: %s", self.folder, head.entries, error.strerror)

    def _write(self, line: bytes) -> None:
        """Append a line in one write. If that fails, cut the journal back to its last whole line."""
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"the disk is full ({written} of {len(line)} bytes written)")
            os.fsync(self._fd)
        except OSError as error:
            os.ftruncate(self._fd, self.bytes)
            raise self._unwritable(error) from error

    def _note_position(self, entry: Entry) -> None:
        """Keep the entry's number and hash with its run: a cut tail of the journal shows against it."""
        path = self.folder / "runs" / entry.run / "positions.jsonl"
        if not path.parent.is_dir():
            return
        try:
            with path.open("ab+") as file:
                size = file.tell()
                if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                    file.truncate(os.pread(file.fileno(), size, 0).rfind(b"\n") + 1)
                file.write(canonical.dumps({"n": entry.n, "hash": entry.hash}) + b"\n")
        except OSError as error:
            # The entry itself is safe; only this second witness of it is missing.
            _log.warning("%s: the journal position %d was not kept: %s", path, entry.n, error.strerror)

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"the journal cannot be written: {error.strerror}; nothing earlier is hurt",
            where=str(self.folder),
            mend="free some space on this disk",
        )
