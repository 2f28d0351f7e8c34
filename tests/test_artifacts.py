"""Large files on another disk, and files of a run that lie in the workspace: both travel and are checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import farshell
import little
import pytest
from command import answer, labassist

from labassist.errors import LedgerError
from labassist.ledger.audit import audit
from labassist.ledger.objects import Objects
from labassist.ledger.store import Ledger
from labassist.runs.belongings import put_back
from labassist.runs.merge import copied
from labassist.workspace import Workspace, new

pytestmark = pytest.mark.ci


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return new(tmp_path / "lab").workspace.root


@pytest.mark.slow
def test_checkpoints_on_another_disk_are_resumed_audited_pruned_and_brought_home(
    lab: Path, tmp_path: Path
) -> None:
    other = tmp_path / "big disk"
    env = {"LABASSIST_ARTIFACTS": str(other)}
    failed = little.record(lab, 60, 10, status=7, env={**env, "LITTLE_CRASH": "33"})
    place = lab / "ledger" / "runs" / failed["id"] / "checkpoints"
    assert place.is_symlink() and place.resolve() == (other / failed["id"] / "checkpoints").resolve()
    resumed = answer("resume", failed["id"], cwd=lab)  # without the variable: the record knows where they are
    assert resumed["resumed_from"]["step"] == 30
    assert answer("audit", cwd=lab)["checked"]["checkpoints"] == 6
    answer("prune", "--keep-last", "4", cwd=lab)
    assert sorted(path.name for path in (other / failed["id"] / "checkpoints").iterdir()) == ["step-00000030"]
    answer("export", "--all", "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=lab)
    home = new(tmp_path / "home").workspace.root
    assert answer("import", str(tmp_path / "x.tar"), cwd=home, env=env)["checkpoints"] == 2
    assert audit(home / "ledger", home).ok


@pytest.mark.slow
@pytest.mark.fault
def test_a_disk_that_is_not_there_is_named(lab: Path, tmp_path: Path) -> None:
    other = tmp_path / "disk"
    run = little.record(lab, 10, 5, env={"LABASSIST_ARTIFACTS": str(other)})
    shutil.move(other, tmp_path / "unplugged")
    found = answer("fsck", cwd=lab, status=1)
    assert [one["code"] for one in found["findings"]] == ["checkpoints-elsewhere"]
    assert str(other) in found["findings"][0]["message"]
    bundle = answer("export", run["id"], "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=lab)
    assert f"1 checkpoint, of step 10, cannot be found and taken along: {other}" in bundle["notes"][0]
    assert "checkpoint-missing" in {problem.code for problem in audit(lab / "ledger", lab).problems}
    shutil.move(tmp_path / "unplugged", other)
    assert answer("audit", run["id"], cwd=lab)["ok"] is True


@pytest.mark.parametrize(
    ("named", "says"), [("relative/path", "absolute"), ("/dev/null/x", "cannot be kept there")]
)
def test_a_place_that_cannot_be_used_refuses_the_run(lab: Path, named: str, says: str) -> None:
    little.write(lab)
    words = ("run", "--", "python", little.SCRIPT, "1", "1", "0")
    done = labassist(*words, cwd=lab, status=2, env={"LABASSIST_ARTIFACTS": named})
    assert says in done.stderr and len(done.stderr.splitlines()) == 1
    assert os.listdir(lab / "ledger" / "runs") == []


def of_another_trainer(lab: Path, run: str, inside: str = "out/checkpoint-15") -> Path:
    """Describe a folder in the workspace as a checkpoint of `run` that another trainer keeps."""
    folder = lab / inside
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"the adapter")
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir()
    }
    manifest = {
        "format": "transformers",
        "version": 1,
        "run": run,
        "step": 15,
        "world_size": 1,
        "folder": inside,
        "states": {"model": "present"},
        "files": files,
        "tensors": {},
    }
    place = lab / "ledger" / "runs" / run / "checkpoints" / "step-00000015.manifest.json"
    place.write_text(json.dumps(manifest))
    with Ledger.open(lab / "ledger") as ledger:
        curve = ledger.checkpoint(run, 5) or {}
        ledger.write_checkpoint(
            {
                **curve,
                "step": 15,
                "path": str(place.relative_to(lab / "ledger")),
                "manifest": ledger.objects.put_file(place),
            }
        )
    return folder


@pytest.mark.slow
def test_outputs_and_another_trainers_checkpoint_come_along(lab: Path, tmp_path: Path) -> None:
    (lab / "make.py").write_text(
        "import os\nos.makedirs('made', exist_ok=True)\nopen('made/x', 'w').write('x')\n"
    )
    answer("run", "--out", "made", "--", "python", "make.py", cwd=lab)
    run = little.record(lab, 10, 5)
    of_another_trainer(lab, run["id"])
    other = answer("run", "--out", "labs/x", "--out", "gone", "--", "sh", "-c", "echo > labs/x", cwd=lab)
    (lab / "gone").write_text("made later")
    notes = answer("export", "--all", "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=lab)["notes"]
    assert notes == [
        f"labs/x, an output of run {other['id']}: an import puts nothing there, so copy it yourself",
        f"gone, an output of run {other['id']}: it is no longer what the run made, so copy it yourself",
    ]
    home = new(tmp_path / "home").workspace.root
    (home / "made").mkdir()
    (home / "made" / "x").write_text("mine, and another one")
    done = labassist("import", str(tmp_path / "x.tar"), cwd=home)
    assert "made/x is another file here and was left as it is" in done.stderr
    assert (home / "made" / "x").read_text() == "mine, and another one"
    assert (home / "out" / "checkpoint-15" / "adapter_model.safetensors").read_bytes() == b"the adapter"
    found = answer("audit", cwd=home)
    assert found["ok"] is True and not any("manifest.json" in path for path in found["not_covered"])


@pytest.mark.slow
def test_a_checkpoint_that_a_trainer_keeps_in_the_runs_folder_comes_along(lab: Path, tmp_path: Path) -> None:
    run = little.record(lab, 10, 5)["id"]
    inside = f"ledger/runs/{run}/trainer/checkpoint-15"
    of_another_trainer(lab, run, inside)
    answer("export", "--all", "--to", "bundle", "-o", str(tmp_path / "x.tar"), cwd=lab)
    part = str(tmp_path / "none.tar")
    answer("export", "--all", "--checkpoints", "none", "--to", "bundle", "-o", part, cwd=lab)
    ways = (
        (("import", part), ("import", str(tmp_path / "x.tar"))),
        (("pull", f"box:{lab}"),),
        (("import", str(lab)),),
    )
    for number, way in enumerate(ways):
        home = new(tmp_path / f"home{number}").workspace.root
        for words in way:
            assert answer(*words, cwd=home, env=farshell.env(tmp_path))["notes"] == []
        assert (home / inside / "adapter_model.safetensors").read_bytes() == b"the adapter"
        found = answer("audit", cwd=home)
        assert found["ok"] is True and not any("trainer" in path for path in found["not_covered"])


@pytest.mark.fault
@pytest.mark.parametrize(
    "inside",
    ["../outside", "/etc/x", ".git/hooks/post-commit", "ledger/journal.jsonl", "labs/x.py", "link/x", ""],
)
def test_a_hostile_parcel_writes_nowhere_else(lab: Path, tmp_path: Path, inside: str) -> None:
    (tmp_path / "outside").mkdir()
    (lab / "link").symlink_to(tmp_path / "outside")
    source = tmp_path / "source"
    source.write_text("hostile")
    with pytest.raises(LedgerError, match="may not be put"):
        put_back(Workspace(lab).root, {inside: source}, copied)
    assert os.listdir(tmp_path / "outside") == []
    assert list(Objects(lab / "ledger" / "objects")) == []
