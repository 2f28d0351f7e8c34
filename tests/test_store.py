"""TinyDB over the journal, the snapshot, and the ledger's own methods."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command import answer
from hypothesis import given, settings
from hypothesis import strategies as st
from tinydb import Query, TinyDB, where
from tinydb.operations import add, delete, increment
from tinydb.storages import MemoryStorage
from tinydb.table import Document

from labassist.app.desk import Desk
from labassist.errors import InputError, LedgerError
from labassist.export.facts import chosen
from labassist.ledger import records
from labassist.ledger.store import MAX_RUN_BYTES, Ledger, new_run_id
from labassist.workspace import Workspace

FORK = multiprocessing.get_context("fork")


def make(tmp_path: Path, runs: int = 3) -> Ledger:
    ledger = Ledger.open(tmp_path / "ledger", create=True)
    for i in range(runs):
        state = "running" if i % 2 else "finished"
        ledger.write(
            "start",
            {"id": f"20260101-00000{i}-{i:x}a{i:x}b{i:x}c", "state": state, "config": {"lr": 1e-4 * i}},
        )
    return ledger


def rebuilt(ledger: Ledger) -> dict[str, Any]:
    """All tables, computed from the journal alone."""
    (ledger.folder / "view.json").unlink(missing_ok=True)
    with Ledger.open(ledger.folder) as fresh:
        return fresh.db.storage.read() or {}


MUTATORS: dict[str, Callable[[Any], Any]] = {
    "insert": lambda db: db.insert({"id": "new", "deep": {"list": [1, {"a": None}]}}),
    "insert a Document": lambda db: db.insert(Document({"id": "nine"}, 9)),
    "insert_multiple": lambda db: db.insert_multiple({"id": f"m{i}"} for i in range(12)),
    "update all": lambda db: db.update({"seen": True}),
    "update cond": lambda db: db.update({"state": "lost"}, where("n") >= 2),
    "update doc_ids": lambda db: db.update(increment("n"), doc_ids=[1, 3]),
    "update in place": lambda db: db.update(lambda row: row["tags"].append("x"), where("id") == "b"),
    "update_multiple": lambda db: db.update_multiple(
        [
            ({"n": 10}, where("n") == 1),
            (add("n", 5), where("n") == 10),
            (delete("tags"), where("id") == "c"),
        ]
    ),
    "upsert an old one": lambda db: db.upsert({"id": "b", "n": 7}, where("id") == "b"),
    "upsert a new one": lambda db: db.upsert({"id": "z"}, where("id") == "z"),
    "upsert a Document": lambda db: db.upsert(Document({"n": 0}, 2)),
    "remove cond": lambda db: db.remove(where("n") == 2),
    "remove doc_ids": lambda db: db.remove(doc_ids=[1, 2]),
    "truncate": lambda db: db.truncate(),
    "truncate, insert": lambda db: (db.truncate(), db.insert({"id": "first"}))[1],
    "drop_table": lambda db: db.drop_table("_default"),
    "drop_tables": lambda db: db.drop_tables(),
    "another table": lambda db: db.table("other").insert({"x": 1}),
    "storage.write": lambda db: db.storage.write({"_default": {"1": {"id": "only"}}}),
}


@pytest.mark.parametrize("name", MUTATORS)
def test_every_mutator_does_as_stock_tinydb_and_is_journalled_and_seen(tmp_path: Path, name: str) -> None:
    start = [
        {"id": "a", "n": 1, "tags": []},
        {"id": "b", "n": 2, "tags": ["t"]},
        {"id": "c", "n": 3, "tags": []},
    ]
    ledger = Ledger.open(tmp_path / "ledger", create=True)
    other = Ledger.open(tmp_path / "ledger")
    stock = TinyDB(storage=MemoryStorage)
    ledger.db.insert_multiple(start)
    stock.insert_multiple(json.loads(json.dumps(start)))
    assert other.runs.search(where("id") == "b")[0]["n"] == 2
    entries = ledger.journal.entries

    assert MUTATORS[name](ledger.db) == MUTATORS[name](stock)

    assert ledger.journal.entries > entries
    for table in ("_default", "other"):
        expected = [(row.doc_id, dict(row)) for row in stock.table(table)]
        assert [(row.doc_id, dict(row)) for row in ledger.db.table(table)] == expected
        assert [(row.doc_id, dict(row)) for row in other.db.table(table)] == expected
    assert other.runs.search(where("id") == "b") == stock.search(where("id") == "b")
    assert ledger.db.storage.read() == rebuilt(ledger)
    assert ledger.journal.verify() == []


small = st.dictionaries(
    st.sampled_from("abc"), st.integers(0, 3) | st.booleans() | st.floats(0, 2), max_size=3
)
condition = st.builds(lambda key, value: where(key) == value, st.sampled_from("abc"), st.integers(0, 3))
operation = st.one_of(
    st.tuples(st.just("insert"), small),
    st.tuples(st.just("insert_multiple"), st.lists(small, max_size=3)),
    st.tuples(st.just("update"), small, condition),
    st.tuples(st.just("upsert"), small, condition),
    st.tuples(st.just("remove"), condition),
    st.tuples(st.just("truncate")),
    st.tuples(st.just("search"), condition),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(operation, st.booleans()), max_size=10))
def test_two_open_ledgers_together_are_one_stock_tinydb(steps: list[tuple[Any, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        one, two = Ledger.open(Path(name), create=True), Ledger.open(Path(name))
        stock = TinyDB(storage=MemoryStorage)
        for (method, *arguments), which in steps:
            table = (one if which else two).runs
            assert getattr(table, method)(*arguments) == getattr(stock, method)(*arguments)
        expected = repr([(row.doc_id, dict(sorted(row.items()))) for row in stock])
        for ledger in (one, two, Ledger.open(Path(name))):
            assert repr([(row.doc_id, dict(sorted(row.items()))) for row in ledger.runs]) == expected
        one.save_view()
        assert (
            repr([(row.doc_id, dict(sorted(row.items()))) for row in Ledger.open(Path(name)).runs])
            == expected
        )


def test_a_change_of_type_alone_is_a_change(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True)
    ledger.runs.insert({"x": 1})
    for value in (True, 1.0, 0.0, -0.0):
        ledger.runs.update({"x": value})
        with Ledger.open(tmp_path) as fresh:
            assert repr(fresh.runs.all()[0]["x"]) == repr(value)


def test_a_change_that_fails_leaves_nothing(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    before = ledger.runs.all()

    def breaks(row: Any) -> None:
        row["state"] = "half"
        if row["id"].startswith("20260101-000001"):
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        ledger.runs.update(breaks)
    with pytest.raises(LedgerError):
        ledger.runs.insert({"loss": float("inf")})
    with pytest.raises(LedgerError, match="_meta"):
        ledger.db.table("_meta").insert({"head": ""})
    assert ledger.runs.all() == before and ledger.journal.entries == 3


def test_a_change_of_nothing_leaves_no_entry(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    ledger.runs.update({"state": "lost"}, where("id") == "nobody")
    ledger.runs.update({"state": "running"}, where("state") == "running")
    assert ledger.runs.remove(where("id") == "nobody") == []
    assert ledger.journal.entries == 3


def test_results_are_copies(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    run_id = ledger.runs.all()[0]["id"]
    before = json.dumps(ledger.runs.all())
    results: list[Any] = [
        *ledger.runs.all(),
        *ledger.runs.search(where("id") == run_id),
        *ledger.runs.search(where("id") == run_id),
        ledger.runs.get(where("id") == run_id),
        ledger.runs.get(doc_id=1),
        *ledger.runs.get(doc_ids=[1, 2]),
        *iter(ledger.runs),
        ledger.run(run_id),
        ledger.find(run_id),
        ledger.find("@last"),
        *ledger.running(),
        ledger.change("note", run_id, lambda row: None),
        (ledger.db.storage.read() or {})["_default"]["1"],
    ]
    given_in = {"id": "given", "config": {"lr": 1}}
    ledger.write("start", given_in)
    for result in [*results, given_in]:
        result["config"]["lr"] = "changed"
        result["state"] = "changed"
    ledger.runs.remove(where("id") == "given")
    assert json.dumps(ledger.runs.all()) == before
    assert ledger.runs.search(where("id") == run_id)[0]["config"] == {"lr": 0.0}


def test_queries_are_not_stale_across_processes(tmp_path: Path) -> None:
    ledger = make(tmp_path, 4)
    query = where("state") == "running"
    assert ledger.runs.count(query) == 2 and ledger.runs.count(query) == 2

    def work() -> None:
        with Ledger.open(ledger.folder) as other:
            other.runs.update({"state": "finished"}, where("id") == ledger.runs.all()[1]["id"])

    for expected in (1, 1):
        process = FORK.Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
        assert ledger.runs.count(query) == expected == len(ledger.running())
    assert ledger.runs.count((Query().config.lr > 1e-4) & query) == 1


def test_a_change_is_atomic_across_processes(tmp_path: Path) -> None:
    ledger = make(tmp_path, 1)
    run_id = ledger.find("@last")["id"]

    def work() -> None:
        with Ledger.open(ledger.folder) as mine:
            for _ in range(50):
                mine.change("note", run_id, lambda row: {**row, "step": row.get("step", 0) + 1})

    processes = [FORK.Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    document = ledger.run(run_id)
    assert document and document["step"] == 200
    assert ledger.change("note", run_id, lambda row: None) == document
    assert ledger.journal.entries == 201
    with pytest.raises(LedgerError, match="there is no run nobody"):
        ledger.change("note", "nobody", lambda row: row)
    with pytest.raises(LedgerError, match="may not rename"):
        ledger.change("note", run_id, lambda row: {**row, "id": "other"})


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


def test_write_replaces_by_id_and_checkpoints_by_run_and_step(tmp_path: Path) -> None:
    ledger = make(tmp_path, 2)
    ledger.write("note", {"id": ledger.find("@-2")["id"], "state": "stopped"})
    assert [row["state"] for row in ledger.runs] == ["stopped", "running"]
    for step, size in ((100, 1), (200, 2), (100, 3)):
        ledger.write_checkpoint({"run": "a", "step": step, "bytes": size})
    ledger.write_checkpoint({"run": "b", "step": 100, "bytes": 4})
    assert [(row["step"], row["bytes"]) for row in ledger.checkpoints] == [(100, 3), (200, 2), (100, 4)]
    assert (ledger.checkpoint("a", 200) or {})["bytes"] == 2
    assert ledger.checkpoint("a", 300) is None
    kinds = [entry.kind for entry in type(ledger.journal)(ledger.folder, readonly=True).refresh()]
    assert kinds == ["start"] * 2 + ["note"] + ["checkpoint"] * 4


def test_what_may_not_be_written(tmp_path: Path) -> None:
    ledger = make(tmp_path, 1)
    large = {"id": "large", "config": {"text": "x" * MAX_RUN_BYTES}, "state": "running"}
    with pytest.raises(LedgerError, match="largest field is config"):
        ledger.write("start", large)
    for bad in ({"state": "running"}, {"id": 7}, {"id": "../up"}, {"id": "a", "loss": float("nan")}):
        with pytest.raises(LedgerError):
            ledger.write("start", bad)
    with pytest.raises(LedgerError):
        ledger.write_checkpoint({"run": "a"})
    with pytest.raises(LedgerError):
        ledger.run_folder("..")
    assert ledger.journal.entries == 1
    document = {"id": "fits", "text": ""}
    document["text"] = "x" * (MAX_RUN_BYTES - len(json.dumps(document, separators=(",", ":"))))
    ledger.write("start", document)


def test_runs_are_found_by_what_people_type(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True)
    with pytest.raises(InputError, match=r"no run @last: none has been recorded"):
        ledger.find("@last")
    ids = ["20260101-000000-aa1111", "20260101-000001-ab2222", "20260202-000000-ab3333"]
    for run_id in ids:
        ledger.write("start", {"id": run_id})
    ledger.write("start", {"id": "20260303-000000-cc4444", "replay_of": ids[0]})
    for name, expected in (
        (ids[1], ids[1]),
        ("20260202", ids[2]),
        ("aa", ids[0]),
        ("ab2", ids[1]),
        ("@last", ids[2]),
        ("@-1", ids[2]),
        ("@-3", ids[0]),
        ("cc", "20260303-000000-cc4444"),
    ):
        assert ledger.find(name)["id"] == expected
    with pytest.raises(InputError, match=f"means 2 runs: {ids[1]}, {ids[2]}"):
        ledger.find("ab")
    with pytest.raises(InputError, match=f"did you mean {ids[1]}"):
        ledger.find("ab2223")
    with pytest.raises(InputError, match="only 3 recorded"):
        ledger.find("@-4")
    for bad in ("", "@first", "@-0", "@-x", "qqqqqq"):
        with pytest.raises(InputError):
            ledger.find(bad)
    ledger.runs.insert_multiple([{"id": 7}, {"no": "id"}])
    for i in range(7):
        ledger.write("start", {"id": f"20270101-00000{i}-d{i}0000"})
    with pytest.raises(InputError, match=r"means 7 runs: .* and 2 more"):
        ledger.find("2027")


def test_the_full_id_wins_over_a_prefix(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True)
    for run_id in ("run", "run-2"):
        ledger.write("start", {"id": run_id})
    assert ledger.find("run")["id"] == "run"


def test_opening(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger here"):
        Ledger.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    made = Ledger.open(tmp_path / "new", create=True)
    assert made.runs.all() == [] and not made.readonly
    made.write("start", {"id": "a"})
    assert Ledger.open(tmp_path / "new", create=True).run("a") == {"id": "a"}
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path / "file" / "ledger", create=True)


@pytest.mark.fault
def test_a_newer_ledger_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "SCHEMA", records.SCHEMA + 1)
        make(tmp_path, 2).save_view()
    ledger = Ledger.open(tmp_path / "ledger")
    assert ledger.readonly and len(ledger.runs) == 2
    with pytest.raises(LedgerError, match="upgrade labassist"):
        ledger.runs.truncate()


def test_run_ids_sort_by_time_and_are_unique() -> None:
    moment = datetime(2026, 11, 30, 2, 49, 32, tzinfo=UTC)
    assert new_run_id(moment).startswith("20261130-024932-")
    ids = {new_run_id(moment) for _ in range(200)}
    assert len(ids) == 200 and all(len(run_id) == 22 for run_id in ids)
    assert new_run_id(moment) < new_run_id(moment.replace(second=33))


def test_runs_are_in_the_order_in_which_they_began_and_not_in_that_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "labs").mkdir()
    with Ledger.open(tmp_path / "ledger", create=True) as ledger:
        for kind, run, created in (
            ("start", "20260202-000000-bb0000", "2026-02-02T00:00:00.000Z"),
            ("start", "20260303-000000-dd0000", "2026-03-03T00:00:00.100Z"),
            ("start", "20260303-000000-cc0000", "2026-03-03T00:00:00.200Z"),
            ("import", "20260101-000000-aa0000", "2026-01-01T00:00:00.000Z"),
            ("import", "20260225-000000-ee0000", "2026-02-25T00:00:00.000Z"),
        ):
            ledger.write(
                kind, {"id": run, "created": created, "job": "j", "mode": "fast", "state": "finished"}
            )
        assert [ledger.find(f"@-{back}")["id"][-6:-4] for back in range(1, 6)] == [
            "cc",
            "dd",
            "ee",
            "bb",
            "aa",
        ]
        assert [run["id"][-6:-4] for run in chosen(ledger, [])] == ["aa", "bb", "ee", "dd", "cc"]
        told: list[Any] = []
        desk = Desk(Workspace(tmp_path), told.append)
        desk._look(ledger)
        assert [run["id"][-6:-4] for run in told[-1].runs] == ["aa", "bb", "ee", "dd", "cc"]
    listed = answer("runs", cwd=tmp_path)["runs"]
    assert [run["id"][-6:-4] for run in listed] == ["aa", "bb", "ee", "dd", "cc"]
