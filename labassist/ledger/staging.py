"""An index of our own in which every tracked file stands as it is on disk, whatever the user has staged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from labassist.errors import CodeError
from labassist.ledger.gitcmd import Private, Repository, copy_index, joined, split

_CONVERTED = ("text", "crlf", "eol", "ident", "working-tree-encoding")
"""Attributes by which git changes a file's content on its way to disk."""


def stage(repo: Repository, git: Private) -> set[str]:
    """Make the private index hold each tracked file as it is on disk; return those under a filter.

    Raises CodeError, with the mend where a filter's own program failed.
    """
    copy_index(repo, git)
    staged = set(split(git.run("ls-files", "-z")))
    git.run("read-tree", "--reset", "HEAD")
    entries = {}
    for line in split(git.run("ls-files", "-s", "-v", "-z")):
        facts, _, path = line.partition("\t")
        tag, mode, object_id, _ = facts.split(" ")
        entries[path] = (tag, mode, object_id)
    new = sorted(path for path in staged - set(entries) if _on_disk(repo.top, path))
    converted, filtered = _attributes(repo, git, [*entries, *new])
    # An index says that a file is unchanged by its size and time, as its content was after conversion;
    # and not at all where the user told git to look away. Such files are compared by content.
    again = [
        (mode, object_id, path)
        for path, (tag, mode, object_id) in entries.items()
        if path in converted or tag.islower() or (tag == "S" and os.path.lexists(repo.top / path))
    ]
    git.set_entries(again)
    _run_filtered(git, "add", "-u")
    if new:
        _run_filtered(git, "update-index", "--add", "--replace", "-z", "--stdin", stdin=joined(new))
    return {path for path in filtered if stat.S_ISREG(_mode(repo.top / path))}


def _run_filtered(git: Private, *args: str, stdin: bytes = b"") -> None:
    """Run a command that reads files through filters. Raises CodeError that says whose failure it is."""
    try:
        git.run(*args, stdin=stdin)
    except CodeError as error:
        if "filter" in error.what:
            raise CodeError(
                error.what, where=error.where, mend="install the program of this filter (git lfs install)"
            ) from error
        raise


def _attributes(repo: Repository, git: Private, paths: list[str]) -> tuple[set[str], set[str]]:
    """Return the paths that git would convert on the way to disk, and those under a known filter."""
    config = repo.config
    automatic = config.get("core.autocrlf", "false").lower() not in ("false", "no", "off", "0", "")
    out = repo.run("check-attr", "-z", "--stdin", *_CONVERTED, "filter", stdin=joined(paths))
    fields = split(out)
    converted, filtered, binary = set(), set(), set()
    for path, attribute, value in zip(fields[::3], fields[1::3], fields[2::3], strict=True):
        if attribute == "filter":
            if value in git.filters:
                filtered.add(path)
        elif attribute == "text" and value == "unset":
            binary.add(path)
        elif value not in ("unspecified", "unset"):
            converted.add(path)
    if automatic:
        converted |= set(paths) - binary
    return converted - filtered, filtered


def _mode(place: Path) -> int:
    """Return the mode of what is at `place`, 0 where nothing is."""
    try:
        return place.lstat().st_mode
    except OSError:
        return 0


def _on_disk(top: Path, path: str) -> bool:
    """Say whether git can track what is at `path`: a file, a link, another repository; not behind a link."""
    place = top / path
    if any(parent.is_symlink() for parent in place.parents if parent.is_relative_to(top) and parent != top):
        return False
    mode = _mode(place)
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode) or (place / ".git").exists()
