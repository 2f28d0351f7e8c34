"""fsck names what does not fit in the store, mends what the journal can rebuild, and never drops anything."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import little
import pytest
from command import answer, labassist
from tinydb import TinyDB

from labassist.ledger.audit import audit
from labassist.ledger.entries import chain
from labassist.ledger.journal import Journal
from labassist.ledger.store import Ledger
from labassist.runs.fsck import fsck

pytestmark = pytest.mark.fault


@pytest.fixture
def lab(little_lab: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(little_lab, tmp_path / "lab", symlinks=True))


def run_folder(lab: Path) -> Path:
    """Return the folder of the first run; by its name it may be another, made in the same second."""
    return lab / "ledger" / "runs" / little.lines(lab)[0]["run"]


def codes(lab: Path, *, repair: bool = False) -> dict[str, bool]:
    return {finding.code: finding.mended for finding in fsck(lab / "ledger", repair=repair).findings}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_whole_store_is_ok_and_nothing_is_written(lab: Path) -> None:
    before = tree(lab / "ledger")
    found = answer("fsck", cwd=lab)
    assert found["ok"] is True and found["findings"] == []
    assert found["checked"]["checkpoints"] == 8 + 3 + 3
    answer("fsck", "--repair", cwd=lab)
    assert tree(lab / "ledger") == before


def torn_tail(ledger: Path) -> None:
    with (ledger / "journal.jsonl").open("ab") as file:
        file.write(b"0123 half a line")


def head_gone(ledger: Path) -> None:
    (ledger / "head").unlink()


def head_rubbish(ledger: Path) -> None:
    (ledger / "head").write_bytes(b"rubbish")


def head_behind(ledger: Path) -> None:
    lines = (ledger / "journal.jsonl").read_bytes().splitlines(keepends=True)[:3]
    head = {"hash": lines[-1][:64].decode(), "entries": 3, "bytes": sum(map(len, lines))}
    (ledger / "head").write_text(json.dumps(head).ljust(159) + "\n")


def view_forged(ledger: Path) -> None:
    with TinyDB(ledger / "view.json") as db:
        db.insert({"id": "forged", "state": "finished"})


def view_stale(ledger: Path) -> None:
    old = (ledger / "view.json").read_bytes()
    with Ledger.open(ledger) as opened:
        opened.change("note", opened.find("@last")["id"], lambda run: {**run, "note": "later"})
    (ledger / "view.json").write_bytes(old)


def view_of_another(ledger: Path) -> None:
    with Ledger.open(ledger.parent / "other", create=True) as other:
        other.write("start", {"id": "x", "state": "running"})
        other.save_view()
    shutil.move(ledger.parent / "other" / "view.json", ledger / "view.json")


def positions_gone(ledger: Path) -> None:
    (run_folder(ledger.parent) / "positions.jsonl").unlink()


def positions_wrong(ledger: Path) -> None:
    path = run_folder(ledger.parent) / "positions.jsonl"
    path.write_bytes(b"rubbish\n" + path.read_bytes())


def manifest(ledger: Path) -> Path:
    with Ledger.open(ledger) as opened:
        return opened.objects.path(opened.checkpoints.all()[0]["manifest"])


def manifest_damaged(ledger: Path) -> None:
    path = manifest(ledger)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"labassist", b"labassisT"))


def manifest_gone(ledger: Path) -> None:
    manifest(ledger).unlink()


def leftovers(ledger: Path) -> None:
    (ledger / "view.tmp").write_text("half")
    (ledger / "objects" / ".tmp-999999999-0a0b0c0d").write_text("half")


def half_checkpoint(ledger: Path) -> None:
    folder = run_folder(ledger.parent) / "checkpoints" / "step-00000025.tmp"
    folder.mkdir()
    (folder / "model.safetensors").write_text("half")


def start_killed(ledger: Path) -> None:
    folder = ledger / "runs" / "20260101-000000-abcdef"
    folder.mkdir()
    (folder / "order.json").write_text("{}")


MENDED: list[tuple[Callable[[Path], None], str]] = [
    (torn_tail, "journal-torn"),
    (head_gone, "head-missing"),
    (head_rubbish, "head-damaged"),
    (head_behind, "head-behind"),
    (view_forged, "view-altered"),
    (view_stale, "view-stale"),
    (view_of_another, "view-foreign"),
    (positions_gone, "positions-missing"),
    (positions_wrong, "positions-damaged"),
    (manifest_damaged, "object-damaged"),
    (manifest_gone, "object-missing"),
    (leftovers, "leftover"),
    (half_checkpoint, "checkpoint-half"),
    (start_killed, "run-unknown"),
]


@pytest.mark.parametrize(("harm", "code"), MENDED)
def test_what_follows_from_the_journal_is_mended_and_nothing_is_dropped(
    lab: Path, harm: Callable[[Path], None], code: str
) -> None:
    ledger = lab / "ledger"
    harm(ledger)
    before = tree(ledger)
    assert codes(lab) == {code: False}
    assert tree(ledger) == before  # looking changes nothing
    assert codes(lab, repair=True) == {code: True}
    assert codes(lab) == {}
    assert audit(ledger, lab).ok
    kept = set(tree(ledger).values())
    lost = [name for name, content in before.items() if content not in kept]
    # A line is cut off the journal and stands in a file of its own; what lagged behind is written over.
    assert set(lost) <= {"journal.jsonl", "head", "view.json"}, lost
    if code == "journal-torn":
        assert (ledger / "journal.torn-1").read_bytes() == b"0123 half a line"


def edit(lines: list[bytes]) -> list[bytes]:
    lines[2] = lines[2].replace(b'"schema":1', b'"schema":0')
    return lines


def swap(lines: list[bytes]) -> list[bytes]:
    lines[2], lines[3] = lines[3], lines[2]
    return lines


def delete(lines: list[bytes]) -> list[bytes]:
    return lines[:2] + lines[3:]


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-2]


def splice(lines: list[bytes]) -> list[bytes]:
    """Change the last line and give it the right hash: only the witnesses beside the journal can tell."""
    body = lines[-1][65:-1].replace(b'"kind":"end"', b'"kind":"END"')
    return [*lines[:-1], chain(lines[-2][:64].decode(), body).encode() + b" " + body + b"\n"]


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (edit, "journal-edited"),
        (swap, "journal-order"),
        (delete, "journal-order"),
        (cut, "journal-cut"),
        (splice, "journal-replaced"),
    ],
)
def test_a_damaged_journal_is_named_and_left_alone(
    lab: Path, harm: Callable[[list[bytes]], list[bytes]], code: str
) -> None:
    path = lab / "ledger" / "journal.jsonl"
    path.write_bytes(b"".join(harm(path.read_bytes().splitlines(keepends=True))))
    (lab / "ledger" / "view.tmp").write_text("half")
    before = tree(lab / "ledger")
    text = fsck(lab / "ledger", repair=True).text()
    assert "NOT OK" in text and code in text and "restore it from a copy" in text
    assert tree(lab / "ledger") == before
    assert code in {problem.code for problem in audit(lab / "ledger", lab).problems}


def test_what_was_not_done_never_reads_as_done(lab: Path) -> None:
    path = lab / "ledger" / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-5]))
    (lab / "ledger" / "head").unlink()
    (run_folder(lab) / "positions.jsonl").write_bytes(b"rubbish\n")
    before = tree(lab / "ledger")
    done = labassist("fsck", "--repair", cwd=lab, status=1)
    for code in ("head-missing", "view-foreign", "positions-damaged"):
        said = done.stdout.split(f"  {code}: ")[1].splitlines()[1]
        assert said == "    refused: nothing is mended while the journal is damaged", said
    assert "written anew" not in done.stdout and "mended:" not in done.stdout
    assert tree(lab / "ledger") == before
    found = answer("fsck", cwd=lab, status=1)["findings"]
    assert not any("written anew" in one["repair"] or one["mended"] for one in found)


def test_reading_says_that_the_journal_was_cut(lab: Path) -> None:
    path = lab / "ledger" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]))
    done = labassist("--json", "runs", cwd=lab)
    cut = f"the journal was cut: head names {len(lines)} entries and {len(lines) - 2} are there"
    assert f"warning: {path}: {cut}; see `labassist audit` and `labassist fsck`" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and len(json.loads(done.stdout)["runs"]) == 3
    path.write_bytes(b"")
    for words in (("runs",), ("show", "@last"), ("labs",), ("attach",)):
        done = labassist(*words, cwd=lab, status=2)
        assert f"the journal was cut: head names {len(lines)} entries and 0 are there; see" in done.stderr
        assert done.stdout == ""


def test_what_is_gone_for_good_is_named(lab: Path) -> None:
    with Ledger.open(lab / "ledger") as ledger:
        run = ledger.find("@last")
        ledger.objects.path(run["code"]["package"]).unlink()
    shutil.rmtree(run_folder(lab))
    assert codes(lab, repair=True) == {"object-missing": False, "run-folder-missing": False}


def test_no_mend_is_offered_that_cannot_be_done(lab: Path) -> None:
    """A manifest is stored again from its checkpoint, and not where that is gone too."""
    manifest_gone(lab / "ledger")
    for folder in (lab / "ledger" / "runs").glob("*/checkpoints"):
        shutil.rmtree(folder)
    found = fsck(lab / "ledger").findings
    (lost,) = (one for one in found if one.code == "object-missing")
    assert lost.repair == "" and lost.message.endswith("restore it from a copy of this ledger")


def test_a_start_in_flight_and_a_held_lock_are_no_damage(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lab / "ledger" / "runs" / "20260101-000000-abcdef"
    folder.mkdir()
    with (folder / "alive").open("w") as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert codes(lab, repair=True) == {}
    monkeypatch.setattr("labassist.ledger.fsck._PATIENCE_S", 0.1)
    head_gone(lab / "ledger")
    with (lab / "ledger" / "journal.jsonl").open() as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        assert codes(lab, repair=True)["journal-locked"] is False
        assert not (lab / "ledger" / "head").exists()


def test_an_orphan_is_harmless_and_left(lab: Path) -> None:
    with Ledger.open(lab / "ledger") as ledger:
        sha = ledger.objects.put(b"nobody names this")
    found: Any = answer("fsck", "--repair", cwd=lab)
    assert found["ok"] and [one["code"] for one in found["findings"]] == ["object-orphan"]
    assert (lab / "ledger" / "objects" / sha).exists()


def test_a_head_that_was_taken_away_is_said_when_it_is_written_anew(
    lab: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head_gone(lab / "ledger")
    done = labassist("note", "@last", "a note", cwd=lab)
    assert "head was gone and is written anew at entry" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    fresh = Journal(lab / "fresh") if (lab / "fresh").mkdir() is None else None
    assert fresh is not None and fresh.append("note").n == 1
    assert caplog.text == ""  # a new ledger has no head to miss


def test_there_must_be_a_ledger(tmp_path: Path) -> None:
    for name in ("labs", "ledger"):
        (tmp_path / name).mkdir()
    assert "there is no ledger here" in labassist("fsck", cwd=tmp_path, status=2).stderr
    assert os.listdir(tmp_path / "ledger") == []
