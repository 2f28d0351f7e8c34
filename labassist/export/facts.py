"""All that the ledger knows of one run, gathered for whoever shows it elsewhere."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinydb import where

from labassist.errors import InputError, LedgerError
from labassist.ledger import answers, curves, room
from labassist.ledger.curves import Curve
from labassist.ledger.names import by_creation
from labassist.ledger.records import Mark
from labassist.ledger.seals import altered_curves
from labassist.ledger.store import Ledger
from labassist.record.protocol import metrics_file
from labassist.serving.chain import chain, is_server


@dataclass
class Facts:
    """One run."""

    run: dict[str, Any]
    folder: Path
    curve: Curve
    """Of the whole lineage where all of it is here, else of the run alone."""
    environment: dict[str, Any] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    randomness: dict[str, Any] = field(default_factory=dict)
    patch: str = ""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    replays: list[dict[str, Any]] = field(default_factory=list)
    """Runs that replayed this one and have a verdict."""
    checks: list[Mark] = field(default_factory=list)
    """The newest check of each step that read this run."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Of a server: what was asked and answered."""
    chain: list[str] = field(default_factory=list)
    """Of a server: the links from its answers to the data, in words."""
    notes: list[str] = field(default_factory=list)
    """What could not be had, in words."""


def chosen(ledger: Ledger, names: list[str]) -> list[dict[str, Any]]:
    """Return the records that a person named; without a name every run that has ended. Raises InputError."""
    if names:
        return list({run["id"]: run for run in map(ledger.find, names)}.values())
    found = by_creation(dict(run) for run in ledger.runs.all() if run["state"] != "running")
    if not found:
        raise InputError("no run has ended yet", where=str(ledger.folder), mend="labassist run …")
    return found


def own_curve(ledger: Ledger, run: dict[str, Any]) -> Curve:
    """Return the curve of one segment, rank 0."""
    return curves.read_curve(ledger.run_folder(run["id"]) / metrics_file(0))


def facts(ledger: Ledger, run: dict[str, Any]) -> Facts:
    """Return what the ledger knows of a run. What is missing is noted and never an error."""
    run_id = run["id"]
    notes = altered_curves(ledger, [run])
    try:
        curve = curves.joined(ledger, run_id)
    except LedgerError as error:
        notes.append(str(error))
        curve = own_curve(ledger, run)
    with _noting(notes, "inputs"):
        run = {**run, "inputs": room.inputs(run, ledger.objects)}
    found = Facts(run, ledger.run_folder(run_id), curve, notes=notes)
    for name in ("environment", "hardware", "randomness"):
        if run.get(name):
            with _noting(notes, name):
                setattr(found, name, ledger.objects.get_json(run[name]))
    if run["code"].get("patch"):
        with _noting(notes, "the uncommitted change"):
            found.patch = ledger.objects.get(run["code"]["patch"]).decode("utf-8", "replace")
    rows = ledger.checkpoints.search(where("run") == run_id)
    found.checkpoints = sorted((dict(row) for row in rows), key=lambda row: int(row["step"]))
    replays = ledger.runs.search(where("replay_of") == run_id)
    found.replays = by_creation(dict(one) for one in replays if one.get("verdict"))
    newest: dict[tuple[str, str], Mark] = {}
    for mark in ledger.marks():
        if mark.kind == "check" and any(run_id in name for name in mark.evidence):
            newest[mark.lab, mark.step] = mark
    found.checks = list(newest.values())
    if is_server(run):
        found.chain, found.answers = chain(ledger, run), list(answers.read(found.folder))
    return found


@contextlib.contextmanager
def _noting(notes: list[str], what: str) -> Any:
    try:
        yield
    except LedgerError as error:
        notes.append(f"{what}: {error}")
