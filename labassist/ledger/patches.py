"""Read a git patch: the lines that it adds, and where."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass, field

OPTIONS = (
    "--binary",
    "--full-index",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--submodule=short",
    "--ignore-submodules=none",
    "--diff-algorithm=myers",
    "--unified=3",
    "--inter-hunk-context=0",
    "--indent-heuristic",
    "-O/dev/null",
)
"""What makes `git diff-tree -p` write a patch that `read` reads and `git apply` applies, on any machine."""
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass
class Change:
    """What a patch adds to one file."""

    path: str
    lines: list[tuple[int, str]] = field(default_factory=list)
    """Added lines with their number in the new file."""


def read(patch: bytes) -> list[Change]:
    """Return the changes of a patch that git wrote with the prefixes `a/` and `b/` and without renames."""
    changes: list[Change] = []
    lines = patch.split(b"\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith(b"diff --git "):
            changes.append(Change(_path(line[11:])))
        elif not changes:
            continue
        elif hunk := _HUNK.match(line):
            at = _hunk(lines, at, hunk, changes[-1])
    return changes


def _hunk(lines: list[bytes], at: int, head: re.Match[bytes], change: Change) -> int:
    """Read the hunk that starts at line `at` into `change` and return the line after it.

    Its length is counted, so that an added line which looks like a header is not taken for one.
    """
    old, new = (int(count) if count is not None else 1 for count in (head[1], head[3]))
    number = int(head[2])
    while (old > 0 or new > 0) and at < len(lines):
        sign, text = lines[at][:1], lines[at][1:]
        at += 1
        if sign == b"+":
            change.lines.append((number, text.decode(errors="replace")))
            number, new = number + 1, new - 1
        elif sign == b"-":
            old -= 1
        elif sign == b" ":
            number, old, new = number + 1, old - 1, new - 1
    return at


def _path(names: bytes) -> str:
    """Return the path from `a/P b/P`, or from its quoted form `"a/P" "b/P"` (both halves are equal)."""
    half = names[: (len(names) - 1) // 2]
    if half.startswith(b'"'):
        raw: bytes = ast.literal_eval("b" + half.decode("ascii"))
        return os.fsdecode(raw[2:])
    return os.fsdecode(half[2:])
