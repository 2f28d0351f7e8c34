"""Workspaces: found where one expects, made whole or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from command import answer, labassist

from labassist import content
from labassist.errors import InputError
from labassist.workspace import Workspace, job_files, new


def git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_places(tmp_path: Path) -> None:
    place = Workspace(tmp_path)
    assert (place.labs, place.ledger) == (tmp_path / "labs", tmp_path / "ledger")
    assert place.scratch == tmp_path / ".labassist" / "scratch"
    assert place.cache == tmp_path / ".labassist" / "cache"


def test_find_prefers_the_option_then_the_variable_then_the_enclosing_folder(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, third = new(tmp_path / "second").workspace, new(tmp_path / "third").workspace
    monkeypatch.chdir(workspace.labs)
    assert Workspace.find() == workspace
    monkeypatch.setenv("LABASSIST_WORKSPACE", str(second.root))
    assert Workspace.find() == second
    assert Workspace.find(third.root) == third
    monkeypatch.setenv("LABASSIST_WORKSPACE", "")
    assert Workspace.find() == workspace


def test_find_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"no workspace here or in a folder above; make one with `labassist new"
    ):
        Workspace.find()
    with pytest.raises(InputError, match="--workspace nowhere: no such folder"):
        Workspace.find("nowhere")
    monkeypatch.setenv("LABASSIST_WORKSPACE", str(tmp_path))
    with pytest.raises(InputError, match=r"LABASSIST_WORKSPACE .*: not a workspace"):
        Workspace.find()


def test_find_in_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InputError, match="has been deleted"):
        Workspace.find()


def test_the_checkout_is_a_workspace() -> None:
    assert Workspace.find(content.root()).root == content.root()


def test_new_commits_every_job_file_and_nothing_else(workspace: Workspace) -> None:
    labs = content.root() / "labs"
    jobs = {f"labs/{path}" for path in job_files(labs)}
    tracked = set(git(workspace.root, "ls-files").splitlines())
    assert jobs <= tracked
    assert {".gitignore", "ledger/README.md", "templates/README.md"} <= tracked
    assert not [name for name in tracked if name.startswith("labs/") and name not in jobs]
    assert git(workspace.root, "status", "--porcelain", "--ignored") == ""
    for path in job_files(labs):
        assert (workspace.labs / path).read_bytes() == (labs / path).read_bytes()


def test_job_files_leave_the_course_in_the_package(tmp_path: Path) -> None:
    for name in ("a/jobs.toml", "a/train.py", "a/lab.toml", "a/checks.py", "a/steps/01.md", "a/data/x.txt",
                 "a/__pycache__/x.pyc", "a/solutions/train.py", "b/lab.toml", "b/plan.py", "c/README.md", "README.md"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [str(path) for path in job_files(tmp_path)] == [
        "README.md",
        "a/data/x.txt",
        "a/jobs.toml",
        "a/train.py",
        "b/plan.py",
    ]


def test_recorded_runs_are_ignored(workspace: Workspace) -> None:
    (workspace.ledger / "runs" / "x").mkdir(parents=True)
    (workspace.ledger / "runs" / "x" / "log.txt").write_text("x")
    (workspace.ledger / "journal.jsonl").write_text("x")
    workspace.scratch.mkdir(parents=True)
    (workspace.scratch / "x").write_text("x")
    assert git(workspace.root, "status", "--porcelain") == ""


def test_new_in_an_empty_folder_and_below_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    new(tmp_path / "empty")
    new(tmp_path / "a" / "b" / "c")
    assert Workspace.find(tmp_path / "a" / "b" / "c")


def test_new_refuses_what_is_there(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="this folder is not empty"):
        new(tmp_path / "full")
    with pytest.raises(InputError, match="this is a file"):
        new(tmp_path / "file")
    with pytest.raises(InputError, match="a workspace already"):
        new(workspace.root)
    assert (tmp_path / "full" / "thesis.tex").read_text() == "years of work"


def test_new_without_a_git_identity(tmp_path: Path, isolated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (isolated / ".gitconfig").write_text("[user]\n\tuseConfigOnly = true\n")
    made = new(tmp_path / "workspace")
    assert git(made.workspace.root, "log", "--format=%an") == "labassist"
    assert "git does not know who you are" in made.notes[0]


def test_new_survives_a_demanding_git_configuration(
    tmp_path: Path, isolated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signing without a key, a failing hook from a template, and GIT_DIR set as inside a hook."""
    hooks = isolated / "template" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    with (isolated / ".gitconfig").open("a") as config:
        config.write(f"[commit]\n\tgpgSign = true\n[init]\n\ttemplateDir = {hooks.parent}\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    made = new(tmp_path / "workspace")
    monkeypatch.delenv("GIT_DIR")
    assert git(made.workspace.root, "rev-parse", "HEAD") == made.commit
    assert git(made.workspace.root, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert not (tmp_path / "elsewhere").exists()


def test_new_inside_a_repository_says_so(workspace: Workspace) -> None:
    made = new(workspace.root / "inner")
    assert any("lies inside the repository" in note for note in made.notes)
    assert git(made.workspace.root, "rev-parse", "--show-toplevel") == str(made.workspace.root)


def test_new_without_git_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no git program; install git"):
        new(tmp_path / "workspace")
    assert not (tmp_path / "workspace").exists()


@pytest.mark.fault
def test_new_leaves_nothing_when_git_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text(
        '#!/bin/sh\ncase "$*" in *add*) echo "no space left" >&2; exit 128;; esac\n'
    )
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "empty").mkdir()
    for folder in ("workspace", "empty"):
        with pytest.raises(InputError, match="no space left"):
            new(tmp_path / folder)
    assert not (tmp_path / "workspace").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def own_repository(root: Path) -> Path:
    root.mkdir()
    (root / "mk.py").write_text("open('made.txt', 'w').write('made')\n")
    (root / ".gitignore").write_text("data/")  # without a newline at its end
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "mine")
    return root


