"""The documents that follow from the journal, and their snapshot `view.json`, a stock TinyDB file.

`view.json` holds the tables, then a table `_meta` with one document `{"head", "entries", "bytes", "digest"}`:
the journal position it shows, and the SHA-256 of the file's bytes before `,"_meta":`. Any rewrite by another
program changes those bytes, so the digest says whether the snapshot may be trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from labassist.errors import LedgerError
from labassist.ledger import canonical
from labassist.ledger.entries import Documents, Entry, Head
from labassist.record.durable import sync_folder

RUNS = "_default"
CHECKPOINTS = "checkpoints"
COURSE = "course"
META = "_meta"

_SEAM = b',"_meta":'


class Tables:
    """All tables in memory, as of the last journal entry applied, with an index of runs and checkpoints.

    Documents in here are never changed in place, only replaced: whoever hands one out copies it.
    """

    def __init__(self, documents: Documents | None = None) -> None:
        self.documents: Documents = {RUNS: {}, CHECKPOINTS: {}}
        self.version = 0
        """Grows with every entry applied; tells query caches that they are stale."""
        self._ids: dict[Any, str] = {}
        self._highest: dict[str, int] = {}
        for table, rows in (documents or {}).items():
            self.documents[table] = {}
            for doc_id, document in rows.items():
                self._set(table, doc_id, document)

    def apply(self, entry: Entry) -> None:
        """Make the changes of one journal entry: drop, delete, then put in the order of document ids."""
        for table in entry.drop:
            for doc_id in list(self.documents.get(table, ())):
                self._remove(table, doc_id)
            self.documents.pop(table, None)
            self._highest.pop(table, None)
        for table, doc_ids in entry.delete.items():
            for doc_id in doc_ids:
                self._remove(table, doc_id)
        for table, rows in entry.put.items():
            self.documents.setdefault(table, {})
            for doc_id in sorted(rows, key=int):
                self._set(table, doc_id, rows[doc_id])
        self.version += 1

    def next_id(self, table: str) -> int:
        """Return an id above every one seen in this table since it was made."""
        return self._highest.get(table, 0) + 1

    def run_id(self, run: str) -> str | None:
        """Return the document id of a run."""
        return self._ids.get(run)

    def checkpoint_id(self, run: str, step: int) -> str | None:
        """Return the document id of a checkpoint."""
        return self._ids.get((run, step))

    def get(self, table: str, doc_id: str | None) -> dict[str, Any] | None:
        """Return a copy of one document, None where there is none."""
        document = self.documents.get(table, {}).get(doc_id or "")
        return None if document is None else copied(document)

    def _set(self, table: str, doc_id: str, document: dict[str, Any]) -> None:
        rows = self.documents[table]
        old = rows.get(doc_id)
        if old is not None and _key(table, old) != _key(table, document):
            self._forget(table, doc_id, old)
        rows[doc_id] = document
        self._highest[table] = max(self._highest.get(table, 0), int(doc_id))
        key = _key(table, document)
        if key is not None:
            self._ids[key] = doc_id

    def _remove(self, table: str, doc_id: str) -> None:
        document = self.documents.get(table, {}).pop(doc_id, None)
        if document is not None:
            self._forget(table, doc_id, document)

    def _forget(self, table: str, doc_id: str, document: dict[str, Any]) -> None:
        key = _key(table, document)
        if key is not None and self._ids.get(key) == doc_id:
            del self._ids[key]


def _key(table: str, document: dict[str, Any]) -> Any:
    """Return what a document is looked up by: a run by its id, a checkpoint by run and step."""
    if table == RUNS and isinstance(document.get("id"), str):
        return document["id"]
    if (
        table == CHECKPOINTS
        and isinstance(document.get("run"), str)
        and isinstance(document.get("step"), int)
    ):
        return document["run"], document["step"]
    return None


def copied(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {
            name: copied(item) if isinstance(item, (dict, list)) else item for name, item in value.items()
        }
    if isinstance(value, list):
        return [copied(item) if isinstance(item, (dict, list)) else item for item in value]
    return value


class _Meta(msgspec.Struct):
    head: str
    entries: int
    bytes: int
    digest: str


_decode_documents = msgspec.json.Decoder(Documents).decode
_decode_meta = msgspec.json.Decoder(dict[str, _Meta]).decode


def load(path: Path) -> tuple[Documents, Head] | None:
    """Return a snapshot's tables and journal position; None when it is missing, foreign or changed."""
    try:
        data = path.read_bytes()
        seam = data.rfind(_SEAM)
        meta = _decode_meta(data[seam + len(_SEAM) : -1])["1"]
        if data[seam:] != _tail(meta) or hashlib.sha256(data[:seam]).hexdigest() != meta.digest:
            return None
        return _decode_documents(data[:seam] + b"}"), Head(meta.head, meta.entries, meta.bytes)
    except (OSError, msgspec.MsgspecError, KeyError):
        # A snapshot is only a short cut: whatever is wrong with it, the journal knows better.
        return None


def save(path: Path, documents: Documents, head: Head) -> None:
    """Write a snapshot in one step: temporary file, fsync, rename, fsync of the folder.

    Raises LedgerError when it cannot be written; the one before it then stands.
    """
    # ASCII, as TinyDB itself writes, because stock TinyDB reads in the encoding of the locale.
    tables = {RUNS: {}, CHECKPOINTS: {}, **documents}
    text = json.dumps(tables, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    meta = _Meta(head.hash, head.entries, head.bytes, hashlib.sha256(text).hexdigest())
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(text)
            file.write(_tail(meta))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LedgerError(
            f"the snapshot cannot be written: {error.strerror}; all that was done is in the journal",
            where=str(path),
            mend="free some space on this disk",
        ) from error


def _tail(meta: _Meta) -> bytes:
    return _SEAM + canonical.dumps({"1": msgspec.to_builtins(meta)}) + b"}"
