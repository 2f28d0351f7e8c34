"""The ledger's own methods: what may be written, how runs are found, named and ordered."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command import answer
from small_ledger import make

from labassist.app.desk import Desk
from labassist.errors import InputError, LedgerError
from labassist.export.facts import chosen
from labassist.ledger import records
from labassist.ledger.room import MAX_START_BYTES
from labassist.ledger.store import Ledger, new_run_id
from labassist.workspace import Workspace


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
    large = {"id": "large", "config": {"text": "x" * MAX_START_BYTES}, "state": "running"}
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
    document["text"] = "x" * (MAX_START_BYTES - len(json.dumps(document, separators=(",", ":"))))
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