def test_a_repository_of_ones_own_becomes_a_workspace_and_records(tmp_path: Path) -> None:
    root = own_repository(tmp_path / "own")
    refused = labassist("run", "--", "python", "mk.py", cwd=root, status=2)
    assert "`labassist new .` makes it one" in refused.stderr
    head = git(root, "rev-parse", "HEAD")
    done = labassist("new", ".", cwd=root)
    assert "nothing is committed" in done.stdout and "labs/README.md, ledger/" in done.stdout
    assert git(root, "rev-parse", "HEAD") == head
    assert git(root, "diff", "--cached", "--name-only") == ""
    assert (root / ".gitignore").read_text().startswith("data/\n# labassist")
    untracked = git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    assert {"M .gitignore", "?? labs/README.md", "?? ledger/README.md"} <= set(untracked)
    assert all(" labs/" in line or " ledger/" in line or "gitignore" in line for line in untracked)
    made = answer("run", "--out", "made.txt", "--", "python", "mk.py", cwd=root)
    assert (made["state"], made["code"]["commit"]) == ("finished", head)
    assert git(root, "status", "--porcelain", "--untracked-files=all").splitlines() == [
        *untracked,
        "?? made.txt",
    ]
    assert answer("replay", made["id"], cwd=root)["verdict"] == "BITWISE"
    with pytest.raises(InputError, match="a workspace already"):
        new(root)


def test_a_repository_with_such_folders_and_a_folder_inside_one_are_refused(tmp_path: Path) -> None:
    root = own_repository(tmp_path / "own")
    (root / "ledger").write_text("my accounts")
    with pytest.raises(InputError, match="has a ledger of its own"):
        new(root)
    (root / "ledger").unlink()
    (root / "src").mkdir()
    (root / "src" / "x.py").write_text("")
    with pytest.raises(InputError, match=f"not the top of its repository.*labassist new {root}"):
        new(root / "src")
    assert git(root, "status", "--porcelain") == "?? src/"


@pytest.mark.fault
def test_a_repository_is_left_as_it_was_when_it_cannot_be_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = own_repository(tmp_path / "own")
    monkeypatch.setattr("labassist.workspace.IGNORED", None)
    with pytest.raises(AttributeError):
        new(root)
    assert git(root, "status", "--porcelain", "--ignored") == ""
    assert (root / ".gitignore").read_text() == "data/"
