"""Spoils one recorded quantity in a copy of a workspace, so that a check can be seen to fail.

A copy shares objects and checkpoints with the original (hard links) until one of them is replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labassist.course import noted
from labassist.course.model import Alter
from labassist.errors import InputError
from labassist.ledger.canonical import decode_number, encode_number
from labassist.ledger.store import Ledger
from labassist.record.inspect import COMMIT, manifest_file
from labassist.record.protocol import file_sha256, metrics_file
from labassist.workspace import Workspace

LINKED = {"objects", "checkpoints", "packages"}
"""Folders whose files are only ever replaced whole."""


def copy(workspace: Workspace, target: Path) -> Workspace:
    """Copy a workspace. What is large and never written in place becomes a link; its repository stays behind."""

    def copied(source: str, to: str) -> None:
        inside = Path(source).relative_to(workspace.root)
        if LINKED.intersection(inside.parts) or inside.suffix in (".safetensors", ".pt"):
            os.link(source, to)
        else:
            shutil.copyfile(source, to)

    shutil.copytree(
        workspace.root,
        target,
        copy_function=copied,
        ignore=shutil.ignore_patterns(".git", "__pycache__", "scratch"),
    )
    return Workspace(target)


def spoil(workspace: Workspace, folder: Path, alter: Alter, runs: Sequence[str]) -> str:
    """Change the quantity that `alter` names, of these runs or in the learner's `folder`; return what was done.

    Raises InputError when there is nothing of that name to change.
    """
    if alter.file:
        path = folder / alter.file
        text = path.read_text(encoding="utf-8")
        if alter.find not in text:
            raise InputError(f"{alter.find!r} is not in {alter.file}")
        _replace(path, text.replace(alter.find, alter.put).encode())
        return f"{alter.file}: {alter.find!r} as {alter.put!r}"
    with Ledger.open(workspace.ledger) as ledger:
        done = [what for run in runs for what in [_spoil_run(ledger, alter, run)] if what]
    if not done:
        raise InputError(f"no run here has {_quantity(alter)}")
    return done[0]


def same_quantity(a: Alter, b: Alter) -> bool:
    """Say whether two alters spoil one and the same quantity, whatever they make of it."""
    return (a.run, a.file, a.find, _quantity(a)) == (b.run, b.file, b.find, _quantity(b))


def _quantity(alter: Alter) -> str:
    if alter.verdict:
        return "a replay with a verdict"
    for kind in ("series", "config", "field", "tensor"):
        if getattr(alter, kind):
            return f"{kind} {getattr(alter, kind)}"
    return ""


def _spoil_run(ledger: Ledger, alter: Alter, run: str) -> str:
    if alter.series:
        return _series(ledger, run, alter.series, alter.by)
    if alter.tensor:
        return _tensor(ledger, run, alter.tensor)
    document = ledger.run(run) or {}
    if alter.verdict:
        replay = (
            run if document.get("replay_of") else next((one["id"] for one in noted.replays(ledger, run)), "")
        )
        return _field(ledger, replay, "verdict.verdict", alter.verdict) if replay else ""
    if alter.config:
        if alter.config not in document.get("config", {}):
            return ""
        ledger.change("note", run, lambda one: {**one, "config": {**one["config"], alter.config: alter.to}})
        return f"config {alter.config} = {alter.to}"
    return _field(ledger, run, alter.field, alter.to)


def _series(ledger: Ledger, run: str, name: str, by: float) -> str:
    found = False
    for one in noted.lineage(ledger, run):
        path = ledger.run_folder(one) / metrics_file(0)
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        for row in rows:
            if name in row:
                found = True
                row[name] = _times(row[name], name, by)
        _replace(path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
        ledger.change("note", one, lambda document: _last(document, name, by))
    return f"series {name} x {by:g}" if found else ""


def _last(document: Mapping[str, Any], name: str, by: float) -> dict[str, Any]:
    last = dict(document.get("last", {}))
    if name in last:
        last[name] = _times(last[name], name, by)
    return {**document, "last": last}


def _times(value: Any, name: str, by: float) -> Any:
    """Return a value times `by`; a digest becomes another one."""
    if name == "batch" or name.endswith("_digest"):
        return f"{int(value[0], 16) ^ 1:x}{value[1:]}"
    return encode_number(decode_number(value) * by)


def _field(ledger: Ledger, run: str, dotted: str, to: Any) -> str:
    *path, last = dotted.split(".")

    def fn(document: dict[str, Any]) -> dict[str, Any] | None:
        table: Any = document
        for part in path:
            table = table.get(part) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table:
            return None
        table[last] = to
        return document

    before = ledger.run(run)
    return f"{dotted} = {to}" if ledger.change("note", run, fn) != before else ""


def _tensor(ledger: Ledger, run: str, name: str) -> str:
    path = noted.checkpoint(ledger, run, -1)
    if path is None or not path.exists():
        return ""
    file = manifest_file(path)
    manifest = json.loads(file.read_bytes())
    if name not in manifest["tensors"]:
        return ""
    manifest["tensors"][name] = (
        f"{int(manifest['tensors'][name][0], 16) ^ 1:x}{manifest['tensors'][name][1:]}"
    )
    _replace(file, json.dumps(manifest).encode())
    if file != path:
        _replace(path / COMMIT, file_sha256(file).encode())
    return f"tensor {name}"


def _replace(path: Path, data: bytes) -> None:
    """Put another file in a file's place, so that a link to the old one keeps its content."""
    partial = path.with_name(f"{path.name}.spoilt")
    partial.write_bytes(data)
    partial.replace(path)
