"""Code is recorded as it ran and restored byte for byte, and the user's repository is not touched."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from labassist.errors import CodeError, RestoreError
from labassist.ledger import patches
from labassist.ledger.code import capture, capture_without_git, script_place
from labassist.ledger.codestore import inner
from labassist.ledger.gitcmd import open_repository, private
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects
from labassist.ledger.patches import describe_change
from labassist.ledger.records import Code, Kept
from labassist.ledger.restore import missing, restore
from labassist.runs.recover import sweep_scratch

Tree = dict[str, tuple[str, bytes]]
SECRET = "hf_" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1BcDeFgH"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user configuration of our own, and no other."""
    path = tmp_path / "gitconfig"
    path.write_text("[user]\n\tname = T\n\temail = t@example.org\n[init]\n\tdefaultBranch = main\n")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    return path


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode(errors="surrogateescape")


def write(folder: Path, path: str, data: bytes | str, mode: int = 0o644) -> Path:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.exists():
        place.unlink()
    place.write_bytes(data if isinstance(data, bytes) else data.encode())
    place.chmod(mode)
    return place


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A small repository with one commit."""
    top = tmp_path / "repo"
    top.mkdir()
    git(top, "init", "-q")
    write(top, ".gitignore", "ignored/\n*.ign\n")
    write(top, "train.py", "a = 1\nb = 2\nc = 3\n")
    write(top, "run.sh", "#!/bin/sh\n", 0o755)
    write(top, "data/weights.bin", bytes(range(256)) * 8)
    write(top, "old.txt", "to be deleted\n")
    (top / "link").symlink_to("train.py")
    git(top, "add", "-A")
    git(top, "commit", "-q", "-m", "start")
    return top


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects")


def tree(top: Path) -> Tree:
    """Every file below `top` but `.git`: its kind and executable bit, and its bytes."""
    found: Tree = {}
    for folder, names, files in os.walk(top):
        names[:] = [name for name in names if name != ".git" and not (Path(folder) / name).is_symlink()]
        links = [name for name in os.listdir(folder) if (Path(folder) / name).is_symlink()]
        for name in {*files, *links} - {".git"}:
            place = Path(folder) / name
            path = place.relative_to(top).as_posix()
            if place.is_symlink():
                found[path] = ("link", os.fsencode(os.readlink(place)))
            else:
                kind = "exec" if place.stat().st_mode & stat.S_IXUSR else "file"
                found[path] = (kind, place.read_bytes())
    return found


def git_state(top: Path) -> dict[str, object]:
    """All that must not change: status, index, objects and every other file under `.git` but our refs."""
    store = top / ".git"
    files = {
        place.relative_to(store).as_posix(): hashlib.sha256(place.read_bytes()).hexdigest()
        for place in store.rglob("*")
        if place.is_file() and "refs/labassist" not in place.as_posix()
    }
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", "status", "--porcelain", "-z"], cwd=top, capture_output=True, env=env, check=True
    )
    return {"files": files, "status": done.stdout, "tree": tree(top)}


@pytest.fixture
def round_trip(repo: Path, objects: Objects, tmp_path: Path) -> Callable[..., tuple[Code, Path]]:
    """Capture and restore; assert that the repository is as before, and the copy equal but for `absent`."""
    count = 0

    def run(*, absent: tuple[str, ...] = (), limit: int = 1 << 20) -> tuple[Code, Path]:
        nonlocal count
        count += 1
        before = git_state(repo)
        code = capture(repo, objects, f"run-{count}", untracked_limit=limit)
        assert git_state(repo) == before
        into = tmp_path / f"restored-{count}"
        restore(code, objects, repo, into)
        assert git_state(repo) == before
        wanted = {path: entry for path, entry in tree(repo).items() if not path.startswith(absent or "\0")}
        assert tree(into) == wanted
        assert sorted(path.name for path in (repo / ".git/refs/labassist").iterdir()) == [
            f"run-{number}" for number in range(1, count + 1)
        ]
        return code, into

    return run


def test_clean_repository(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    code, _ = round_trip()
    assert not code.dirty
    assert (code.patch, code.extra) == ("", "")
    assert code.branch == "main"
    assert code.commit == git(repo, "rev-parse", "HEAD").strip()


def change_everything(repo: Path) -> None:
    """Leave a change of every kind: staged, unstaged, untracked, deleted, binary, mode, link, odd names."""
    write(repo, "train.py", "a = 1\nb = 22\nc = 3\n")
    git(repo, "add", "train.py")
    write(repo, "train.py", "a = 1\nb = 22\nc = 33\n")
    write(repo, "staged.py", "new and staged\n")
    git(repo, "add", "staged.py")
    write(repo, "intent.py", "to be added\n")
    git(repo, "add", "-N", "intent.py")
    write(repo, "untracked.py", "new\n")
    write(repo, "tool", "#!/bin/sh\n", 0o755)
    write(repo, "private.txt", "for me\n", 0o600)
    (repo / "old.txt").unlink()
    write(repo, "data/weights.bin", bytes(reversed(range(256))) * 8)
    (repo / "run.sh").chmod(0o644)
    (repo / "link").unlink()
    (repo / "link").symlink_to("staged.py")
    (repo / "untracked-link").symlink_to("nowhere/at all")
    write(repo, "a name with spaces \"quotes\" 'both' é 数.txt", "odd\n")
    write(repo, "line\nbreak\t.txt", "odd\n")
    write(repo, 'staged\nbreak\\ "é.txt', "odd\n")
    git(repo, "add", 'staged\nbreak\\ "é.txt')
    write(repo, "no-newline", "end")
    write(repo, "crlf.txt", "one\r\ntwo\n")
    write(repo, "empty", "")
    write(repo, "forced.ign", "ignored, but added\n")
    git(repo, "add", "-f", "forced.ign")


@pytest.mark.fault
def test_every_kind_of_change(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    change_everything(repo)
    code, into = round_trip()
    assert code.dirty
    assert stat.S_IMODE((into / "private.txt").stat().st_mode) == 0o600


HOSTILE = (
    "[diff]\n\tnoprefix = true\n\tmnemonicPrefix = true\n\texternal = false\n\trenames = copies\n"
    "\talgorithm = patience\n\tcontext = 0\n\tsuppressBlankEmpty = true\n\tsubmodule = log\n"
    "\torderFile = /nowhere\n\trelative = true\n\tinterHunkContext = 9\n"
    "[color]\n\tui = always\n\tdiff = always\n[core]\n\tquotePath = false\n\tpager = false\n"
    "\tfsmonitor = false\n\thooksPath = HOOKS\n\tlogAllRefUpdates = always\n\tabbrev = 4\n"
    "[apply]\n\twhitespace = fix\n\tignoreWhitespace = change\n[commit]\n\tgpgSign = true\n"
    "[status]\n\tshowUntrackedFiles = no\n[index]\n\tversion = 4\n[add]\n\tignoreErrors = true\n"
)


def test_the_users_configuration_changes_nothing(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, config: Path, tmp_path: Path
) -> None:
    change_everything(repo)
    plain, _ = round_trip()
    hooks = tmp_path / "hooks"
    for name in ("reference-transaction", "post-index-change", "post-checkout", "fsmonitor"):
        write(hooks, name, "#!/bin/sh\nexit 1\n", 0o755)
    config.write_text(config.read_text() + HOSTILE.replace("HOOKS", str(hooks)))
    hostile, _ = round_trip()
    assert (hostile.patch, hostile.digest) == (plain.patch, plain.digest)


@pytest.mark.parametrize("setting", ["input", "true"])
def test_line_ends_are_kept_whatever_git_converts(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, config: Path, setting: str
) -> None:
    config.write_text(config.read_text() + f"[core]\n\tautocrlf = {setting}\n\tsafecrlf = false\n")
    write(repo, "train.py", "a = 1\r\nb = 2\r\nc = 3\r\n")
    write(repo, "mixed.txt", "one\r\ntwo\n")
    git(repo, "add", "-A")
    round_trip()
    git(repo, "commit", "-q", "-m", "converted", "--allow-empty")
    assert git(repo, "status", "--porcelain") == ""
    round_trip()


def test_attributes_that_convert(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    write(repo, ".gitattributes", "*.txt text eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16\n")
    write(repo, "a.txt", "one\ntwo\n")
    write(repo, "b.id", "$Id$\n")
    write(repo, "c.u16", "text".encode("utf-16"))
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "converted")
    for name in ("a.txt", "b.id", "c.u16"):
        (repo / name).unlink()
    git(repo, "checkout", "--", ".")
    assert b"\r\n" in (repo / "a.txt").read_bytes()
    assert (repo / "b.id").read_bytes() != b"$Id$\n"
    round_trip()


def test_files_that_git_was_told_not_to_look_at(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path
) -> None:
    git(repo, "update-index", "--assume-unchanged", "train.py")
    git(repo, "update-index", "--skip-worktree", "run.sh")
    write(repo, "train.py", "unseen = 1\n")
    write(repo, "run.sh", "unseen\n", 0o755)
    assert git(repo, "status", "--porcelain") == ""
    round_trip()


def test_a_file_taken_out_of_the_index_that_is_still_there(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path
) -> None:
    git(repo, "rm", "-q", "--cached", "train.py", "run.sh")
    write(repo, ".gitignore", "ignored/\n*.ign\nrun.sh\n")
    round_trip()


def test_a_conflict_is_taken_as_the_working_tree_holds_it(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path
) -> None:
    git(repo, "checkout", "-q", "-b", "other")
    write(repo, "train.py", "a = 'theirs'\nb = 2\nc = 3\n")
    git(repo, "commit", "-q", "-a", "-m", "theirs")
    git(repo, "checkout", "-q", "main")
    write(repo, "train.py", "a = 'ours'\nb = 2\nc = 3\n")
    git(repo, "commit", "-q", "-a", "-m", "ours")
    subprocess.run(["git", "merge", "other"], cwd=repo, capture_output=True)
    assert "UU train.py" in git(repo, "status", "--porcelain")
    round_trip()


def test_kinds_that_change_places(round_trip: Callable[..., tuple[Code, Path]], repo: Path) -> None:
    """A file becomes a folder, a folder a link, a link a file."""
    (repo / "old.txt").unlink()
    write(repo, "old.txt/inside", "x")
    (repo / "data/weights.bin").unlink()
    (repo / "data").rmdir()
    (repo / "data").symlink_to("old.txt")
    write(repo, "link", "a file now")
    git(repo, "add", "link")
    round_trip()


@pytest.mark.fault
def test_commit_amended_and_collected(repo: Path, objects: Objects, tmp_path: Path) -> None:
    write(repo, "train.py", "a = 'first'\n")
    git(repo, "commit", "-q", "-a", "-m", "never pushed")
    write(repo, "train.py", "a = 'first, changed'\n")
    code = capture(repo, objects, "run-1")
    wanted = tree(repo)
    write(repo, "train.py", "a = 'second'\n")
    git(repo, "commit", "-q", "-a", "--amend", "-m", "amended")
    git(repo, "reflog", "expire", "--expire=now", "--all")
    git(repo, "gc", "-q", "--prune=now")
    git(repo, "checkout", "-q", "--orphan", "elsewhere")
    before = git_state(repo)
    restore(code, objects, repo, tmp_path / "into")
    assert tree(tmp_path / "into") == wanted
    assert git_state(repo) == before


def test_equal_code_has_an_equal_digest(repo: Path, objects: Objects) -> None:
    write(repo, "train.py", "changed\n")
    write(repo, "new.py", "new\n")
    digests = {capture(repo, objects, "r1").digest}
    git(repo, "add", "new.py")
    digests.add(capture(repo, objects, "r2").digest)
    git(repo, "checkout", "-q", "-b", "side")
    digests.add(capture(repo, objects, "r3").digest)
    git(repo, "commit", "-q", "-a", "-m", "all of it")
    digests.add(capture(repo, objects, "r4").digest)
    git(repo, "commit", "-q", "--amend", "-m", "another message")
    git(repo, "checkout", "-q", "--detach")
    detached = capture(repo, objects, "r5")
    digests.add(detached.digest)
    assert len(digests) == 1
    assert detached.branch == ""
    write(repo, "train.py", "changed!\n")
    assert capture(repo, objects, "r6").digest not in digests
    git(repo, "checkout", "-q", "train.py")
    (repo / "train.py").chmod(0o755)
    assert capture(repo, objects, "r7").digest not in digests


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 30))]
)
def test_random_changes(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, config: Path, seed: int
) -> None:
    draw = random.Random(seed)
    config.write_text(
        config.read_text() + f"[core]\n\tautocrlf = {draw.choice(['true', 'input', 'false'])}\n"
    )
    for step in range(3):
        for _ in range(12):
            path = draw.choice(["", "d/", "d/e/", "f/"]) + draw.choice(["a", "b", "c c", "ü", "x.bin"])
            if (
                any((repo / path).parents[i].is_file() for i in range(path.count("/")))
                or (repo / path).is_dir()
            ):
                continue
            place = repo / path
            kind = draw.randrange(7)
            if kind == 0 and os.path.lexists(place):
                place.unlink()
            elif kind == 1 and place.is_file() and not place.is_symlink():
                place.chmod(draw.choice([0o644, 0o755, 0o600]))
            elif kind == 2:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.unlink(missing_ok=True)
                place.symlink_to(draw.choice(["a", "../x", "no where"]))
            elif kind == 3:
                write(repo, path, draw.randbytes(draw.randrange(3000)), draw.choice([0o644, 0o755]))
            else:
                ends = draw.choice(["\n", "\r\n"])
                lines = [str(draw.randrange(5)) for _ in range(draw.randrange(40))]
                write(repo, path, ends.join(lines) + draw.choice(["", ends]))
            if draw.random() < 0.4 and os.path.lexists(place):
                git(repo, "add", "--", path)
        round_trip()
        if step < 2:
            git(repo, "add", "-A")
            git(repo, "commit", "-q", "--allow-empty", "-m", f"step {step}")


@pytest.mark.fault
def test_files_over_the_limit_are_recorded_by_hash(repo: Path, objects: Objects, tmp_path: Path) -> None:
    """Neither the patch nor the store grows with a huge file, new, changed, staged or deleted."""
    noise = random.Random(0)
    for name in ("tracked.big", "gone.big", "shrunk.big"):
        write(repo, name, noise.randbytes(300_000))
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "big")
    write(repo, "tracked.big", noise.randbytes(300_000))
    (repo / "gone.big").unlink()
    write(repo, "shrunk.big", b"small now")
    write(repo, "untracked.big", noise.randbytes(300_000))
    write(repo, "staged.big", noise.randbytes(300_000))
    git(repo, "add", "staged.big")
    before = git_state(repo)
    code = capture(repo, objects, "run-1", untracked_limit=100_000)
    assert git_state(repo) == before
    assert sum(objects.path(name).stat().st_size for name in objects) < 5_000
    by_path = {kept.path: kept for kept in listing(code.extra, objects)}
    for name in ("tracked.big", "untracked.big", "staged.big"):
        assert not by_path[name].stored
        assert by_path[name].sha256 == hashlib.sha256((repo / name).read_bytes()).hexdigest()
    restore(code, objects, repo, tmp_path / "same")
    assert tree(tmp_path / "same") == tree(repo)
    assert missing(code, objects, tmp_path / "same") == []
    write(repo, "tracked.big", b"changed since")
    (repo / "untracked.big").unlink()
    restore(code, objects, repo, tmp_path / "later")
    assert [kept.path for kept in missing(code, objects, tmp_path / "later")] == [
        "tracked.big",
        "untracked.big",
    ]
    assert not (tmp_path / "later/tracked.big").exists()
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "later")
    assert capture(repo, objects, "run-2", untracked_limit=100_000).digest != code.digest


def test_all_untracked_files_together_are_bounded(
    repo: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labassist.ledger.code.TOTAL_LIMIT", 2500)
    for name in ("u1", "u2", "u3"):
        write(repo, name, name * 500)
    stored = {kept.path: kept.stored for kept in listing(capture(repo, objects, "r").extra, objects)}
    assert stored == {"u1": True, "u2": True, "u3": False}


@pytest.mark.fault
def test_secrets_in_untracked_files_are_recorded_by_name(
    repo: Path, objects: Objects, tmp_path: Path
) -> None:
    write(repo, ".env", "A=1\n")
    write(repo, "keys/id_rsa", "x\n")
    write(repo, "login.py", f"login(token='{SECRET}')\n")
    code = capture(repo, objects, "run-1")
    kept = listing(code.extra, objects)
    assert [(file.path, file.sha256, file.stored) for file in kept] == [
        (".env", "", False),
        ("keys/id_rsa", "", False),
        ("login.py", "", False),
    ]
    assert not any(SECRET.encode() in objects.get(name) for name in objects)
    restore(code, objects, repo, tmp_path / "into")
    assert missing(code, objects, tmp_path / "into") == kept


@pytest.mark.fault
@pytest.mark.parametrize("staged", [False, True])
def test_a_secret_in_a_tracked_file_refuses_the_run(repo: Path, objects: Objects, staged: bool) -> None:
    write(repo, "train.py", f"a = 1\nb = 2\nlogin('{SECRET}')\nc = 3\n")
    if staged:
        git(repo, "add", "train.py")
    with pytest.raises(CodeError) as caught:
        capture(repo, objects, "run-1")
    assert caught.value.where == "train.py:3"
    assert "environment variable" in caught.value.mend
    assert SECRET not in str(caught.value)
    assert list(objects) == [] or not any(SECRET.encode() in objects.get(name) for name in objects)
    assert not (repo / ".git/refs/labassist").exists()


def test_a_secret_in_a_file_with_an_odd_name(repo: Path, objects: Objects) -> None:
    name = 'new "é\n.py'
    write(repo, name, f"++ b/x\n\nlogin('{SECRET}')\n")
    git(repo, "add", name)
    with pytest.raises(CodeError) as caught:
        capture(repo, objects, "run-1")
    assert caught.value.where == f"{name}:3"


def test_the_ledger_itself_is_not_code(repo: Path, objects: Objects) -> None:
    """Also where nobody told git to ignore it, and where the workspace is inside the repository."""
    for place in ("ledger/journal.jsonl", ".labassist/x", "inner/ledger/a", "inner/.labassist/b"):
        write(repo, place, "x")
    write(repo, "inner/train.py", "x")
    names = [kept.path for kept in listing(capture(repo, objects, "r1").extra, objects)]
    assert names == ["inner/.labassist/b", "inner/ledger/a", "inner/train.py"]
    names = [kept.path for kept in listing(capture(repo / "inner", objects, "r2").extra, objects)]
    assert names == [".labassist/x", "inner/train.py", "ledger/journal.jsonl"]


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


def test_refusals_say_the_mend(
    repo: Path, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CodeError, match="git init"):
        capture(empty, objects, "r")
    git(empty, "init", "-q")
    with pytest.raises(CodeError, match="git commit"):
        capture(empty, objects, "r")
    bare = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(bare))
    with pytest.raises(CodeError, match="bare"):
        capture(bare, objects, "r")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(CodeError, match="safe.directory"):
        capture(repo, objects, "r")
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(CodeError, match="install git"):
        capture(repo, objects, "r")


def test_a_file_name_that_is_not_utf8_is_refused(repo: Path, objects: Objects) -> None:
    Path(os.fsdecode(os.fsencode(repo) + b"/bad\xff.txt")).write_text("x")
    with pytest.raises(CodeError, match="rename"):
        capture(repo, objects, "r")


def test_restore_never_writes_over_anything(repo: Path, objects: Objects) -> None:
    write(repo, "train.py", "precious\n")
    code = capture(repo, objects, "r")
    before = git_state(repo)
    with pytest.raises(RestoreError, match="empty"):
        restore(code, objects, repo, repo)
    assert git_state(repo) == before


def test_restore_refuses_what_it_cannot_make_exact(repo: Path, objects: Objects, tmp_path: Path) -> None:
    write(repo, "train.py", "changed\n")
    write(repo, "new.py", "new\n")
    code = capture(repo, objects, "r")
    stranger = tmp_path / "stranger"
    git(tmp_path, "init", "-q", str(stranger))
    into = tmp_path / "into"
    with pytest.raises(RestoreError, match="is not in this repository"):
        restore(code, objects, stranger, into)
    assert not into.exists()
    other = objects.put(objects.get(code.patch).replace(b"+changed", b"+cheated"))
    for bad in (
        {"patch": other},
        {"patch": ""},
        {"extra": ""},
        {"extra": objects.put_json([{"path": "../evil", "bytes": 1, "sha256": objects.put(b"x")}])},
        {"extra": objects.put_json([{"path": ".git/hooks/x", "bytes": 1, "sha256": objects.put(b"x")}])},
        {"patch": "0" * 64},
        {"extra": objects.put_json(["nonsense"])},
    ):
        wrong = Code(**{**{name: getattr(code, name) for name in code.__struct_fields__}, **bad})
        with pytest.raises(CodeError):
            restore(wrong, objects, repo, into)
        assert not into.exists()
    assert not (tmp_path / "evil").exists()


def test_a_file_behind_a_link_of_the_record_is_refused(objects: Objects, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    files = [
        {"path": "d", "bytes": 1, "sha256": objects.put(os.fsencode(victim)), "mode": 0o120000},
        {"path": "d/x", "bytes": 1, "sha256": objects.put(b"x")},
    ]
    extra = objects.put_json(files)
    from labassist.ledger.kept import digest_without_git

    code = Code(vcs="none", extra=extra, digest=digest_without_git(listing(extra, objects)))
    with pytest.raises(RestoreError, match="behind a symbolic link"):
        restore(code, objects, tmp_path, tmp_path / "into")
    assert list(victim.iterdir()) == []


FILTER = '[filter "shout"]\n\tclean = tr A-Z a-z\n\tsmudge = tr a-z A-Z\n\trequired = true\n'


def test_files_under_a_filter(
    round_trip: Callable[..., tuple[Code, Path]], repo: Path, objects: Objects, config: Path, tmp_path: Path
) -> None:
    plain = config.read_text()
    config.write_text(plain + FILTER)
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
    config.write_text(plain)
    with pytest.raises(RestoreError, match="kept.up.*filter"):
        restore(code, objects, repo, tmp_path / "no-filter")
    assert not (tmp_path / "no-filter").exists()
    config.write_text(plain + FILTER.replace("tr A-Z", "no-such-program"))
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
    assert describe_change(code, objects) == ["nested/ recorded by name only"]


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


def test_a_change_is_described_in_short_lines(repo: Path, objects: Objects) -> None:
    change_everything(repo)
    write(repo, ".env", "A=1\n")
    lines = describe_change(capture(repo, objects, "r"), objects)
    for line in (
        "train.py +2 -2",
        "staged.py +1 -0 added",
        "old.txt +0 -1 deleted",
        "data/weights.bin binary",
        "run.sh +0 -0 mode 755 -> 644",
        "untracked.py kept whole, 4 bytes",
        ".env recorded by name only",
    ):
        assert line in lines
    assert describe_change(Code(vcs="none"), objects) == []


def test_added_lines_that_look_like_headers() -> None:
    patch = (
        b"diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,4 @@ def f\n a\n"
        b"++++ b/evil\n+@@ -1 +1 @@\n+diff --git a/y b/y\n-b\n\\ No newline at end of file\n"
    )
    (change,) = patches.read(patch)
    assert (change.path, change.removed) == ("x", 1)
    assert change.lines == [(2, "+++ b/evil"), (3, "@@ -1 +1 @@"), (4, "diff --git a/y b/y")]


def test_kept_paths_are_text(repo: Path, objects: Objects) -> None:
    write(repo, "ü.py", "x")
    assert listing(capture(repo, objects, "r").extra, objects) == [
        Kept("ü.py", 1, hashlib.sha256(b"x").hexdigest())
    ]
