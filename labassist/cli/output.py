"""What a command prints: stdout is data, stderr is talk."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import sys
import termios
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_CONTROLS = re.compile(r"\x1b(?!\[\d{1,2}m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def emit(data: Any, json_mode: bool, human: Callable[[], str]) -> None:
    """Print a command's answer on stdout: `data` as one JSON document with --json, else what `human` returns."""
    print(to_json(data) if json_mode else inert(human()))


def say(line: str) -> None:
    """Print one line of talk (progress, notes, advice) on stderr."""
    print(inert(line), file=sys.stderr, flush=True)


def inert(text: str) -> str:
    """Return text whose control characters stand escaped, but for our own styles: a note may come from anybody."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def piped() -> bool:
    """Say whether something waits on standard input: a file that is not read to its end, bytes in a pipe."""
    try:
        mode = os.fstat(0).st_mode
        if stat.S_ISREG(mode):
            return os.lseek(0, 0, os.SEEK_CUR) < os.fstat(0).st_size
        if not stat.S_ISFIFO(mode):
            return False
        waiting = fcntl.ioctl(0, termios.FIONREAD, bytes(4))
    except OSError:
        return False  # closed, or of a kind that cannot say
    return waiting != bytes(4)


def written(text: str, what: str) -> str:
    """Return what a person wrote as it is kept: without secrets, and a line says which were replaced.

    Raises InputError on bytes that are no text.
    """
    from labassist.errors import InputError
    from labassist.ledger.secrets import redact_text

    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(text).decode(errors="backslashreplace")
        raise InputError(f"not UTF-8: {shown}", where=f"the {what}", mend="write it in UTF-8") from error
    kept = redact_text(text, os.environ)
    if kept != text:
        found = dict.fromkeys(re.findall(r"\[redacted [^\]]+\]", kept))
        say(f"note: the {what} had a secret in it, and is kept with {', '.join(found)} in its place")
    return kept


def to_json(data: Any) -> str:
    """Return data as JSON; floats that JSON lacks stand as the ledger writes them ("nan:<hex>", "inf", "-inf")."""
    return json.dumps(_plain(data), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value made of JSON's own kinds."""
    from labassist.ledger.canonical import encode_number

    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return encode_number(value)
    return str(value) if isinstance(value, Path) else value


def paint(text: str, style: str) -> str:
    """Return text in one of STYLES where stdout is a terminal that shows it; never the only carrier of meaning."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{STYLES[style]}m{text}\033[0m"


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int | None = None,
    whole: Sequence[str] = (),
) -> str:
    """Return a table of left-aligned columns; numbers are right-aligned.

    It is cut to `width` columns of the terminal (default: the terminal's; whole where stdout is none) by
    shortening the widest columns, but for those named in `whole`. Columns without any content are left out.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    kept = [at for at in range(len(headers)) if not rows or any(str(row[at]) for row in rows)]
    headers, rows = [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]
    cells = [[" ".join(str(cell).split()) for cell in row] for row in rows]
    widths = [max(map(_columns, column)) for column in zip(headers, *cells, strict=True)]
    can_shrink = [at for at, name in enumerate(headers) if name not in whole]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(can_shrink, key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= 4:
            break
        widths[widest] -= 1
    right = [
        bool(rows) and all(isinstance(row[at], (int, float)) for row in rows) for at in range(len(headers))
    ]
    lines = [list(headers), *cells]
    return "\n".join(
        "  ".join(_fit(*cell) for cell in zip(line, widths, right, strict=True)).rstrip() for line in lines
    )


def _columns(text: str) -> int:
    """Return how many terminal columns a text takes."""
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        for sign in text
    )


def _fit(text: str, width: int, right: bool) -> str:
    """Return text padded or cut to `width` columns; a cut ends with `~`, which every terminal has."""
    if _columns(text) > width:
        while _columns(text) >= width:
            text = text[:-1]
        text += "~"
    padding = " " * (width - _columns(text))
    return padding + text if right else text + padding
