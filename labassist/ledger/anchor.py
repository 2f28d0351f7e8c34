"""An anchor: one line that says how a ledger ended at a moment, to be kept where nobody can change both.

The chain shows that nothing before its end was changed; only something outside the ledger can show that its
end was not cut off and written again. The line is `labassist-anchor <head hash> <entries> <time>`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from labassist.errors import CodeError, InputError, LedgerError
from labassist.ledger.entries import Entry
from labassist.record.durable import hand_out
from labassist.workspace import FALLBACK_IDENTITY

_LINE = re.compile(r"labassist-anchor ([0-9a-f]{64}) ([1-9][0-9]*) (\S+Z)")
_NAMESPACE = "labassist-anchor"
"""What ssh signatures over an anchor are for, so that one cannot be taken for another kind."""


class Anchor(NamedTuple):
    """Where a journal ended, and when that was written down."""

    hash: str
    entries: int
    time: str

    @property
    def line(self) -> str:
        """The anchor as text."""
        return f"labassist-anchor {self.hash} {self.entries} {self.time}"


def take(entries: Sequence[Entry]) -> Anchor:
    """Return the anchor of a journal as it now is. Raises LedgerError where it is empty."""
    if not entries:
        raise LedgerError("there is nothing to anchor: the journal is empty", mend="record a run first")
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Anchor(entries[-1].hash, entries[-1].n, now)


def read(given: str) -> tuple[Anchor, str]:
    """Return the anchor in a file, or in the text itself, and what its signature says (empty: it has none).

    Raises InputError when it is neither, or a signature beside the file does not fit it.
    """
    path = Path(given).expanduser()
    text, signed = given, ""
    if not given.startswith("labassist-anchor"):
        try:
            text = path.read_text("utf-8", "replace")
        except OSError as error:
            raise InputError(
                f"cannot read the anchor: {error.strerror}",
                where=f"--anchor {given}",
                mend="give the file, or the line itself; to write one, give -o FILE",
            ) from error
        signature = path.with_name(path.name + ".sig")
        signed = _check(path, signature) if signature.exists() else ""
    match = _LINE.search(text)
    if match is None:
        raise InputError(
            "this is no anchor", where=f"--anchor {given}", mend="make one with `audit --anchor -o FILE`"
        )
    return Anchor(match[1], int(match[2]), match[3]), signed


def replaced(path: Path) -> Anchor | None:
    """Return the anchor that stands where a new one is to be written. Raises InputError on any other file.

    It is what shows that the ledger was not cut, so it goes only where the ledger still has its entry.
    """
    if not path.is_file():
        return None
    try:
        return read(str(path))[0]
    except InputError as error:
        raise InputError(
            f"a file is there that is not to be written over: {error.what}",
            where=f"-o {path}",
            mend="name another",
        ) from error


def write(anchor: Anchor, path: Path, key: Path | None = None) -> None:
    """Write an anchor to a file, and with an ssh key its signature beside it, as `<file>.sig`. Raises LedgerError."""
    try:
        hand_out(path, anchor.line + "\n")
        path.with_name(path.name + ".sig").unlink(missing_ok=True)  # it was of the anchor before
    except OSError as error:
        raise LedgerError(f"the anchor cannot be written: {error.strerror}", where=str(path)) from error
    if key is not None:
        done = _ssh_keygen("-Y", "sign", "-n", _NAMESPACE, "-f", str(key), str(path))
        if done.returncode:
            raise LedgerError(
                f"the anchor is written and could not be signed: {done.stderr.strip()}",
                where=str(path),
                mend="name a private ssh key",
            )


def note(anchor: Anchor, workspace: Path) -> None:
    """Keep an anchor as a git note of the workspace's commit, under refs/notes/labassist. Raises CodeError."""
    from labassist.ledger.gitcmd import open_repository, run_git

    repo = open_repository(workspace)
    env = {"GIT_DIR": str(repo.git_dir), "GIT_WORK_TREE": str(repo.top)}
    known = run_git(repo.top, "var", "GIT_COMMITTER_IDENT", env=env)[0] == 0
    identity = () if known else FALLBACK_IDENTITY
    words = ("notes", "--ref=labassist", "append", "-m", anchor.line, "HEAD")
    status, _out, err = run_git(repo.top, *identity, *words, env=env)
    if status:
        raise CodeError(f"the note cannot be written: {err.strip()}", where=str(repo.top))


def is_in(anchor: Anchor, entries: Sequence[Entry]) -> bool:
    """Say whether the journal still has, in its place, the entry that the anchor names."""
    return any(entry.n == anchor.entries and entry.hash == anchor.hash for entry in entries)


def _check(path: Path, signature: Path) -> str:
    """Return who signed a file, as ssh-keygen says it. Raises InputError on a signature that does not fit."""
    words = ("-Y", "check-novalidate", "-n", _NAMESPACE, "-s", str(signature))
    done = _ssh_keygen(*words, stdin=path.read_bytes())
    if done.returncode:
        raise InputError(
            "the signature does not fit the anchor", where=str(signature), mend="it was changed since"
        )
    return done.stdout.strip()


def _ssh_keygen(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise LedgerError("there is no ssh-keygen here, which signs", mend="install openssh-client")
    done = subprocess.run([program, *words], input=stdin, capture_output=True, check=False)
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)
