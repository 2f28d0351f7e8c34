"""A newer labassist's job files are merged three-way; whatever a learner wrote is still there afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist

from labassist import content
from labassist.workspace import new

pytestmark = pytest.mark.ci

TRAIN = "labs/01-first-loop/train.py"
CONFIG = "labs/01-first-loop/train.toml"


class Newer:
    """A labassist of its own, whose content can be changed: what an upgraded package would bring."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        source = content.root()
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(content.__file__).parent, folder / "labassist", ignore=skip)
        for name in ("labs", "templates", "ledger/schema"):
            shutil.copytree(source / name, folder / name, ignore=skip)
        shutil.copy(source / "ledger" / "README.md", folder / "ledger")

    def edit(self, path: str, old: str, new_text: str) -> None:
        edit(self.root, path, old, new_text)

    def upgrade(self, lab: Path, status: int = 0) -> Any:
        return answer("upgrade", cwd=lab, status=status, env=self.env)

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.root)}


def edit(root: Path, path: str, old: str, new_text: str) -> None:
    text = (root / path).read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {path}"
    (root / path).write_text(text.replace(old, new_text, 1))


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Newer:
    return Newer(tmp_path_factory.mktemp("newer"))


@pytest.fixture
def newer(pristine: Newer, tmp_path: Path) -> Newer:
    made = object.__new__(Newer)
    made.root = Path(shutil.copytree(pristine.root, tmp_path / "newer"))
    return made


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    return new(tmp_path / "lab").workspace.root


def first_line(root: Path, path: str) -> str:
    return (root / path).read_text().splitlines()[0]


def last_line(root: Path, path: str) -> str:
    return (root / path).read_text().splitlines()[-1]


def test_both_sides_changes_are_there_and_one_commit_holds_them(lab: Path, newer: Newer) -> None:
    theirs, mine = first_line(lab, TRAIN), last_line(lab, TRAIN)
    edit(lab, TRAIN, mine, f"{mine}\n# mine")
    git(lab, "commit", "-qam", "my change")
    (lab / "staged.txt").write_text("staged, and not part of the upgrade\n")
    git(lab, "add", "staged.txt")
    newer.edit(TRAIN, theirs, f"{theirs} Newer.")
    newer.edit(CONFIG, first_line(lab, CONFIG), "# newer numbers")
    (newer.root / "labs" / "01-first-loop" / "extra.py").write_text("EXTRA = 1\n")
    done = newer.upgrade(lab)
    assert done["merged"] == [TRAIN] and done["updated"] == [CONFIG] and done["conflicts"] == []
    assert done["added"] == ["labs/01-first-loop/extra.py"]
    text = (lab / TRAIN).read_text()
    assert text.startswith(f"{theirs} Newer.") and text.endswith("# mine\n")
    assert git(lab, "show", "--name-only", "--format=", done["commit"]).splitlines() == sorted(
        [TRAIN, CONFIG, "labs/01-first-loop/extra.py"]
    )
    assert git(lab, "status", "--porcelain") == "A  staged.txt"
    again = newer.upgrade(lab)
    assert again["commit"] == "" and not any(
        again[kind] for kind in ("added", "updated", "merged", "conflicts")
    )


@pytest.mark.slow
def test_the_next_upgrade_compares_with_what_this_one_brought(lab: Path, newer: Newer) -> None:
    line = first_line(lab, CONFIG)
    newer.edit(CONFIG, line, "# second version")
    newer.upgrade(lab)
    edit(lab, CONFIG, "# second version", "# my own words")
    git(lab, "commit", "-qam", "mine")
    assert newer.upgrade(lab)["kept"] == {}  # theirs has not changed since: ours stands
    newer.edit(TRAIN, first_line(lab, TRAIN), '"""Third version."""')
    assert newer.upgrade(lab)["updated"] == [TRAIN]
    assert first_line(lab, CONFIG) == "# my own words"
    assert git(lab, "rev-list", "--count", "refs/labassist-base") == "2"


