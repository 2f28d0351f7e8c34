"""What can happen to a ledger in a year: power cuts, full disks, moved folders, wrong clocks, other versions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import little
import pytest
from command import answer, labassist, wait_closed, wait_for_step
from test_upgrade import Newer
from tinydb import TinyDB

from labassist.errors import LedgerError
from labassist.ledger import curves, environment, journal
from labassist.ledger.audit import audit
from labassist.ledger.store import Ledger, new_run_id
from labassist.ledger.verdict import compare
from labassist.runs.recover import recover
from labassist.workspace import Workspace, new

pytestmark = [pytest.mark.fault, pytest.mark.ci]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one run of 60 steps, one of whose losses is a nan."""
    root = new(tmp_path_factory.mktemp("faults") / "lab").workspace.root
    little.record(root, 60, 10, "45")
    return root


@pytest.fixture
def lab(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "lab", symlinks=True))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own, of 16 MiB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fill a disk but for about `leave` bytes."""
    filler = disk / "filler"
    filler.write_bytes(b"x" * max(0, shutil.disk_usage(disk).free - leave))
    return filler


def problems(lab: Path) -> set[tuple[str, str]]:
    return {(problem.code, Path(problem.path).name) for problem in audit(lab / "ledger", lab).problems}


def test_a_stock_insert_into_the_snapshot_is_named_and_not_believed(lab: Path) -> None:
    with TinyDB(lab / "ledger" / "view.json") as db:
        db.insert({"id": "20300101-000000-forged", "state": "finished", "job": "x"})
    assert problems(lab) == {("view-altered", "view.json")}
    assert len(answer("runs", cwd=lab)["runs"]) == 1


def test_other_bits_of_a_nan_are_named(lab: Path) -> None:
    (path,) = (lab / "ledger").glob("runs/*/metrics-rank0.jsonl")
    text = path.read_text()
    assert text.count("nan:fff8000000000123") == 1
    path.write_text(text.replace("nan:fff8000000000123", "nan:fff8000000000122"))
    assert problems(lab) == {("curve-altered", "metrics-rank0.jsonl")}
    assert "sealed at step 50" in audit(lab / "ledger", lab).problems[0].message


def killed_at_once(lab: Path) -> tuple[dict[str, Any], Path]:
    """Start a run, and take every process of it away at some step after its third checkpoint."""
    run = little.record(lab, 60, 10, pause=0.02, before=("--detach",))
    folder = lab / "ledger" / "runs" / run["id"]
    wait_for_step(folder, 33)
    pids = json.loads((folder / "alive").read_text())
    for pid in (int((folder / "supervised").read_text()), pids["shim"], pids["trainer"]):
        os.kill(pid, signal.SIGKILL)
    return run, folder


@pytest.mark.parametrize(
    "lost",
    [
        "half a line",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("all that was not synced", "nothing")),
    ],
)
def test_a_power_cut_between_curve_and_seal_costs_steps_and_no_record(lab: Path, lost: str) -> None:
    """What was written after the last fsync is dropped, as a power cut may."""
    run, folder = killed_at_once(lab)
    path = folder / "metrics-rank0.jsonl"
    events = [json.loads(line) for line in (folder / "events-rank0.jsonl").read_text().splitlines()]
    sealed = [event for event in events if event["event"] == "checkpoint"][-1]
    synced = sealed["curve"][path.name]["bytes"]
    if lost != "nothing":
        os.truncate(path, synced + (0 if lost.startswith("all") else 17))
    closed = wait_closed(lab, run)
    assert closed["state"] == "lost"
    assert problems(lab) == set()
    resumed = answer("resume", run["id"], cwd=lab)
    assert resumed["resumed_from"]["step"] == sealed["step"] >= 30
    whole = little.record(lab, 60, 10)
    with Ledger.open(lab / "ledger") as ledger:
        ours, theirs = (curves.joined(ledger, one["id"]) for one in (resumed, whole))
    assert compare(ours, theirs, None).verdict == "BITWISE"
    assert problems(lab) == set()


@pytest.mark.slow
def test_a_disk_that_lied_about_fsync_is_named(lab: Path) -> None:
    run, folder = killed_at_once(lab)
    os.truncate(folder / "metrics-rank0.jsonl", 500)
    wait_closed(lab, run)
    found = audit(lab / "ledger", lab).problems
    assert ("curve-altered", "metrics-rank0.jsonl") in {(p.code, Path(p.path).name) for p in found}
    assert any("were sealed at step" in p.message for p in found)


def test_a_full_disk_keeps_the_snapshot_before_and_the_end_itself(disk: Path) -> None:
    ledger = Ledger.open(disk / "ledger", create=True)
    for number in range(40):
        ledger.write("start", {"id": f"r{number}", "state": "running", "note": "x" * 2000})
    ledger.save_view()
    before = (disk / "ledger" / "view.json").read_bytes()
    filler = fill(disk, 20_000)
    ledger.change("end", "r7", lambda run: {**run, "state": "finished"})  # journalled all the same
    with pytest.raises(LedgerError, match="all that was done is in the journal"):
        ledger.save_view()
    assert (disk / "ledger" / "view.json").read_bytes() == before
    assert not (disk / "ledger" / "view.tmp").exists()
    with Ledger.open(disk / "ledger") as fresh:
        assert (fresh.run("r7") or {})["state"] == "finished"
    filler.unlink()
    ledger.save_view()
    assert (disk / "ledger" / "view.json").read_bytes() != before


@pytest.mark.slow
def test_a_full_disk_leaves_no_half_bundle_and_no_half_import(lab: Path, disk: Path, tmp_path: Path) -> None:
    filler = fill(disk, 30_000)
    done = labassist("export", "--all", "--to", "bundle", "-o", str(disk / "all.tar"), cwd=lab, status=2)
    assert "No space left" in done.stderr and "the ledger is not touched" in done.stderr
    assert os.listdir(disk) == ["filler"] and problems(lab) == set()
    labassist("export", "--all", "--to", "bundle", "-o", str(tmp_path / "all.tar"), cwd=lab)
    filler.unlink()
    home = new(disk / "home").workspace.root
    filler = fill(disk, 100_000)
    done = labassist("import", str(tmp_path / "all.tar"), cwd=home, status=2)
    assert "No space left" in done.stderr and len(done.stderr.splitlines()) == 1
    assert "free some space where this workspace is" in done.stderr
    assert little.lines(home) == []
    filler.unlink()
    assert len(answer("import", str(tmp_path / "all.tar"), cwd=home)["new"]) == 1
    assert problems(home) == set()
    filler = fill(disk, 100_000)
    done = labassist("replay", "@last", cwd=home, status=2)
    assert "no space left on this disk; free some space there" in done.stderr and len(done.stderr) < 1000
    assert os.listdir(home / ".labassist" / "scratch") == []


@pytest.mark.slow
def test_a_ledger_at_another_path_replays_and_goes_on(lab: Path, tmp_path: Path) -> None:
    failed = little.record(lab, 60, 10, status=7, env={"LITTLE_CRASH": "33"})
    moved = tmp_path / "elsewhere" / "with spaces"
    moved.parent.mkdir()
    lab.rename(moved)
    assert problems(moved) == set() and answer("fsck", cwd=moved)["findings"] == []
    assert answer("replay", "@-2", cwd=moved)["verdict"] == "BITWISE"
    resumed = answer("resume", failed["id"], cwd=moved)
    assert (resumed["state"], resumed["resumed_from"]["step"]) == ("finished", 30)
    assert problems(moved) == set()


def test_on_another_machine_a_living_run_is_only_unseen(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(lab / "ledger") as ledger:
        done = ledger.find("@last")
        ledger.change("end", done["id"], lambda run: {**run, "state": "running"})
        (tmp_path / "id").write_text("0123456789abcdef" * 2)
        monkeypatch.setattr(environment, "_KNOWN_IDS", (tmp_path / "id",))
        assert recover(ledger) == []
        assert (ledger.run(done["id"]) or {})["state"] == "running"


def test_a_clock_set_back_changes_no_order(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2020, 1, 1, tzinfo=UTC)

    monkeypatch.setattr(journal, "datetime", Earlier)
    with Ledger.open(lab / "ledger") as ledger:
        first = ledger.find("@last")
        late = {**first, "id": new_run_id(Earlier.now()), "state": "finished"}
        ledger.write("start", late)
        assert late["id"] < first["id"]
        assert ledger.find("@last")["id"] == late["id"] and ledger.find("@-2")["id"] == first["id"]
        ledger.save_view()
    times = [line["time"] for line in little.lines(lab)]
    assert times[-1] < times[0]
    with Ledger.open(lab / "ledger") as ledger:
        assert [run["id"] for run in ledger.runs] == [first["id"], late["id"]]
        assert ledger.journal.verify() == []


@pytest.mark.slow
def test_two_versions_of_labassist_share_a_ledger(lab: Path, tmp_path: Path) -> None:
    other = Newer(tmp_path / "other")
    path = other.root / "labassist" / "__init__.py"
    line = next(line for line in path.read_text().splitlines() if line.startswith("__version__"))
    path.write_text(path.read_text().replace(line, '__version__ = "99.0"'))
    failed = little.record(lab, 60, 10, status=7, env={**other.env, "LITTLE_CRASH": "33"})
    resumed = answer("resume", failed["id"], cwd=lab)
    assert (failed["versions"]["labassist"], resumed["state"]) == ("99.0", "finished")
    assert {line["by"] for line in little.lines(lab)} >= {"99.0"}
    for env in (None, other.env):
        assert answer("audit", cwd=lab, env=env)["ok"] is True
    assert failed["code"]["package"] != resumed["code"]["package"]


@pytest.mark.slow
def test_a_ledger_of_a_newer_version_is_read_and_never_written(lab: Path, tmp_path: Path) -> None:
    newer = Newer(tmp_path / "newer")
    newer.edit("labassist/ledger/records.py", "SCHEMA = 1", "SCHEMA = 2")
    labassist("note", "@last", "by a newer one", cwd=lab, env=newer.env)
    before = (lab / "ledger" / "journal.jsonl").read_bytes()
    assert answer("show", "@last", cwd=lab)["note"] == "by a newer one"
    assert answer("audit", cwd=lab)["ok"] is True
    assert answer("curve", "@last", cwd=lab)["steps"] == 60
    assert [one["code"] for one in answer("fsck", "--repair", cwd=lab)["findings"]] == ["schema-newer"]
    for words in (("note", "@last", "x"), ("prune", "--keep-last", "1")):
        done = labassist(*words, cwd=lab, status=2)
        assert "upgrade labassist to write in it" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (lab / "ledger" / "journal.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_large_untracked_file_is_recorded_by_its_hash_and_named_when_leaving(lab: Path, disk: Path) -> None:
    with (lab / "data.bin").open("wb") as file:
        file.truncate(200 << 20)
    run = little.record(lab, 10, 5)
    size = sum(path.stat().st_size for path in (lab / "ledger").rglob("*") if path.is_file())
    assert size < 8 << 20
    assert answer("replay", run["id"], cwd=lab)["verdict"] == "BITWISE"
    left = answer("leave", str(disk), cwd=lab, status=1)
    assert (left["verified"], left["safe"]) == (True, False) and "memory" in left["unsafe"]
    assert any("data.bin, 200.0 MiB" in line for line in left["lost"])


@pytest.mark.slow
def test_a_branch_that_was_never_pushed_comes_along(lab: Path, disk: Path, tmp_path: Path) -> None:
    git = ["git", "-C", str(lab)]
    subprocess.run([*git, "checkout", "-q", "-b", "mine"], check=True)
    (lab / "mine.txt").write_text("only here\n")
    subprocess.run([*git, "add", "mine.txt"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "mine"], check=True)
    subprocess.run([*git, "checkout", "-q", "main"], check=True)
    left = answer("leave", str(disk), cwd=lab, status=1)
    subprocess.run(["tar", "-xf", left["bundle"], "-C", str(tmp_path), "code.bundle"], check=True)
    clone = ["git", "clone", "-q", "-b", "mine", str(tmp_path / "code.bundle"), str(tmp_path / "clone")]
    subprocess.run(clone, check=True)
    assert (tmp_path / "clone" / "mine.txt").read_text() == "only here\n"


@pytest.mark.slow
def test_on_the_same_disk_a_copy_is_not_called_safe(lab: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    left = answer("leave", str(tmp_path / "kept"), cwd=lab, status=1)
    assert left["verified"] is True and left["safe"] is False
    assert "on the disk of this workspace" in left["unsafe"]


@pytest.mark.slow
def test_a_submodule_travels_in_a_bundle(lab: Path, tmp_path: Path) -> None:
    git = ["git", "-c", "protocol.file.allow=always", "-C"]
    part = tmp_path / "part"
    subprocess.run(["git", "init", "-q", str(part)], check=True)
    (part / "part.py").write_text("PART = 1\n")
    subprocess.run([*git, str(part), "add", "part.py"], check=True)
    subprocess.run([*git, str(part), "commit", "-q", "-m", "part"], check=True)
    subprocess.run([*git, str(lab), "submodule", "--quiet", "add", str(part), "part"], check=True)
    subprocess.run([*git, str(lab), "commit", "-q", "-am", "with a part"], check=True)
    (lab / "uses.py").write_text(
        "import sys; sys.path.insert(0, 'part'); import part; open('out', 'w').write(str(part.PART))\n"
    )
    run = answer("run", "--out", "out", "--", "python", "uses.py", cwd=lab)
    answer("export", run["id"], "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=lab)
    shutil.rmtree(part)
    home = new(tmp_path / "home").workspace.root
    answer("import", str(tmp_path / "x.tar"), cwd=home)
    assert (home / "out").read_text() == "1"  # what it made came along
    assert answer("replay", run["id"], cwd=home)["verdict"] == "BITWISE"
    assert audit(home / "ledger", Workspace(home).root).ok


def test_a_workspace_that_is_mounted_read_only_is_exported_and_says_how_to_replay(
    lab: Path, tmp_path: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("a read-only mount needs root")
    backup = tmp_path / "backup"
    backup.mkdir()
    subprocess.run(["mount", "--bind", str(lab), str(backup)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(backup)], check=True)
        home = new(tmp_path / "home").workspace.root
        labassist("export", "--all", "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=backup)
        for words, says in (
            (("replay", "@last"), f"replay there: labassist import {backup}"),
            (("leave", str(tmp_path)), "labassist export --all --to bundle -o PATH"),
            (("import", str(tmp_path / "x.tar")), "into a workspace of your own: labassist new"),
            (("pull", "box:lab"), "into a workspace of your own: labassist new"),
        ):
            done = labassist(*words, cwd=backup, status=2)
            assert "read-only" in done.stderr and says in done.stderr and len(done.stderr.splitlines()) == 1
        (run,) = answer("import", str(backup), cwd=home)["new"]
    finally:
        subprocess.run(["umount", "-l", str(backup)], check=True)
    assert answer("replay", run, cwd=home)["verdict"] == "BITWISE"
    assert answer("import", str(tmp_path / "x.tar"), cwd=home)["same"] == [run]
