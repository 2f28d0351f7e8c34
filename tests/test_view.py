"""The snapshot: stock TinyDB reads it, it is trusted only where the journal made it, and its end is replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_ledger import make
from tinydb import TinyDB

from labassist.errors import LedgerError
from labassist.ledger.store import Ledger


def test_stock_tinydb_reads_the_snapshot_document_for_document(tmp_path: Path) -> None:
    ledger = make(tmp_path, 12)
    ledger.change("note", ledger.find("@last")["id"], lambda row: {**row, "note": "größer ∞"})
    ledger.write_checkpoint({"run": "20260101-000001-1a1b1c", "step": 100, "bytes": 2**70})
    ledger.save_view()
    code = """
import json, sys
from tinydb import TinyDB
db = TinyDB(sys.argv[1], access_mode="r")
rows = lambda name: [[row.doc_id, row] for row in db.table(name)]
print(json.dumps({"tables": sorted(db.tables()), **{name: rows(name) for name in db.tables()}}))
"""
    command = [sys.executable, "-c", code, str(ledger.folder / "view.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    seen = json.loads(done.stdout)
    assert seen["tables"] == ["_default", "_meta", "checkpoints"]
    assert seen["_default"] == [[row.doc_id, dict(row)] for row in ledger.runs.all()]
    assert seen["checkpoints"] == [[row.doc_id, dict(row)] for row in ledger.checkpoints.all()]
    ((_, meta),) = seen["_meta"]
    journal = ledger.journal
    assert (meta["head"], meta["entries"], meta["bytes"]) == (journal.head, journal.entries, journal.bytes)


def stock_insert(path: Path) -> None:
    with TinyDB(path) as db:
        db.insert({"id": "forged", "state": "finished"})


def spliced(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"failed" ', 1))


def second_table(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b',"_default":{"1":{"id":"forged"}}}')


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.fault
@pytest.mark.parametrize("forge", [stock_insert, spliced, second_table, emptied, halved, Path.unlink])
def test_a_forged_or_broken_snapshot_is_not_trusted(tmp_path: Path, forge: Callable[[Path], None]) -> None:
    ledger = make(tmp_path, 5)
    ledger.save_view()
    expected = ledger.runs.all()
    forge(ledger.folder / "view.json")
    with Ledger.open(ledger.folder) as fresh:
        assert fresh.runs.all() == expected


def test_the_snapshot_of_another_ledger_is_not_trusted(tmp_path: Path) -> None:
    ledger, other = make(tmp_path / "a", 3), make(tmp_path / "b", 2)
    other.save_view()
    (ledger.folder / "view.json").write_bytes((other.folder / "view.json").read_bytes())
    with Ledger.open(ledger.folder) as fresh:
        assert fresh.runs.all() == ledger.runs.all()


def test_a_snapshot_is_used_and_only_the_tail_is_replayed(tmp_path: Path) -> None:
    ledger = make(tmp_path, 5)
    ledger.save_view()
    ledger.write("start", {"id": "after", "state": "running"})
    # Damage before the snapshot's position is for `audit` to find; this shows that it was not read again.
    path = ledger.folder / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b"finished", b"finish3d", 1))
    with Ledger.open(ledger.folder) as fresh:
        assert [row["id"] for row in fresh.runs] == [row["id"] for row in ledger.runs]
        assert [p.code for p in fresh.journal.verify()] == ["journal-edited"]
    (ledger.folder / "view.json").unlink()
    with pytest.raises(LedgerError, match="line 1: does not match its hash"):
        Ledger.open(ledger.folder)


def test_an_end_rewrites_the_snapshot(tmp_path: Path) -> None:
    ledger = make(tmp_path, 2)
    assert not (ledger.folder / "view.json").exists()
    ledger.change("end", ledger.find("@last")["id"], lambda row: {**row, "state": "finished"})
    with TinyDB(ledger.folder / "view.json", access_mode="r") as db:
        assert db.all() == ledger.runs.all()


def test_dropped_tables_survive_a_snapshot(tmp_path: Path) -> None:
    ledger = make(tmp_path, 2)
    ledger.db.drop_tables()
    ledger.save_view()
    with Ledger.open(ledger.folder) as fresh:
        assert fresh.runs.all() == [] == ledger.runs.all()
        fresh.write("start", {"id": "again"})
        assert [row["id"] for row in ledger.runs] == ["again"]