@pytest.mark.slow
@pytest.mark.fault
def test_conflicts_are_marked_and_said_and_nothing_is_lost(lab: Path, newer: Newer) -> None:
    line = first_line(lab, CONFIG)
    edit(lab, CONFIG, line, "# as I want it")
    git(lab, "commit", "-qam", "mine")
    newer.edit(CONFIG, line, "# as they want it")
    done = newer.upgrade(lab, status=1)
    assert done["conflicts"] == [CONFIG] and done["commit"] == ""
    text = (lab / CONFIG).read_text()
    assert "<<<<<<< yours\n# as I want it\n=======\n# as they want it\n>>>>>>> labassist " in text
    assert git(lab, "show", f"HEAD:{CONFIG}").startswith("# as I want it")
    again = newer.upgrade(lab, status=1)
    assert again["conflicts"] == [CONFIG] and again["merged"] == []
    said = labassist("upgrade", cwd=lab, status=1, env=newer.env).stdout
    assert "of an earlier upgrade" in said and "in 1 file: edit" in said
    newer.edit(CONFIG, "# as they want it", "# as they want it now")
    assert "in no commit" in labassist("upgrade", cwd=lab, status=2, env=newer.env).stderr
    (lab / CONFIG).write_text("# settled\n")
    git(lab, "commit", "-qam", "settled")


@pytest.mark.slow
@pytest.mark.fault
def test_what_is_not_committed_is_never_touched(lab: Path, newer: Newer) -> None:
    edit(lab, TRAIN, last_line(lab, TRAIN), "# not committed yet")
    before = (lab / TRAIN).read_bytes()
    newer.edit(TRAIN, first_line(lab, TRAIN), '"""Newer."""')
    newer.edit(CONFIG, first_line(lab, CONFIG), "# newer")
    done = labassist("upgrade", cwd=lab, status=2, env=newer.env)
    assert f"{TRAIN}: it has changes that are in no commit" in done.stderr
    assert (lab / TRAIN).read_bytes() == before and first_line(lab, CONFIG) != "# newer"
    git(lab, "commit", "-qam", "now it is")
    assert newer.upgrade(lab)["merged"] == [TRAIN]


@pytest.mark.slow
def test_deleted_binary_and_dropped_files_are_kept_as_they_are(lab: Path, newer: Newer) -> None:
    (lab / "templates" / "README.md").write_bytes(b"\0binary")
    git(lab, "rm", "-q", CONFIG)
    git(lab, "commit", "-qam", "mine")
    newer.edit(CONFIG, first_line(newer.root, CONFIG), "# newer")
    (newer.root / "templates" / "README.md").write_bytes(b"\0other")
    (newer.root / TRAIN).unlink()
    done = newer.upgrade(lab)
    assert done["kept"] == {
        CONFIG: "it was deleted here",
        "templates/README.md": "it was changed here and is no text that could be merged",
        TRAIN: "labassist has it no more",
    }
    assert not (lab / CONFIG).exists() and (lab / TRAIN).exists()


@pytest.mark.slow
def test_in_a_larger_repository_and_without_an_identity(
    tmp_path: Path, newer: Newer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    root = new(tmp_path / "top" / "inner").workspace.root
    shutil.move(root / ".git", tmp_path / "top" / ".git")
    git(root, "add", "-A", str(tmp_path / "top"))
    git(root, "-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-qm", "moved inside")
    newer.edit(TRAIN, first_line(newer.root, TRAIN), '"""Newer."""')
    assert newer.upgrade(root)["updated"] == [TRAIN]
    assert git(root, "status", "--porcelain") == ""


def test_its_own_checkout_is_not_upgraded() -> None:
    done = labassist("upgrade", cwd=content.root(), status=2)
    assert "git pull brings newer files" in done.stderr
