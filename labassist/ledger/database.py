"""TinyDB over the journal: its own queries and methods, but every change is a journal entry.

TinyDB's mutators change documents in place, choose an id before any lock, and cache query results. Here each
of them takes the writers' lock, reads what others appended, forgets its cache, computes on copies, and
journals the documents as they are afterwards. Every result is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from tinydb import TinyDB
from tinydb.queries import QueryLike
from tinydb.storages import Storage
from tinydb.table import Document, Table

from labassist.errors import LedgerError
from labassist.ledger.entries import Documents
from labassist.ledger.journal import Journal
from labassist.ledger.view import META, Tables, copied

Fields = Mapping[str, Any] | Callable[[MutableMapping[str, Any]], None]


class JournalStorage(Storage):
    """The storage that TinyDB sees: reads come from the tables, writes go to the journal."""

    def __init__(self, journal: Journal, tables: Tables) -> None:
        super().__init__()
        self.journal = journal
        self.tables = tables

    def live(self) -> Documents:
        """Return all tables, up to date. The caller must not change them."""
        self.journal.refresh()
        return self.tables.documents

    def read(self) -> dict[str, dict[str, Any]]:
        """Return a copy of all tables, up to date."""
        with self.journal.mutex:
            documents: Documents = copied(self.live())
            return documents

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        """Make the tables equal to `data`, journalling only what differs."""
        with self.journal.locked():
            before = self.live()
            put: Documents = {}
            delete: dict[str, list[str]] = {}
            for table, rows in data.items():
                old = before.get(table, {})
                changed = {
                    str(doc_id): dict(row)
                    for doc_id, row in rows.items()
                    if not _same(row, old.get(str(doc_id)))
                }
                gone = [doc_id for doc_id in old if doc_id not in {str(key) for key in rows}]
                if changed or table not in before:
                    put[table] = changed
                if gone:
                    delete[table] = gone
            self.commit(put=put, delete=delete, drop=[table for table in before if table not in data])

    def commit(
        self,
        *,
        put: Documents | None = None,
        delete: dict[str, list[str]] | None = None,
        drop: list[str] | None = None,
    ) -> None:
        """Journal one change made through TinyDB. A change of nothing leaves no entry."""
        if META in {*(put or ()), *(delete or ()), *(drop or ())}:
            raise LedgerError(f"the table {META} belongs to the snapshot", where=str(self.journal.folder))
        if put or delete or drop:
            self.journal.append("table", put=put, delete=delete, drop=drop)


class LedgerTable(Table):
    """A TinyDB table whose changes are journal entries and whose results are copies."""

    _storage: JournalStorage
    _next_id: int | None  # type: ignore[assignment]
    _seen = -1

    def insert(self, document: Mapping[str, Any]) -> int:
        """Insert one document and return its id."""
        with self._change():
            return super().insert(document)

    def insert_multiple(self, documents: Iterable[Mapping[str, Any]]) -> list[int]:
        """Insert documents under one journal entry and return their ids."""
        rows = list(documents)
        with self._change():
            taken = [row.doc_id for row in rows if isinstance(row, Document)]
            self._next_id = max([self._storage.tables.next_id(self.name), *(doc_id + 1 for doc_id in taken)])
            return super().insert_multiple(rows)

    def update(
        self, fields: Fields, cond: QueryLike | None = None, doc_ids: Iterable[int] | None = None
    ) -> list[int]:
        """Change the documents that match `cond`, those named by `doc_ids`, or all; return their ids."""
        with self._change():
            return super().update(fields, None, self._targets(cond, doc_ids))

    def update_multiple(self, updates: Iterable[tuple[Fields, QueryLike]]) -> list[int]:
        """Make several conditional updates under one journal entry; return the changed ids."""
        with self._change():
            return super().update_multiple(list(updates))

    def upsert(self, document: Mapping[str, Any], cond: QueryLike | None = None) -> list[int]:
        """Update what matches, insert where nothing does; return the ids."""
        with self._change():
            return super().upsert(document, cond)

    def remove(self, cond: QueryLike | None = None, doc_ids: Iterable[int] | None = None) -> list[int]:
        """Remove the documents that match `cond` or that `doc_ids` names; return their ids."""
        with self._change():
            if cond is None and doc_ids is None:
                return super().remove()
            return super().remove(None, self._targets(cond, doc_ids))

    def truncate(self) -> None:
        """Remove all documents, keeping the table."""
        with self._change():
            super().truncate()

    def search(self, cond: QueryLike) -> list[Document]:
        """Return copies of the documents that match."""
        with self._storage.journal.mutex:
            self._read_table()
            return [_copy(document) for document in super().search(cond)]

    def get(self, cond: Any = None, doc_id: Any = None, doc_ids: Any = None) -> Any:
        """Return a copy of one document (a list of them for `doc_ids`), None where nothing matches."""
        with self._storage.journal.mutex:
            found = super().get(cond, doc_id, doc_ids)
            if isinstance(found, list):
                return [_copy(document) for document in found]
            return None if found is None else _copy(found)

    def __iter__(self) -> Iterator[Document]:
        with self._storage.journal.mutex:
            rows = [Document(copied(row), int(doc_id)) for doc_id, row in self._read_table().items()]
        return iter(rows)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock with everything read; the next id is chosen afresh under it."""
        with self._storage.journal.locked():
            self._next_id = None
            yield

    def _targets(self, cond: QueryLike | None, doc_ids: Iterable[int] | None) -> list[int]:
        """Return the ids that exist among those asked for, so that only their documents are copied."""
        rows = self._read_table()
        if doc_ids is not None:
            return [doc_id for doc_id in doc_ids if str(doc_id) in rows]
        return [int(doc_id) for doc_id, row in rows.items() if cond is None or cond(row)]

    def _read_table(self) -> dict[str, Mapping[str, Any]]:
        """Return the live rows, up to date; a stale query cache is cleared on the way."""
        rows = self._storage.live().get(self.name, {})
        if self._seen != self._storage.tables.version:
            self.clear_cache()
            self._seen = self._storage.tables.version
        return rows  # type: ignore[return-value]

    def _get_next_id(self) -> int:
        if self._next_id is None:
            self._next_id = self._storage.tables.next_id(self.name)
        self._next_id += 1
        return self._next_id - 1

    def _update_table(self, updater: Callable[[Any], None]) -> None:
        """Let TinyDB's updater work on copies, and journal what it changed."""
        with self._storage.journal.locked():
            draft = _Draft(self._read_table())
            updater(draft)
            self._storage.commit(**draft.changes(self.name))


