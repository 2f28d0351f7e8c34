"""The check of a whole journal, from its first byte: order, content, and a tail that was cut off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from labassist.ledger.entries import GENESIS, chain, decode_entry, decode_head, split, whole_lines
from labassist.ledger.problems import Problem

_JOURNAL = "journal.jsonl"


class _Position(msgspec.Struct):
    n: int
    hash: str


_decode_position = msgspec.json.Decoder(_Position).decode


def verify(folder: Path) -> list[Problem]:
    """Return every problem of the journal in `folder`, in the order of its lines.

    Codes: `journal-missing`, `journal-line` (not an entry), `journal-edited` (content and hash disagree, or
    it does not follow the line before), `journal-order` (an entry is missing, repeated or moved),
    `journal-cut` (the tail that `head` or a run remembers is gone), `journal-replaced` (another entry stands
    there), `head-missing`, `head-damaged`, `positions-damaged`.
    """
    # The witnesses first: what is appended meanwhile may put the journal ahead of them, never behind.
    head = _witness(folder / "head")
    positions = {path: _witness(path) for path in sorted(folder.glob("runs/*/positions.jsonl"))}
    try:
        fd = os.open(folder / _JOURNAL, os.O_RDONLY)
    except OSError as error:
        return [Problem("journal-missing", f"the journal cannot be read: {error.strerror}", path=_JOURNAL)]
    problems: list[Problem] = []
    hashes: dict[int, str] = {}
    ends: dict[int, int] = {}
    try:
        _check_lines(fd, problems, hashes, ends)
    finally:
        os.close(fd)
    problems.extend(_check_head(head, hashes, ends))
    for path, content in positions.items():
        problems.extend(_check_positions(path.parent.name, str(path.relative_to(folder)), content, hashes))
    return problems


def _witness(path: Path) -> bytes | OSError:
    """Return a small file's content, read until it holds still; the error where it cannot be read."""
    try:
        content = path.read_bytes()
        while (again := path.read_bytes()) != content:
            content = again
        return content
    except OSError as error:
        return error


def _check_lines(fd: int, problems: list[Problem], hashes: dict[int, str], ends: dict[int, int]) -> None:
    """Walk the chain; fill the hash and the end offset of each entry number."""
    expected, end = 1, 0
    # The hash of the line before: as stored, and as its content says where the two differ.
    before = {GENESIS}
    for number, line in enumerate(whole_lines(fd), 1):
        end += len(line) + 1
        try:
            stored, body = split(line)
        except ValueError as error:
            problems.append(Problem("journal-line", f"line {number} {error}", path=_JOURNAL, line=number))
            before, expected = set(), expected + 1
            continue
        follows = {chain(previous, body) for previous in before}
        try:
            entry = decode_entry(body)
        except msgspec.MsgspecError as error:
            message = f"line {number} is no journal entry ({error})"
            problems.append(Problem("journal-line", message, path=_JOURNAL, line=number))
            before, expected = {stored, *follows}, expected + 1
            continue
        if entry.n != expected:
            message = f"line {number} holds entry {entry.n} where entry {expected} should be"
            problems.append(Problem("journal-order", message, entry.run, _JOURNAL, line=number))
        elif before and stored not in follows:
            message = f"line {number} was edited, or does not follow the line before: its hash disagrees"
            problems.append(Problem("journal-edited", message, entry.run, _JOURNAL, line=number))
        before = {stored} if stored in follows else {stored, *follows}
        hashes[entry.n], ends[entry.n] = stored, end
        expected = entry.n + 1


def _check_head(content: bytes | OSError, hashes: dict[int, str], ends: dict[int, int]) -> Iterator[Problem]:
    """Compare the journal with the file `head`, which may lag behind it but never runs ahead."""
    last = max(hashes, default=0)
    if isinstance(content, OSError):
        if last:
            message = f"head cannot be read ({content.strerror}): a cut tail would not be seen"
            yield Problem("head-missing", message, path="head")
        return
    try:
        head = decode_head(content)
    except msgspec.MsgspecError as error:
        yield Problem("head-damaged", f"head is no journal position ({error})", path="head")
        return
    if head.entries > last:
        message = f"the journal was cut: head names {head.entries} entries and {last} are there"
        yield Problem("journal-cut", message, path=_JOURNAL, line=last + 1)
    elif head.entries and (hashes.get(head.entries), ends.get(head.entries)) != (head.hash, head.bytes):
        message = f"entry {head.entries} is not the one that head names"
        yield Problem("journal-replaced", message, path=_JOURNAL, line=head.entries)


def _check_positions(
    run: str, name: str, content: bytes | OSError, hashes: dict[int, str]
) -> Iterator[Problem]:
    """Compare the journal with the positions that one run's folder kept."""
    last = max(hashes, default=0)
    if isinstance(content, OSError):
        yield Problem("positions-damaged", f"cannot be read: {content.strerror}", run, name)
        return
    # After the last newline stands nothing, or a write that was cut short.
    lines = content.split(b"\n")[:-1]
    beyond = 0
    for number, line in enumerate(lines, 1):
        try:
            position = _decode_position(line)
        except msgspec.MsgspecError as error:
            yield Problem(
                "positions-damaged", f"line {number} is no position ({error})", run, name, line=number
            )
            continue
        if position.n > last:
            beyond = max(beyond, position.n)
        elif hashes.get(position.n) != position.hash:
            message = f"entry {position.n} is not the one that this run's {name} names"
            yield Problem("journal-replaced", message, run, _JOURNAL, line=position.n)
    if beyond:
        message = f"the journal was cut: this run has an entry {beyond} and only {last} are there"
        yield Problem("journal-cut", message, run, _JOURNAL, line=last + 1)
