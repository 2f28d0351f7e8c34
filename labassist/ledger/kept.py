"""The lists of files that a record of code names, and the digest of the tree that they make."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from labassist.errors import LedgerError
from labassist.ledger import canonical
from labassist.ledger.gitcmd import Private
from labassist.ledger.objects import Objects
from labassist.ledger.records import Kept

LINK = 0o120000
"""Mode of a symbolic link, whose content is its target."""
GONE = 0
"""Mode of a file that was deleted."""


def listing(sha: str, objects: Objects) -> list[Kept]:
    """Return the files of `code.extra` or `code.changed`; an empty name is an empty list. Raises LedgerError."""
    try:
        return msgspec.convert(objects.get_json(sha), list[Kept]) if sha else []
    except msgspec.ValidationError as error:
        raise LedgerError(
            f"object {sha} is not a list of files: {error}",
            where=str(objects.folder),
            mend="see `labassist audit`",
        ) from error


def put_listing(files: list[Kept], objects: Objects) -> str:
    """Store a list of files and return its name; an empty list has none."""
    documents: Any = msgspec.to_builtins(files)
    return objects.put_json(documents) if files else ""


def too_large(extra: str, objects: Objects) -> list[Kept]:
    """Return the files of `code.extra` that were too large to be kept; of the largest not even the hash is known."""
    return [kept for kept in listing(extra, objects) if not kept.stored and kept.bytes]


def known_by(kept: Kept) -> str:
    """Say what is recorded of a file that is not kept."""
    return "its hash" if kept.sha256 else "its name and size" if kept.bytes else "its name only"


def named(files: Sequence[str]) -> str:
    """Return a few file names in words, of many the first."""
    more = len(files) - 1
    return f"{files[0]} and {more:,} more" if more > 0 else files[0]


def say_too_large(extra: str, objects: Objects) -> list[str]:
    """Say once which files of a run were too large to be kept, and the mend; empty where there are none."""
    files = sorted(too_large(extra, objects), key=lambda kept: -kept.bytes)
    hashed, sized = ([kept for kept in files if bool(kept.sha256) is known] for known in (True, False))
    lines = []
    if hashed:
        lines.append(
            f"{_large(hashed)} too large to be kept with the run: only the hash is recorded, so a replay needs "
            f"{'them' if len(hashed) > 1 else 'it'} unchanged at the same place; what is no part of the code belongs "
            "in .gitignore"
        )
    if sized:
        lines.append(
            f"{_large(sized)} too large to be hashed at each start: only name and size are recorded, and a replay does "
            "without; what is no part of the code belongs in .gitignore, and what the script reads is recorded when it "
            "says so: path = record.read_order().input(NAME, PATH)"
        )
    return lines


def _large(files: list[Kept]) -> str:
    several = len(files) > 1
    size = sum(kept.bytes for kept in files) / 2**20
    return (
        f"{named([kept.path for kept in files])} ({size:,.1f} MiB{' together' if several else ''}) "
        f"{'are' if several else 'is'}"
    )


def take_away(git: Private, extra: list[Kept], changed: list[Kept]) -> None:
    """Take out of the private index what was deleted, and what an extra file takes the place of."""
    over = {kept.path for kept in changed}
    gone = [kept.path for kept in changed if kept.mode == GONE]
    gone += [kept.path for kept in extra if kept.path not in over and not kept.path.endswith("/")]
    git.set_entries(("0", "", path) for path in gone)


def code_digest(git: Private, extra: list[Kept], changed: list[Kept], objects: Objects) -> str:
    """Return the digest of the code, after `take_away`; the private index then names all of its files."""
    over = {kept.path for kept in changed}
    git.set_entries(
        (_git_mode(kept.mode), git.blob_id(objects.get(kept.sha256)), kept.path)
        for kept in extra
        if kept.stored and kept.path not in over
    )
    absent = [[kept.path, kept.bytes, kept.sha256] for kept in extra if not kept.stored]
    return hashlib.sha256(canonical.dumps([git.write_tree(), absent])).hexdigest()


def digest_without_git(extra: list[Kept]) -> str:
    """Return the digest of code that is only a few files."""
    files = [[kept.path, kept.sha256, _git_mode(kept.mode)] for kept in extra]
    return hashlib.sha256(canonical.dumps(files)).hexdigest()


def _git_mode(mode: int) -> str:
    """Return the mode that git has for a file: a link, executable or not."""
    return "120000" if mode == LINK else "100755" if mode & 0o100 else "100644"
