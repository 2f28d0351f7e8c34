"""`diff A B` says what differs between two runs, and nothing else."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, train

from labassist.ledger import diff as diffs
from labassist.ledger.objects import Objects
from labassist.ledger.records import Kept
from labassist.workspace import new

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new(tmp_path_factory.mktemp("diff") / "lab").workspace.root


@pytest.fixture(scope="module")
def base(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    site = tmp_path_factory.mktemp("site")
    return package(lab, site, "1.0")


def package(lab: Path, site: Path, version: str, *more: str) -> Any:
    """Record a run with a distribution of that version on its path."""
    (site / f"some_package-{version}.dist-info").mkdir()
    words = ("run", "01-first-loop/train", "--profile", "tiny", *QUICK, *more)
    return answer(*words, cwd=lab, env={"PYTHONPATH": str(site)})


QUICK = (
    "--set=steps=20", "--set=every.checkpoint=10", "--set=every.eval=20", "--set=model.d_model=16",
    "--set=model.layers=1", "--set=sample.length=8",
)  # fmt: skip


def test_one_line_one_value_and_one_package_are_the_three_that_show(
    lab: Path, base: Any, tmp_path: Path
) -> None:
    script = lab / "labs" / "01-first-loop" / "train.py"
    text = script.read_text()
    script.write_text(
        text.replace("def main() -> None:\n", "def main() -> None:\n    # an uncommitted line\n")
    )
    try:
        # The text that the model writes at the end is longer: the training itself is the same.
        other = package(lab, tmp_path, "1.1", "--set=sample.length=9")
    finally:
        script.write_text(text)
    found = answer("diff", base["id"], other["id"], cwd=lab)
    assert found["config"] == {"sample.length": {"a": 8, "b": 9}}
    assert found["environment"] == {"some-package": {"a": "1.0", "b": "1.1"}}
    patch = found["code"]["patch"].splitlines()
    changed = [line for line in patch if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["+    # an uncommitted line"]
    assert "diff --git a/labs/01-first-loop/train.py b/labs/01-first-loop/train.py" in patch
    assert found["data"] == {} and not found["same"]
    assert all(series["first_difference"] is None for series in found["curves"].values())
    assert found["curves"]["loss"] == {"compared": 20, "equal": 20, "first_difference": None}
    assert found["checkpoints"]["first_difference"] is None and found["checkpoints"]["compared"] > 20
    told = labassist("diff", base["id"], other["id"], cwd=lab).stdout
    assert "sample.length: 8 / 9" in told and "some-package: 1.0 / 1.1" in told


def test_a_run_and_its_replay_are_the_same(lab: Path, base: Any, tmp_path: Path) -> None:
    (tmp_path / "some_package-1.0.dist-info").mkdir()
    env = {"PYTHONPATH": str(tmp_path)}
    replayed = answer("replay", base["id"], cwd=lab, env=env)
    found = answer("diff", base["id"], replayed["run"], cwd=lab)
    assert found["same"], found
    assert "nothing differs" in labassist("diff", base["id"], replayed["run"], cwd=lab).stdout


@pytest.mark.slow
def test_the_first_difference_of_each_series_and_of_the_tensors(lab: Path, base: Any, tmp_path: Path) -> None:
    other = package(lab, tmp_path, "1.0", "--set=optim.lr=0.002")
    found = answer("diff", base["id"], other["id"], cwd=lab)
    assert found["config"] == {"optim.lr": {"a": 0.001, "b": 0.002}}
    assert found["code"] == {"same": True, "patch": ""}
    assert found["curves"]["batch"]["first_difference"] is None
    first = found["curves"]["lr"]["first_difference"]
    assert first["a"] < first["b"] and first["step"] >= 1
    kept = found["checkpoints"]
    assert kept["first_difference"]["step"] == 10 and kept["first_difference"]["tensor"]
    assert kept["equal"] < kept["compared"]


@pytest.mark.slow
def test_runs_of_another_length_and_seed(lab: Path, base: Any) -> None:
    other = train(lab, "--seed", "7", "--set=steps=10")
    found = answer("diff", base["id"], other["id"], cwd=lab)
    assert found["config"]["seed"] == {"a": 1337, "b": 7}
    assert found["curves"]["loss"]["compared"] == 10
    assert found["curves"]["batch"]["first_difference"]["step"] == 1


def test_files_without_git_are_compared_line_by_line(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    one, two = (Kept("a.py", len(text), objects.put(text)) for text in (b"x = 1\ny = 2\n", b"x = 1\ny = 3\n"))
    patch = diffs._patch_of_files([one], [two], objects)
    assert patch.splitlines()[:2] == ["--- a/a.py", "+++ b/a.py"]
    assert "-y = 2" in patch and "+y = 3" in patch and "-x = 1" not in patch


@pytest.mark.slow
def test_a_commit_that_is_gone_is_said(lab: Path, base: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "copy"
    shutil.copytree(lab, elsewhere, ignore=shutil.ignore_patterns(".git"))
    other = train(lab)
    shutil.copytree(lab / "ledger", elsewhere / "ledger", dirs_exist_ok=True)
    # Without the repository only the digests are known: equal ones are the same code all the same.
    found = answer("diff", base["id"], other["id"], cwd=elsewhere)
    assert found["code"] == {"same": True, "patch": ""}


MANY = """\
import sys
from labassist import record
rate, *inputs = sys.argv[1:]
recorder = record.start(total_steps=4)
for path in inputs:
    recorder.input("text", path, split={"train": 0.9})
for step in range(1, 5):
    norms = {f"norm/{number:03d}": float(rate) ** step for number in range(100 if inputs else 101)}
    late = float(rate) if step == 4 else 1.0
    recorder.record(step, **norms, loss=float(rate) / step, lr=late, batch=record.digest([step]))
recorder.finish(4)
"""


def test_of_a_hundred_curves_the_first_that_training_makes_are_shown_and_the_rest_counted(
    tmp_path: Path,
) -> None:
    root = new(tmp_path / "lab").workspace.root
    (root / "many.py").write_text(MANY)
    (root / "text.txt").write_text("words")
    for words in (("1.0", "text.txt"), ("2.0",)):
        labassist("run", "--", "python", "many.py", *words, cwd=root)
    _a, _b, *told = labassist("diff", "@-2", "@last", cwd=root).stdout.splitlines()
    digest = sha256(b"words").hexdigest()[:12]
    assert f"  text: text.txt (5 bytes, {digest}, {{'train': 0.9}}) / -" in told
    curves = [line for line in told if "curve" in line]
    assert curves[0] == "curve loss: 0 of 4 steps are equal; first difference at step 1: 1.0 / 2.0"
    assert [line.split(":")[0] for line in curves[1:8]] == [f"curve norm/{number:03d}" for number in range(7)]
    assert curves[8:] == [
        "and 94 more curves, the first at step 1 (--json has each)",
        "curves of b only: norm/100",
    ]
