"""Code in repositories of every make: filters, submodules, worktrees, other hashes, none at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from code_repo import SECRET, git, git_state, tree, write

from labassist.errors import CodeError, RestoreError
from labassist.ledger.code import capture, capture_without_git, script_place
from labassist.ledger.codestore import inner
from labassist.ledger.gitcmd import open_repository, private
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code
from labassist.ledger.restore import restore
from labassist.runs.recover import sweep_scratch


def test_a_workspace_inside_a_repository(repo: Path, objects: Objects, tmp_path: Path) -> None:
    write(repo, "inner/labs/train.py", "x")
    write(repo, "outer.txt", "x")
    code = capture(repo / "inner", objects, "run-1")
    place = inner(repo / "inner", objects.folder.parent, "run", open_repository(repo).head)
    restore(code, objects, repo / "inner", tmp_path / "into")
    assert (tmp_path / "into" / place / "labs/train.py").read_text() == "x"
    assert tree(tmp_path / "into") == tree(repo)


def test_the_script_is_kept_where_git_would_not(repo: Path, objects: Objects, tmp_path: Path) -> None:
    inside, outside = write(repo, "ignored/mine.py", "1"), write(tmp_path, "elsewhere/other.py", "2", 0o755)
    code = capture(repo, objects, "r1", script=inside)
    restore(code, objects, repo, tmp_path / "a")
    assert (tmp_path / "a" / script_place(inside, repo)).read_text() == "1"
    code = capture(repo, objects, "r2", script=outside)
    restore(code, objects, repo, tmp_path / "b")
    assert (tmp_path / "b" / script_place(outside, repo)).read_text() == "2"
    assert capture(repo, objects, "r3", script=repo / "train.py").extra == ""


def test_without_git(objects: Objects, tmp_path: Path) -> None:
    inside, outside = write(tmp_path, "w/job/a.py", "1", 0o755), write(tmp_path, "b.py", "2")
    code = capture_without_git([inside, outside], objects, base=tmp_path / "w")
    assert (code.vcs, code.commit) == ("none", "")
    restore(code, objects, tmp_path, tmp_path / "into")
    assert tree(tmp_path / "into") == {"job/a.py": ("exec", b"1"), ".labassist/script/b.py": ("file", b"2")}
    assert capture_without_git([outside, inside], objects, base=tmp_path / "w").digest == code.digest
    inside.write_text("3")
    assert capture_without_git([inside, outside], objects, base=tmp_path / "w").digest != code.digest
    inside.write_text(f"login('{SECRET}')")
    with pytest.raises(CodeError, match="secret"):
        capture_without_git([inside], objects)


FILTER = '[filter "shout"]\n\tclean = tr A-Z a-z\n\tsmudge = tr a-z A-Z\n\trequired = true\n'


def test_files_under_a_filter(
    round_trip: Callable[..., tuple[Code, Path]],
    repo: Path,
    objects: Objects,
    git_config: Path,
    tmp_path: Path,
) -> None:
    plain = git_config.read_text()
    git_config.write_text(plain + FILTER)
    write(repo, ".gitattributes", "*.up filter=shout\n")
    write(repo, "kept.up", "LOUD\n")
    write(repo, "edited.up", "LOUD\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "filtered")
    code, _ = round_trip()
    assert not code.dirty
    os.utime(repo / "kept.up", (1, 1))
    assert round_trip()[0].digest == code.digest
    write(repo, "edited.up", "Not Quite Loud\n")
    write(repo, "staged.up", "NEW\n")
    git(repo, "add", "staged.up")
    write(repo, "untracked.up", "NEW Too\n")
    code, _ = round_trip()
    git_config.write_text(plain)
    with pytest.raises(RestoreError, match="kept.up.*filter"):
        restore(code, objects, repo, tmp_path / "no-filter")
    assert not (tmp_path / "no-filter").exists()
    git_config.write_text(plain + FILTER.replace("tr A-Z", "no-such-program"))
    with pytest.raises(CodeError, match="install the program of this filter"):
        capture(repo, objects, "r")


@pytest.fixture
def with_submodule(repo: Path, tmp_path: Path) -> Path:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for name, folder in (("inner", inner), ("outer", outer)):
        folder.mkdir()
        git(folder, "init", "-q")
        write(folder, f"{name}.py", name)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", name)
    git(outer, "submodule", "add", "-q", str(inner), "libs/inner")
    git(outer, "commit", "-q", "-m", "nested")
    git(repo, "submodule", "add", "-q", str(outer), "vendor/outer")
    git(repo, "commit", "-q", "-m", "submodule")
    git(repo, "submodule", "update", "-q", "--init", "--recursive")
    return repo


@pytest.mark.fault
def test_submodules(
    with_submodule: Path, round_trip: Callable[..., tuple[Code, Path]], objects: Objects, tmp_path: Path
) -> None:
    repo = with_submodule
    sub = repo / "vendor/outer"
    code, into = round_trip()
    heads = [git(folder, "rev-parse", "HEAD").strip() for folder in (sub, sub / "libs/inner")]
    assert code.submodules == [f"vendor/outer {heads[0]}", f"vendor/outer/libs/inner {heads[1]}"]
    assert (into / "vendor/outer/libs/inner/inner.py").read_text() == "inner"
    write(sub, "outer.py", "moved on")
    with pytest.raises(CodeError, match=r"vendor/outer: .*not committed.*git -C vendor/outer commit"):
        capture(repo, objects, "r")
    git(sub, "commit", "-q", "-a", "-m", "local only")
    code, _ = round_trip()
    assert code.patch
    wanted = tree(repo)
    git(repo, "submodule", "deinit", "-q", "-f", "--all")
    restore(code, objects, repo, tmp_path / "from-store")
    assert tree(tmp_path / "from-store") == wanted
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repo), str(clone))
    with pytest.raises(RestoreError, match=r"vendor/outer: .*git submodule update --init"):
        restore(code, objects, clone, tmp_path / "no")


def test_another_repository_inside_is_recorded_by_name(repo: Path, objects: Objects, tmp_path: Path) -> None:
    git(repo, "init", "-q", "nested")
    write(repo, "nested/x.py", "x")
    git(repo / "nested", "add", "-A")
    git(repo / "nested", "commit", "-q", "-m", "x")
    code = capture(repo, objects, "r")
    assert [(kept.path, kept.stored) for kept in listing(code.extra, objects)] == [("nested/", False)]
    restore(code, objects, repo, tmp_path / "into")


def test_a_linked_worktree_and_a_split_index(repo: Path, objects: Objects, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", str(linked), "-b", "side")
    git(linked, "update-index", "--split-index")
    write(linked, "train.py", "in the worktree\n")
    write(linked, "new.py", "new\n")
    git(linked, "add", "new.py")
    before = git_state(repo)
    code = capture(linked, objects, "run-1")
    assert git_state(repo) == before
    assert code.branch == "side"
    restore(code, objects, repo, tmp_path / "into")
    assert tree(tmp_path / "into") == tree(linked)
    assert git(repo, "rev-parse", "refs/labassist/run-1").strip() == code.commit


def test_a_sha256_repository(objects: Objects, tmp_path: Path) -> None:
    top = tmp_path / "wide"
    git(tmp_path, "init", "-q", "--object-format=sha256", str(top))
    write(top, "a.py", "1\n")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "start")
    write(top, "a.py", "2\n")
    write(top, "b.py", "new\n")
    restore(capture(top, objects, "r"), objects, top, tmp_path / "into")
    assert tree(tmp_path / "into") == tree(top)


def test_a_sweep_of_the_scratch_folder_leaves_a_living_capture_alone(repo: Path, tmp_path: Path) -> None:
    opened, scratch = open_repository(repo), tmp_path / "new" / "scratch"
    with private(opened, opened.head, repo, scratch) as one:
        sweep_scratch(scratch)
        assert one.write_tree()
    assert list(scratch.iterdir()) == []
    (scratch / "labassist-git-killed" / "objects").mkdir(parents=True)
    sweep_scratch(scratch)
    assert list(scratch.iterdir()) == []


def test_variables_of_a_git_hook_do_not_lead_astray(
    repo: Path, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a run is started by a hook, which git gives its own directories."""
    write(repo, "train.py", "changed\n")
    write(repo, "new.py", "new\n")
    monkeypatch.setenv("GIT_DIR", str(repo / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repo / ".git/index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(repo / ".git/objects"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
    monkeypatch.chdir(repo)
    before = git_state(repo)
    restore(capture(repo, objects, "r"), objects, repo, tmp_path / "into")
    assert git_state(repo) == before
    assert tree(tmp_path / "into") == tree(repo)
