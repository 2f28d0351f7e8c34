"""TinyDB over the journal: every change does as stock TinyDB, is journalled, and is seen by other processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_ledger import FORK, make, rebuilt
from tinydb import Query, TinyDB, where
from tinydb.operations import add, delete, increment
from tinydb.storages import MemoryStorage
from tinydb.table import Document

from labassist.errors import LedgerError
from labassist.ledger.store import Ledger

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
