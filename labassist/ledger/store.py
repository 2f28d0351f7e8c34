"""The ledger as the rest of labassist uses it: run documents, checkpoints, objects, and names of runs."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from tinydb import where
from tinydb.table import Table

from labassist.errors import LedgerError
from labassist.ledger import canonical, names, records, view
from labassist.ledger.database import LedgerDB
from labassist.ledger.entries import RUN_NAME, Documents, Entry, Head
from labassist.ledger.journal import DAMAGED, Journal
from labassist.ledger.objects import Objects
from labassist.ledger.room import MAX_RUN_BYTES, MAX_START_BYTES
from labassist.ledger.view import CHECKPOINTS, COURSE, RUNS, Tables

_log = logging.getLogger(__name__)


def new_run_id(now: datetime | None = None) -> str:
    """Return `YYYYMMDD-HHMMSS-xxxxxx` (UTC, then 6 random hex digits): sortable, unique across machines."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{moment:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class Ledger:
    """An open ledger folder. Every document that goes in or out is a copy."""

    def __init__(self, folder: Path, journal: Journal, tables: Tables) -> None:
        self.folder = folder
        self.journal = journal
        self.objects = Objects(folder / "objects")
        self.db = LedgerDB(journal, tables)
        self._tables = tables
        self._view_head = ""

    @classmethod
    def open(cls, folder: Path, create: bool = False, readonly: bool = False) -> Ledger:
        """Open a ledger, read-only where it cannot be written; with `create`, make it where it is missing.

        Trusts `view.json` when it is whole and its journal position is in the journal, and then verifies only
        the entries after it; else reads and verifies the whole journal. Warns of a tail that was cut off. Raises
        LedgerError when there is no ledger or its journal is damaged or emptied.
        """
        folder = Path(folder)
        if not (folder / "journal.jsonl").exists() and not (folder / "head").exists():
            if not create:
                raise LedgerError(
                    "there is no ledger here", where=str(folder), mend="make one with `labassist new DIR`"
                )
            try:
                (folder / "runs").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LedgerError(f"cannot be made: {error.strerror}", where=str(folder)) from error
        journal = Journal(folder, readonly)
        snapshot = view.load(folder / "view.json")
        trusted = snapshot is not None and journal.seek(snapshot[1])
        tables = Tables(snapshot[0] if snapshot and trusted else None)
        journal.listener = tables.apply
        ledger = cls(folder, journal, tables)
        ledger._view_head = journal.head if trusted else ""
        head = journal.read_head()  # before the refresh: it never leads what is then read
        journal.refresh()
        if lost := journal.lost(head):
            cut = LedgerError(lost, where=str(journal.path), mend=DAMAGED)
            if not journal.entries:
                raise cut
            _log.warning("warning: %s", cut)
        return ledger

    def close(self) -> None:
        """Close the journal."""
        self.db.close()
        self.journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def readonly(self) -> bool:
        """Whether writing is impossible here: the files are read-only, or a newer labassist wrote them."""
        return self.journal.readonly or self.journal.newest_schema > records.SCHEMA

    @property
    def runs(self) -> Table:
        """TinyDB's table of run documents."""
        return self.db.table(RUNS)

    @property
    def checkpoints(self) -> Table:
        """TinyDB's table of checkpoint documents."""
        return self.db.table(CHECKPOINTS)

    def marks(self) -> list[records.Mark]:
        """Return what the learner did in the course, oldest first. What is no such record is left to the audit."""
        found = []
        for document in self.db.table(COURSE):
            try:
                found.append(msgspec.convert(dict(document), records.Mark))
            except msgspec.ValidationError:
                continue
        return found

    def next_id(self, table: str) -> int:
        """Return a document id above every one that the table has had."""
        with self.journal.mutex:
            self.journal.refresh()
            return self._tables.next_id(table)

    def run_folder(self, run_id: str) -> Path:
        """Return where a run's files lie. Raises LedgerError on what cannot be a run id."""
        if not RUN_NAME.fullmatch(run_id):
            raise LedgerError(f"{run_id!r} cannot be a run id", where=str(self.folder))
        return self.folder / "runs" / run_id

    def run(self, run_id: str) -> dict[str, Any] | None:
        """Return the document of the run with exactly this id."""
        with self.journal.mutex:
            self.journal.refresh()
            return self._tables.get(RUNS, self._tables.run_id(run_id))

    def checkpoint(self, run_id: str, step: int) -> dict[str, Any] | None:
        """Return the document of one checkpoint."""
        with self.journal.mutex:
            self.journal.refresh()
            return self._tables.get(CHECKPOINTS, self._tables.checkpoint_id(run_id, step))

    def running(self) -> list[dict[str, Any]]:
        """Return the documents of all runs that the ledger calls running, oldest first."""
        found = self.runs.search(where("state") == "running")
        return names.by_creation(dict(document) for document in found)

    def write(self, kind: str, document: dict[str, Any]) -> Entry:
        """Journal a whole run document, new or in place of the one with its id.

        After an `end` the snapshot is rewritten. Raises LedgerError when the document has no id or is over
        what `room` allows, and as `Journal.append`.
        """
        run_id = document.get("id")
        if not isinstance(run_id, str):
            raise LedgerError("a run document needs an id", where=str(self.folder))
        entry = self.put(kind, run_id, run=document)
        if kind == "end":
            try:
                self.save_view()
            except LedgerError as error:
                # The end itself is safe in the journal; the snapshot is only a short cut.
                _log.warning("%s", error)
        return entry

    def write_checkpoint(self, document: dict[str, Any]) -> Entry:
        """Journal a whole checkpoint document, new or in place of the one with its run and step."""
        run_id, step = document.get("run"), document.get("step")
        if not isinstance(run_id, str) or not isinstance(step, int):
            raise LedgerError("a checkpoint document needs a run and a step", where=str(self.folder))
        return self.put("checkpoint", run_id, checkpoints=[document])

    def put(
        self,
        kind: str,
        run_id: str,
        *,
        run: dict[str, Any] | None = None,
        checkpoints: Sequence[dict[str, Any]] = (),
        origin: str = "",
    ) -> Entry:
        """Journal documents of one run under one entry, each new or in place of the one before it."""
        with self.journal.locked():
            put: Documents = {}
            if run is not None:
                _check_size(run, MAX_START_BYTES if kind == "start" else MAX_RUN_BYTES)
                put[RUNS] = {self._tables.run_id(run_id) or str(self._tables.next_id(RUNS)): run}
            fresh = self._tables.next_id(CHECKPOINTS)
            for document in checkpoints:
                doc_id = self._tables.checkpoint_id(run_id, document["step"])
                if doc_id is None:
                    doc_id, fresh = str(fresh), fresh + 1
                put.setdefault(CHECKPOINTS, {})[doc_id] = document
            return self.journal.append(kind, run=run_id, put=put, origin=origin)

    def change(
        self, kind: str, run_id: str, fn: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """Journal what `fn` makes of a copy of a run document, and return the document as it then is.

        Nobody can write between the reading and the writing. When `fn` returns None nothing is journalled.
        Raises LedgerError when there is no such run or `fn` changes its id, and as `write`.
        """
        with self.journal.locked():
            document = self.run(run_id)
            if document is None:
                raise LedgerError(f"there is no run {run_id}", where=str(self.folder))
            changed = fn(document)
            if changed is not None:
                if changed.get("id") != run_id:
                    raise LedgerError(f"a change may not rename run {run_id}", where=str(self.folder))
                self.write(kind, changed)
            return self.run(run_id) or {}

    def mark(self, fn: Callable[[list[records.Mark]], records.Mark | None]) -> records.Mark | None:
        """Journal the mark that `fn` makes, seeing all the marks before it; None journals nothing.

        Nobody can write between the reading and the writing. Raises LedgerError as `Journal.append`.
        """
        with self.journal.locked():
            mark = fn(self.marks())
            if mark is not None:
                doc_id = str(self._tables.next_id(COURSE))
                self.journal.append("course", put={COURSE: {doc_id: records.to_document(mark)}})
            return mark

    def find(self, name: str) -> dict[str, Any]:
        """Return the run that a person means; see `names.resolve`. Raises InputError."""
        with self.journal.mutex:
            self.journal.refresh()
            rows = self._tables.documents.get(RUNS, {}).values()
            found: dict[str, Any] = view.copied(
                names.resolve(name, [row for row in rows if isinstance(row.get("id"), str)])
            )
            return found

    def save_view(self) -> None:
        """Write `view.json` for the journal as it now is; does nothing when it is there already."""
        with self.journal.locked():
            path = self.folder / "view.json"
            if self._view_head == self.journal.head and path.exists():
                return
            journal = self.journal
            view.save(path, self._tables.documents, Head(journal.head, journal.entries, journal.bytes))
            self._view_head = journal.head


def _check_size(document: dict[str, Any], most: int) -> None:
    """Refuse a run document that would make every later opening slow."""
    sizes = {}
    try:
        for name, value in document.items():
            sizes[name] = len(canonical.dumps(value))
        total = len(canonical.dumps(document))
    except UnicodeEncodeError as error:
        name = list(document)[len(sizes)]
        bad = error.object.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise LedgerError(
            f"the run's {name} is not UTF-8: {bad}",
            where=f"run {document['id']}",
            mend="write it in UTF-8; a file with such a name must be renamed",
        ) from error
    except (TypeError, ValueError) as error:
        raise LedgerError(f"a run document is not JSON: {error}", where=str(document["id"])) from error
    if total > most:
        largest = max(sizes, key=lambda name: sizes[name])
        raise LedgerError(
            f"a run document of {total:,} bytes is over {most:,}; its largest field is {largest} "
            f"({sizes[largest]:,} bytes)",
            where=str(document["id"]),
            mend=f"shorten {largest}: keep what is long in a file, and name the file",
        )
