"""Another machine over ssh: commands there, and files that go on where a lost link left them.

Port, user, identity and jumps come from ~/.ssh/config, as for any ssh. Nothing of labassist is needed over
there: a shell with the usual GNU programs.
"""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labassist.errors import InputError, LedgerError

VARIABLE = "LABASSIST_SSH"
"""Environment variable: the ssh command to use, with options, in place of `ssh`."""

_OPTIONS = [
    *("-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
]
LOST = "run it again: what came over is kept, and it goes on from there"
_BLOCK = 1 << 20
_SSH_FAILED = 255


def command() -> list[str]:
    """Return the ssh command. A link that is silent for a minute counts as lost."""
    own = os.environ.get(VARIABLE)
    return shlex.split(own) if own else ["ssh", *_OPTIONS]


@dataclass(frozen=True)
class Remote:
    """A path on another machine, as scp writes it: `HOST:PATH`."""

    host: str
    path: str

    def __str__(self) -> str:
        """Return it as a person wrote it."""
        return f"{self.host}:{self.path}"

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.host, f"{self.path.rstrip('/')}/{name}")

    @property
    def quoted(self) -> str:
        """The path as a word of the remote shell; `~/` is the home there."""
        if self.path == "~" or self.path.startswith("~/"):
            return '"$HOME"' + (shlex.quote(self.path[1:]) if len(self.path) > 1 else "")
        return shlex.quote(self.path)

    def run(self, script: str, stdin: bytes | IO[bytes] = b"") -> bytes:
        """Run a shell script there and return its output. Raises LedgerError with what it complained of."""
        words = [*command(), self.host, script]
        try:
            done: subprocess.CompletedProcess[bytes] = (
                subprocess.run(words, capture_output=True, check=False, input=stdin)
                if isinstance(stdin, bytes)
                else subprocess.run(words, capture_output=True, check=False, stdin=stdin)
            )
        except FileNotFoundError as error:
            raise LedgerError("there is no ssh program here", mend="install openssh-client") from error
        if done.returncode:
            raise self.failed(done.returncode, done.stderr)
        return done.stdout

    def stream(self, script: str, stdin: bytes, take: Callable[[IO[bytes]], None]) -> None:
        """Run a shell script there and hand its output to `take` as it comes. Raises LedgerError."""
        words = [*command(), self.host, script]
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except FileNotFoundError as error:
            raise LedgerError("there is no ssh program here", mend="install openssh-client") from error
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            try:
                process.stdin.write(stdin)
                process.stdin.close()
            except BrokenPipeError:
                pass  # what went wrong stands in its own complaint
            take(process.stdout)
        finally:
            process.stdout.close()
            complaint = process.stderr.read()
            status = process.wait()
        if status:
            raise self.failed(status, complaint)

    def failed(self, status: int, complaint: bytes) -> LedgerError:
        """Return the error for a remote command that failed: a lost link, or what it said itself."""
        words = " ".join(complaint.decode("utf-8", "replace").split()[-40:]) or f"exit status {status}"
        if status == _SSH_FAILED:
            mend = f"see that `ssh {self.host}` works, then {LOST}"
            return LedgerError(f"the link failed: {words}", where=self.host, mend=mend)
        return LedgerError(words, where=str(self))


def unwritten(error: OSError) -> str:
    """Return the mend of a file that could not be written here."""
    return f"free some space, then {LOST}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else LOST


def parse(text: str) -> Remote | Path:
    """Return a place as a person names it: `HOST:PATH` on another machine, else a path here. Raises InputError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(text).decode(errors="backslashreplace")
        raise InputError("the name is not UTF-8", where=shown, mend="rename it there") from error
    host, colon, path = text.partition(":")
    if not colon or "/" in host or not host:
        return Path(text).expanduser()
    if host.startswith("-") or any(sign.isspace() for sign in host):
        raise InputError("this is no host", where=text, mend="write HOST:PATH, as for scp")
    return Remote(host, path or ".")


def fetch_rest(source: Remote, target: Path, size: int) -> None:
    """Bring one file, from where its partial copy ends. Raises LedgerError; what came is kept."""
    partial = target.with_name(target.name + ".part")
    have = partial.stat().st_size if partial.exists() else 0
    if have > size:
        partial.unlink()
        have = 0

    def take(out: IO[bytes]) -> None:
        with partial.open("ab") as file:
            while block := out.read(_BLOCK):
                file.write(block)

    target.parent.mkdir(parents=True, exist_ok=True)
    if have < size or size == 0:
        try:
            source.stream(f"tail -c +{have + 1} {source.quoted}", b"", take)
        except OSError as error:
            raise LedgerError(
                f"cannot be written: {error.strerror}", where=str(partial), mend=unwritten(error)
            ) from error
    if partial.stat().st_size < size:
        raise LedgerError("the link was lost", where=source.host, mend=LOST)
    os.replace(partial, target)


def send(source: Path, target: Remote, sha256: str) -> None:
    """Copy one file there, from where its partial copy ends, and hold its hash there against ours.

    The copy is on that disk, under its name, when this returns. Raises LedgerError; what arrived is kept,
    unless it is not what was sent.
    """
    name, part = target.quoted, Remote(target.host, target.path + ".part").quoted
    if _digest_there(target) == sha256:
        return
    have = int(target.run(f"stat -c %s {part} 2>/dev/null || echo 0").decode() or 0)
    size = source.stat().st_size
    if have > size:
        target.run(f"rm {part}")
        have = 0
    with source.open("rb") as file:
        file.seek(have)
        target.run(f"umask 077; cat >> {part}", stdin=file)
    arrived = target.run(f"sync {part}; sha256sum {part}").decode().lstrip("\\").split(" ")[0]
    if arrived != sha256:
        target.run(f"rm {part}")
        raise LedgerError("the copy is not what was sent", where=str(target), mend="run it again")
    target.run(f'mv {part} {name} && sync "$(dirname {name})"')
    if _digest_there(target) != sha256:
        raise LedgerError("the copy is not what was sent", where=str(target), mend="run it again")


def _digest_there(target: Remote) -> str:
    """Return the SHA-256 of a file there, empty where it is missing."""
    out = target.run(f"[ ! -f {target.quoted} ] || sha256sum {target.quoted}")
    return out.decode().lstrip("\\").split(" ")[0]