class LedgerDB(TinyDB):
    """TinyDB whose tables are `LedgerTable`s over one journal."""

    table_class = LedgerTable
    _storage: JournalStorage

    def __init__(self, journal: Journal, tables: Tables) -> None:
        super().__init__(journal, tables, storage=JournalStorage)

    def tables(self) -> set[str]:
        """Return the names of all tables."""
        return set(self._storage.live())

    def drop_table(self, name: str) -> None:
        """Drop a table, if it is there."""
        with self._storage.journal.locked():
            self._tables.pop(name, None)
            if name in self._storage.live():
                self._storage.commit(drop=[name])

    def drop_tables(self) -> None:
        """Drop every table."""
        with self._storage.journal.locked():
            self._tables.clear()
            self._storage.commit(drop=list(self._storage.live()))


class _Draft(MutableMapping[int, Any]):
    """A table as TinyDB's updaters see it: documents by integer id, copied when touched."""

    def __init__(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self._rows = rows
        self._touched: dict[int, Any] = {}
        self._gone: set[int] = set()
        self._cleared = False

    def __getitem__(self, doc_id: int) -> Any:
        if doc_id not in self._touched:
            if doc_id in self._gone:
                raise KeyError(doc_id)
            self._touched[doc_id] = copied(self._rows[str(doc_id)])
        return self._touched[doc_id]

    def __setitem__(self, doc_id: int, document: Any) -> None:
        self._gone.discard(doc_id)
        self._touched[doc_id] = document

    def __delitem__(self, doc_id: int) -> None:
        if doc_id not in self:
            raise KeyError(doc_id)
        self._touched.pop(doc_id, None)
        self._gone.add(doc_id)

    def __contains__(self, doc_id: object) -> bool:
        return doc_id in self._touched or (doc_id not in self._gone and str(doc_id) in self._rows)

    def __iter__(self) -> Iterator[int]:
        yield from (int(doc_id) for doc_id in self._rows if int(doc_id) not in self._gone)
        yield from (doc_id for doc_id in self._touched if str(doc_id) not in self._rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Empty the table at once, instead of document by document."""
        self._rows, self._touched, self._gone, self._cleared = {}, {}, set(), True

    def changes(self, table: str) -> dict[str, Any]:
        """Return the post-images and removals, as `JournalStorage.commit` takes them."""
        put = {
            str(doc_id): document
            for doc_id, document in self._touched.items()
            if not _same(document, self._rows.get(str(doc_id)))
        }
        gone = [str(doc_id) for doc_id in sorted(self._gone) if str(doc_id) in self._rows]
        return {
            "put": {table: put} if put or self._cleared else {},
            "delete": {table: gone} if gone else {},
            "drop": [table] if self._cleared else [],
        }


def _same(new: Any, old: Any) -> bool:
    """Say whether two documents are the same JSON (1, 1.0 and true are equal in Python, and are not)."""
    return bool(new == old) and repr(new) == repr(old)


def _copy(document: Document) -> Document:
    return Document(copied(document), document.doc_id)
