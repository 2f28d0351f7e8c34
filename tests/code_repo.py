"""A small repository, what may not change in it, and what must come back of it."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

Tree = dict[str, tuple[str, bytes]]

SECRET = "hf_" + "Ab3dEf6hIj9lMn2pQr5tUv8xYz1BcDeFgH"


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
