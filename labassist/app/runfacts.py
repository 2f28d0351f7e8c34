"""A run's record as pages of text: configuration, code, lineage, checkpoints. No screen, no files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from labassist.app import words
from labassist.app.messages import RunDetail
from labassist.app.words import Line, Signs
from labassist.errors import counted

STARTED = ("job", "kind", "profile", "mode", "seed", "threads", "cwd")
"""Fields of a record that say how a run was started."""


def config_page(document: Mapping[str, Any]) -> list[Line]:
    """Return how the run was started, its numbers, its inputs and what it ran on."""
    lines = _heading("started as")
    lines += _pairs((name, document.get(name)) for name in STARTED if document.get(name) not in ("", None))
    lines.append([("  $ ", "dim"), (" ".join(document.get("argv", [])), "key")])
    if document.get("config"):
        lines += _heading("numbers") + _pairs(sorted(document["config"].items()))
    if document.get("inputs"):
        lines += _heading("data it read")
        for one in document["inputs"]:
            lines.append([(f"  {one['name']}  ", "dim"), (one["path"], "plain")])
            stored = ", kept in the ledger" if one.get("stored") else ""
            lines.append(
                [(f"    {counted(one['bytes'], 'bytes')}, sha256 {one['sha256'][:16]}{stored}", "dim")]
            )
        if document.get("more_inputs"):
            lines.append([(f"  and more, listed in objects/{document['more_inputs'][:16]}…", "dim")])
    if document.get("versions"):
        lines += _heading("ran on") + _pairs(document["versions"].items())
        lines += _pairs([("host", document.get("machine", {}).get("host", ""))])
    return lines


def code_page(document: Mapping[str, Any], detail: RunDetail | None) -> list[Line]:
    """Return the commit, what was changed beside it, and that change itself."""
    code = document.get("code", {})
    lines = _heading("recorded code")
    shown = ("vcs", "commit", "branch", "digest", "package")
    lines += _pairs((name, code.get(name)) for name in shown if code.get(name))
    lines += [[(f"  submodule {one}", "plain")] for one in code.get("submodules", [])]
    if detail is None:
        return [*lines, [("  reading the change …", "dim")]]
    lines += [[(problem, "bad")] for problem in detail.problems]
    if detail.extra:
        lines += _heading("files that git did not know")
        for one in detail.extra:
            kept = "" if one.get("stored", True) else "  by name only"
            lines.append([(f"  {one['path']}  {counted(one['bytes'], 'bytes')}{kept}", "plain")])
    if not detail.patch:
        clean = "no uncommitted change" if code.get("vcs") == "git" else "no repository: the script is kept"
        return [*lines, [(f"  {clean}", "dim")]]
    return [*lines, *_heading("uncommitted change"), *map(_patched, detail.patch.splitlines())]


def lineage_page(run: str, detail: RunDetail | None, marks: Signs) -> list[Line]:
    """Return the segments of a run's lineage, and its replays with their verdicts."""
    if detail is None:
        return [[("reading the lineage …", "dim")]]
    lines: list[Line] = []
    if detail.chain:
        lines += _heading("from its answers back to the data")
        lines += [
            [("  " if at == 0 else "  <- ", "dim"), (link, "plain")] for at, link in enumerate(detail.chain)
        ]
    lines += _heading("segments, oldest first")
    for one in detail.lineage:
        here = one["id"] == run
        origin = one.get("resumed_from")
        how = f"from {words.short(origin['run'])} at step {origin['step']:,}" if origin else "from its start"
        dropped = f", without {', '.join(one['dropped'])}" if one.get("dropped") else ""
        said = f"  {how}{dropped}, to step {one.get('step', 0):,}, {one['state']}"
        lines.append(
            [
                (f"{marks.cursor if here else ' '} ", "key"),
                (words.short(one["id"]), "strong"),
                (said, "plain"),
            ]
        )
        if one.get("note"):
            lines.append([(f"    {' '.join(one['note'].split())}", "dim")])
    lines += _heading("replays")
    for one in detail.replays:
        found = one.get("verdict") or {}
        verdict = found.get("verdict", one["state"])
        kind = "good" if verdict == "BITWISE" else "plain"
        lines.append(
            [
                ("  ", "plain"),
                (words.short(one["id"]), "strong"),
                (f"  {verdict}", kind),
                (
                    f"  {words.clock(one['created'])}, {counted(found.get('steps', 0), 'steps')} compared",
                    "dim",
                ),
            ]
        )
    if not detail.replays:
        lines.append([("  none yet", "dim")])
    return lines


def note_lines(document: Mapping[str, Any]) -> list[Line]:
    """Return the notes that people kept with a run, newest first."""
    return [[("note  ", "dim"), (row, "plain")] for row in reversed(document.get("note", "").splitlines())]


def size(count: float) -> str:
    """Return a number of bytes in few characters, by powers of 1,024."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError


def _heading(text: str) -> list[Line]:
    return [[], [(text, "head")]]


def _pairs(pairs: Iterable[tuple[str, Any]]) -> list[Line]:
    items = list(pairs)
    width = max((len(name) for name, _ in items), default=0)
    return [[(f"  {name.ljust(width)}  ", "dim"), (_text(value), "plain")] for name, value in items]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _patched(row: str) -> Line:
    if row.startswith(("+++", "---", "diff ", "index ", "@@")):
        return [(row, "head")]
    return [(row, {"+": "good", "-": "bad"}.get(row[:1], "plain"))]
