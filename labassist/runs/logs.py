"""A run's log, made safe to show: whole lines, no control sequences, no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from labassist import own
from labassist.ledger.secrets import redact_text, secret_name

LONGEST = 2000
"""Characters of one line that are shown; a progress bar may write megabytes without a newline."""

_CHUNK = 1 << 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_REDACTED = re.compile(r"\[redacted ([^\]]+)\]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Log:
    """Reads a log as it grows, from its start or from `skip` bytes before its end."""

    def __init__(self, path: Path, *, last_bytes: int | None = None) -> None:
        self._path = path
        self._rest = b""
        self._at = 0
        if last_bytes is not None and path.exists():
            self._at = max(0, path.stat().st_size - last_bytes)

    def poll(self, *, whole: bool = False) -> Iterator[str]:
        """Yield the lines that are new; with `whole`, a last line without its newline too."""
        try:
            file = open(self._path, "rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._at)
            while block := file.read(_CHUNK):
                self._at += len(block)
                *lines, self._rest = (self._rest + block).split(b"\n")
                for line in lines:
                    yield inert(line)
                # A line that never ends must not fill the memory.
                self._rest = self._rest[-_CHUNK:]
        if whole and self._rest:
            yield inert(self._rest)
            self._rest = b""


def inert(line: bytes) -> str:
    """Return a line as plain text: what a carriage return overwrote is gone, escapes and controls too."""
    text = line.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
    text = _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\t", "    "))
    return redact_text(text[:LONGEST], _held())


@cache
def _held() -> dict[str, str]:
    """Return the secrets of this process's environment: a trainer may print one that has no known shape."""
    return {name: value for name, value in os.environ.items() if secret_name(name)}


def secrets_in(path: Path) -> list[str]:
    """Return in words the secrets that a log holds, which are hidden wherever it is shown."""
    found: dict[str, None] = {}
    with suppress(FileNotFoundError), open(path, errors="replace") as file:
        while lines := file.readlines(_CHUNK):
            text = "".join(lines)
            shown = redact_text(text, _held())
            if shown != text:
                found |= dict.fromkeys(_REDACTED.findall(shown))
    return list(found)


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a log."""
    return list(Log(path, last_bytes=64 * 1024).poll(whole=True))[-lines:]


def last_line(path: Path) -> str:
    """Return the last line of a log that says something, empty where none does."""
    return own.last_line("\n".join(tail(path, 20)))
