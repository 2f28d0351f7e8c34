"""Runs travel: a bundle carries all that a replay needs, and two ledgers become one whose audit passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import little
import pytest
from command import answer, labassist

from labassist.ledger.audit import audit
from labassist.ledger.store import Ledger
from labassist.workspace import new

pytestmark = pytest.mark.ci

INNER = "experiments/lab"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace inside a larger repository: an uncommitted change, an untracked file, a lineage, a replay."""
    top = tmp_path_factory.mktemp("there")
    root = new(top / INNER).workspace.root
    shutil.move(root / ".git", top / ".git")
    (top / "outer.txt").write_text("part of the repository\n")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "all of it")
    little.write(root)
    (root / "labs" / "01-first-loop" / "train.toml").write_text("# changed and not committed\n")
    little.lineage(root)
    whole = little.record(root, 20, 5)
    answer("replay", whole["id"], cwd=root)
    return root


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def bundle(there: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "all.tar"
    made = answer("export", "--all", "--to", "bundle", "-o", str(path), "--checkpoints", "all", cwd=there)
    assert len(made["runs"]) == 4 and made["notes"] == []
    assert path.stat().st_mode & 0o777 == 0o600
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A workspace that knows nothing of the other one's repository."""
    return new(tmp_path / "home").workspace.root


def documents(lab: Path) -> dict[str, Any]:
    return {run["id"]: run for run in answer("runs", cwd=lab)["runs"]}


def test_a_bundle_imported_where_the_repository_is_not_still_replays(
    there: Path, bundle: Path, home: Path
) -> None:
    before = git(home, "count-objects", "-v"), git(home, "for-each-ref")
    found = answer("import", str(bundle), cwd=home)
    assert len(found["new"]) == 4 and found["checkpoints"] == 3 + 3 + 4 + 4
    assert documents(home) == documents(there)
    checked = answer("audit", cwd=home)
    assert checked["ok"] is True and checked["checked"]["imports"] == 4
    assert checked["checked"]["checkpoints"] == found["checkpoints"]
    assert answer("fsck", cwd=home)["findings"] == []
    assert (git(home, "count-objects", "-v"), git(home, "for-each-ref")) == before
    lineage = found["new"][1]
    replayed = answer("replay", lineage, cwd=home)
    assert (replayed["verdict"], replayed["compared"]["steps"]) == ("BITWISE", 60)
    assert answer("replay", lineage, "--segment", cwd=home)["verdict"] == "BITWISE"
    assert answer("diff", found["new"][0], found["new"][2], cwd=home)["code"]["same"] is True


@pytest.mark.slow
def test_a_ledger_copied_without_its_repository_says_how_the_commits_are_brought(
    there: Path, home: Path, tmp_path: Path
) -> None:
    shutil.copytree(there / "ledger", tmp_path / "copy" / "ledger", symlinks=True)
    found = answer("import", str(tmp_path / "copy"), cwd=home)
    run = found["new"][-1]
    assert any(f"run {run}: its commit" in note and "is not here" in note for note in found["notes"])
    done = labassist("replay", run, cwd=home, status=2)
    mend = "refs/labassist/*:refs/labassist/*"
    assert f"git fetch PATH '{mend}'" in done.stderr and mend in (there / "ledger" / "README.md").read_text()
    git(home, "fetch", "-q", str(there.parents[1]), mend)
    assert answer("audit", cwd=home)["ok"] is True


@pytest.mark.slow
def test_runs_of_a_repository_with_long_ids_come_into_one_of_their_kind(home: Path, tmp_path: Path) -> None:
    def long(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        git(folder, "init", "-q", "--object-format=sha256")
        (folder / "make.sh").write_text("echo made > out.txt\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "start")
        labassist("new", ".", cwd=folder)
        return folder

    made, path = long("made"), tmp_path / "long.tar"
    labassist("run", "--out", "out.txt", "--", "sh", "make.sh", cwd=made)
    labassist("export", "--all", "--to", "bundle", "-o", str(path), cwd=made)
    refused = labassist("import", str(path), cwd=home, status=2)
    assert "are SHA-256" in refused.stderr and "--object-format=sha256" in refused.stderr
    assert documents(home) == {}
    other = long("other")
    shutil.rmtree(made)
    labassist("import", str(path), cwd=other)
    assert answer("replay", "@last", cwd=other)["verdict"] == "BITWISE"
    assert answer("audit", cwd=other)["ok"] is True


@pytest.mark.fault
def test_a_checkpoint_that_was_damaged_before_it_was_packed_keeps_nothing_else_out(
    there: Path, home: Path, tmp_path: Path
) -> None:
    sick = Path(shutil.copytree(there.parents[1], tmp_path / "sick", symlinks=True)) / INNER
    weights = sorted(sick.glob("ledger/runs/*/checkpoints/step-*/model.safetensors"))[-1]
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    made = answer("export", "--all", "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=sick)
    (said,) = made["notes"]
    assert "is damaged here" in said and "model.safetensors" in said and weights.parents[2].name in said
    found = answer("import", str(tmp_path / "x.tar"), cwd=home)
    assert len(found["new"]) == 4 and found["checkpoints"] == 3
    (note,) = [note for note in found["notes"] if "is damaged and stays out" in note]
    assert weights.parents[2].name in note
    assert answer("audit", cwd=home)["ok"] is True
    again = answer("import", str(there), cwd=home)
    assert again["checkpoints"] > 0 and answer("audit", cwd=home)["ok"] is True


@pytest.mark.fault
def test_one_lost_folder_keeps_no_other_run_from_coming_home(
    little_lab: Path, home: Path, tmp_path: Path
) -> None:
    """Nor the whole of `leave`; what went on from the lost one stays behind with it, and is named."""
    copy = Path(shutil.copytree(little_lab, tmp_path / "lab", symlinks=True))
    runs = list(documents(copy).values())
    (later,) = (one for one in runs if one.get("resumed_from"))
    earlier = later["resumed_from"]["run"]
    shutil.rmtree(copy / "ledger" / "runs" / earlier)
    brought = answer("import", str(copy), cwd=home)
    assert set(brought["new"]) == {one["id"] for one in runs} - {earlier, later["id"]}
    said = " ".join(brought["notes"])
    assert all(f"run {one} is not taken along: its folder is gone" in said for one in (earlier, later["id"]))
    assert audit(home / "ledger", home).ok


def test_a_second_import_brings_nothing_and_a_resume_goes_on(bundle: Path, home: Path) -> None:
    answer("import", str(bundle), cwd=home)
    entries = len(little.lines(home))
    again = answer("import", str(bundle), cwd=home)
    assert again["new"] == again["newer"] == [] and len(again["same"]) == 4 and again["checkpoints"] == 0
    assert len(little.lines(home)) == entries
    failed = next(run["id"] for run in documents(home).values() if run["state"] == "failed")
    little.write(home)
    resumed = answer("resume", failed, cwd=home)
    assert resumed["resumed_from"] == {"run": failed, "step": 30} and resumed["state"] == "finished"


@pytest.mark.slow
def test_two_ledgers_merge_and_each_chain_can_still_be_verified(
    there: Path, bundle: Path, home: Path
) -> None:
    mine = little.record(home, 10, 5)
    anchor = answer("audit", "--anchor", cwd=there)["anchor"]["line"]
    answer("import", str(bundle), cwd=home)
    assert len(documents(home)) == 5 and mine["id"] in documents(home)
    assert audit(home / "ledger", home).ok
    assert answer("audit", "--anchor", anchor, cwd=home)["ok"] is True
    imports = [line for line in little.lines(home) if line["kind"] == "import"]
    with Ledger.open(home / "ledger", create=True) as ledger:
        lines = ledger.objects.get_json(imports[0]["origin"])
        path = ledger.objects.path(imports[0]["origin"])
    assert lines[0]["prev"] == "0" * 64
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'\\"state\\":\\"running\\"', b'\\"state\\":\\"runninG\\"', 1))
    codes = {problem.code for problem in audit(home / "ledger", home).problems}
    assert codes == {"object-damaged", "origin-broken"}


@pytest.mark.slow
def test_a_part_without_checkpoints_says_where_they_are_and_is_filled_later(
    there: Path, bundle: Path, home: Path, tmp_path: Path
) -> None:
    part = tmp_path / "part.tar"
    second = answer("runs", cwd=there)["runs"][1]["id"]
    made = answer("export", second, "--to", "bundle", "-o", str(part), "--checkpoints", "none", cwd=there)
    assert len(made["runs"]) == 2  # the run that it goes on from comes along
    answer("import", str(part), cwd=home)
    found = answer("audit", cwd=home)
    assert found["ok"] is True and found["checked"]["checkpoints left elsewhere"] == 6
    done = labassist("replay", second, "--segment", cwd=home, status=2)
    assert "it was left behind: on " in done.stderr
    filled = answer("import", str(bundle), cwd=home)
    assert len(filled["new"]) == 2 and len(filled["same"]) == 2 and filled["checkpoints"] == 6 + 8
    found = answer("audit", cwd=home)
    assert found["ok"] is True and "checkpoints left elsewhere" not in found["checked"]
    assert answer("replay", second, "--segment", cwd=home)["verdict"] == "BITWISE"


@pytest.mark.slow
def test_what_went_on_over_there_is_brought_up_to_date_and_notes_of_both_sides_are_kept(
    there: Path, home: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(there.parents[1], tmp_path / "other", symlinks=True)) / INNER
    run = answer("runs", cwd=other)["runs"][0]["id"]
    answer("import", str(other), cwd=home)
    labassist("note", run, "seen over there", cwd=other)
    found = answer("import", str(other), cwd=home)
    assert found["newer"] == [run] and documents(home)[run]["note"] == "seen over there"
    assert answer("audit", cwd=home)["ok"] is True
    labassist("note", run, "seen here", cwd=home)
    assert answer("import", str(other / "ledger"), cwd=home)["newer"] == []
    labassist("note", run, "and again over there", cwd=other)
    for newer in ([run], []):
        assert answer("import", str(other), cwd=home)["newer"] == newer
        assert documents(home)[run]["note"] == "seen over there\nseen here\nand again over there"
    assert answer("audit", cwd=home)["ok"] is True


@pytest.mark.fault
def test_a_note_here_does_not_keep_out_what_was_pruned_and_run_over_there(
    there: Path, home: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(there.parents[1], tmp_path / "other", symlinks=True)) / INNER
    first, *_, last = answer("import", str(other), cwd=home)["new"]
    for run in (first, last):
        labassist("note", run, "seen at home", cwd=home)
    labassist("prune", "--keep-last", "1", cwd=other)
    with Ledger.open(other / "ledger") as ledger:
        ledger.change("note", last, lambda run: {**run, "job": "another"})
        with Ledger.open(home / "ledger") as mine:
            mine.change("note", last, lambda run: {**run, "job": "a third"})
    more = little.record(other, 10, 5)
    found = answer("import", str(other), cwd=home, status=1)
    assert found["new"] == [more["id"]] and first in found["newer"]
    assert list(found["refused"]) == [last] and "they differ in job" in found["refused"][last]
    assert documents(home)[first]["note"] == "seen at home"
    assert answer("audit", cwd=home)["ok"] is True
    done = labassist("import", str(other), cwd=home, status=1)
    assert f"NOT imported {last}: it was changed here" in done.stdout


@pytest.mark.slow
def test_another_run_with_the_same_id_is_passed_over_with_what_goes_on_from_it(
    bundle: Path, home: Path, there: Path
) -> None:
    run, resumed = answer("runs", cwd=there)["runs"][:2]
    with Ledger.open(home / "ledger", create=True) as ledger:
        ledger.write("start", {**run, "seed": 7})
    found = answer("import", str(bundle), cwd=home, status=1)
    assert found["refused"] == {
        run["id"]: "another run has this id here; they differ in seed",
        resumed["id"]: f"it goes on from run {run['id']}",
    }
    assert len(found["new"]) == 2 and documents(home)[run["id"]]["seed"] == 7


@pytest.mark.slow
def test_a_bundle_of_a_bundle_still_proves_where_it_came_from(
    bundle: Path, home: Path, tmp_path: Path
) -> None:
    answer("import", str(bundle), cwd=home)
    answer("export", "--all", "--to", "bundle", "-o", str(tmp_path / "2.tar"), cwd=home)
    third = new(tmp_path / "third").workspace.root
    answer("import", str(tmp_path / "2.tar"), cwd=third)
    assert audit(third / "ledger", third).ok
    same = answer("import", str(bundle), cwd=third)
    assert same["new"] == [] and same["checkpoints"] > 0
    assert audit(third / "ledger", third).ok
    second = answer("runs", cwd=third)["runs"][1]["id"]
    assert answer("replay", second, cwd=third)["verdict"] == "BITWISE"


@pytest.mark.fault
@pytest.mark.parametrize("harm", ["cut", "flipped", "foreign"])
def test_a_damaged_bundle_is_refused_and_nothing_is_journalled(
    bundle: Path, home: Path, tmp_path: Path, harm: str
) -> None:
    bad = Path(shutil.copy(bundle, tmp_path / "bad.tar"))
    size = bad.stat().st_size
    if harm == "foreign":
        bad.write_bytes(b"no tar at all" * 100)
    elif harm == "cut":
        os.truncate(bad, size // 2)
    else:
        with tarfile.open(bundle) as tar:
            member = next(one for one in tar if one.name.endswith("metrics-rank0.jsonl"))
        with bad.open("r+b") as file:
            file.seek(member.offset_data + 20)
            byte = file.read(1)[0]
            file.seek(member.offset_data + 20)
            file.write(bytes([byte ^ 1]))
    done = labassist("import", str(bad), cwd=home, status=2)
    says = {
        "foreign": "this is no bundle",
        "cut": "was cut",
        "flipped": "metrics-rank0.jsonl is not as it was packed",
    }
    assert says[harm] in done.stderr and len(done.stderr.splitlines()) == 1
    assert little.lines(home) == [] and os.listdir(home / "ledger" / "runs") == []
    assert list((home / ".labassist").rglob("import-*")) == []


@pytest.mark.slow
@pytest.mark.fault
def test_an_import_that_dies_before_its_entries_is_done_by_the_next(
    bundle: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labassist.runs import merge
    from labassist.runs.bring import bring
    from labassist.workspace import Workspace

    def dies(*_args: Any) -> None:
        raise KeyboardInterrupt

    with Ledger.open(home / "ledger", create=True) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(merge, "_journal", dies)
            with pytest.raises(KeyboardInterrupt):
                bring(Workspace(home), ledger, bundle)
        assert ledger.runs.all() == []
    assert len(answer("import", str(bundle), cwd=home)["new"]) == 4
    assert audit(home / "ledger", home).ok


def test_where_only_a_killed_import_was_audit_and_fsck_say_what_to_do(home: Path) -> None:
    for command in ("audit", "fsck"):
        done = labassist(command, cwd=home, status=2)
        assert "nothing is journalled yet; record a run, or import one (again" in done.stderr


def test_what_is_in_a_bundle_can_be_read_with_tar_and_git(there: Path, bundle: Path, tmp_path: Path) -> None:
    with tarfile.open(bundle) as tar:
        names = tar.getnames()
        tar.extract("code.bundle", tmp_path, filter="data")
        index = json.load(tar.extractfile("bundle.json") or open(os.devnull))
    assert names[-1] == "bundle.json" and not any("positions" in name for name in names)
    assert index["places"] == dict.fromkeys(index["runs"], INNER)
    refs = git(there, "bundle", "list-heads", str(tmp_path / "code.bundle"))
    assert git(there, "rev-parse", "HEAD") in refs


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("export", "--to", "bundle"), "name the runs, or give --all"),
        (("export", "@last", "--to", "bundle", "-o", "no/such/x.tar"), "the bundle cannot be written"),
        (("import", "nowhere.tar"), "there is no such file"),
        (("import", "labs"), "there is no ledger in it"),
        (("import", "."), "this is the ledger itself"),
    ],
)
def test_bad_words_are_one_line(there: Path, words: tuple[str, ...], says: str) -> None:
    done = labassist(*words, cwd=there, status=2)
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_run_that_runs_is_not_taken(home: Path, tmp_path: Path) -> None:
    run = little.start(home)
    done = labassist("export", run["id"], "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=home, status=2)
    assert "stop it first" in done.stderr and not (tmp_path / "x.tar").exists()
    labassist("stop", run["id"], cwd=home)
