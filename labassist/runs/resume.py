"""Go on from a run's last complete checkpoint, as a new segment of the same lineage."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinydb import where

from labassist.errors import CheckpointError, CodeError, InputError
from labassist.ledger import secrets
from labassist.ledger.diff import changed_files
from labassist.ledger.environment import machine
from labassist.ledger.kept import named
from labassist.ledger.records import Code, Origin, to_run, why_gone
from labassist.ledger.store import Ledger
from labassist.record.inspect import committed, folder_of, inspect, read_manifest
from labassist.runs import config as job_config
from labassist.runs import life
from labassist.runs.command import command_script
from labassist.runs.jobs import load_job
from labassist.runs.launch import Plan, launch
from labassist.runs.preflight import preflight
from labassist.runs.terms import Terms
from labassist.workspace import Workspace

_CONSEQUENCES = {
    "model": "the weights start anew",
    "optimizer": "the optimizer starts anew",
    "scheduler": "the learning rate starts anew",
    "scaler": "the loss scale starts anew",
    "rng": "dropout and augmentation draw other numbers",
    "data_position": "the data starts anew",
}


@dataclass
class Resumed:
    """A segment that was started."""

    run: str
    origin: Origin
    notes: list[str]
    """What a person should know: a torn checkpoint passed over, code that changed since."""


def resume(
    workspace: Workspace,
    ledger: Ledger,
    name: str,
    sets: list[str],
    note: str = "",
    drop: Sequence[str] = (),
    stop_after: int | None = None,
    terms: Callable[[dict[str, Any]], Terms] = lambda _document: Terms(),
    committing: Callable[[], None] = lambda: None,
) -> Resumed:
    """Start the segment that goes on from run `name` and return it.

    `drop` names states of the checkpoint to leave out on purpose (an ablation), `stop_after` the step after
    which it saves and stops; `terms` makes price and limits from the record of the run. Without any complete checkpoint a job starts again from step 0; a command without one is not resumed.
    Raises InputError for that, and when the run's trainer still lives; LedgerError when there is no such run.
    """
    document = ledger.find(name)
    run_id = document["id"]
    folder = ledger.run_folder(run_id)
    if life.held(folder / "alive"):
        raise InputError(
            "its trainer is alive", where=f"run {run_id}", mend=f"stop it first: labassist stop {run_id}"
        )
    if document["state"] == "finished":
        raise InputError(
            f"it finished all of its {document['step']} steps",
            where=f"run {run_id}",
            mend="there is nothing to go on with; start a longer one"
            + (" with --set" if document["kind"] == "job" else ": change its script"),
        )
    notes: list[str] = []
    if document["state"] == "running" and life.life(folder, document, machine().id) == "unseen":
        notes.append("this ledger is a copy of another one, where that run may still be alive")
    origin, path = last_checkpoint(ledger, document, notes)
    if document["kind"] == "command":
        plan = _command_plan(workspace, document, path, sets, notes)
    else:
        plan = _job_plan(workspace, document, sets, notes, origin)
    plan.note, plan.resumed_from, plan.resume_path, plan.drop = note, origin, path, list(drop)
    plan.stop_after = stop_after
    plan.terms = terms(document)
    if lacking := _lacking(ledger, origin):
        plan.warnings.append(lacking)
        notes.append(lacking)
    started = launch(workspace, ledger, plan, committing)
    current = ledger.run(started)
    if current and current["code"]["digest"] != document["code"]["digest"]:
        notes.append(_say_changed(to_run(document).code, to_run(current).code, ledger, workspace))
    return Resumed(started, origin, notes)


def _say_changed(before: Code, now: Code, ledger: Ledger, workspace: Workspace) -> str:
    """Say which files of the code are others than in the run that is resumed."""
    try:
        files = changed_files(before, now, ledger.objects, workspace.root)
    except CodeError:
        files = []  # its commit is not here any more
    names = f" ({named(files)})" if files else ""
    return (
        f"the code has changed since that run{names}: the joined curve is not one experiment, and no replay repeats "
        "it whole; what is no part of the code belongs into .gitignore"
    )


def _job_plan(
    workspace: Workspace, document: dict[str, Any], sets: list[str], notes: list[str], origin: Origin
) -> Plan:
    job = load_job(workspace, document["job"])
    profile = document.get("profile", "")
    config = job_config.Config(profile, document.get("config", {}) | job_config.parse_sets(job.spec, sets))
    key = str(job.memory.get("steps", "")).removeprefix("$")
    steps = config.flat.get(key)
    if isinstance(steps, int) and steps < origin.step:
        raise InputError(
            f"it would end at step {steps} ({key}), and its last complete checkpoint is of step {origin.step}",
            where=f"run {origin.run}",
            mend=f"give --set {key}=N with more steps, or start a shorter run",
        )
    notes += preflight(workspace, job, config)
    return Plan(
        job=document["job"],
        kind="job",
        argv=document["argv"],
        mode=document["mode"],
        seed=document["seed"],
        threads=document.get("threads", 1),
        profile=profile,
        nested=config.nested,
        flat=config.flat,
    )


def _command_plan(
    workspace: Workspace, document: dict[str, Any], path: Path | None, sets: list[str], notes: list[str]
) -> Plan:
    """Return the same command once more; its trainer reads in the order which checkpoint to go on from."""
    if sets:
        raise InputError("a command has no settings of ours", where="--set", mend="change its script")
    if path is None:
        raise InputError(
            "; ".join(["this command left no complete checkpoint that labassist knows", *notes]),
            where=f"run {document['id']}",
            mend="start it again; a script with labassist.record.attach(trainer) can be resumed",
        )
    argv = secrets.fill(document["argv"], os.environ)
    return Plan(
        job=document["job"],
        kind="command",
        argv=argv,
        mode=document["mode"],
        seed=document["seed"],
        threads=document.get("threads", 1),
        outputs=[output["path"] for output in document.get("outputs", [])],
        cwd=document["cwd"],
        script=command_script(workspace.root / document["cwd"], argv),
    )


def last_checkpoint(ledger: Ledger, document: dict[str, Any], notes: list[str]) -> tuple[Origin, Path | None]:
    """Return the newest checkpoint that is whole, and its folder; step 0 and None without one.

    A damaged one is passed over with a note. A segment that died before its first checkpoint hands over
    the one that it came from.
    """
    run_id = document["id"]
    for step, place in reversed(committed(ledger.run_folder(run_id)).items()):
        try:
            manifest = inspect(place)
        except CheckpointError as error:
            name = Path(error.where).name
            file = f" ({name})" if name not in ("", place.name) else ""
            notes.append(f"passed over {place.name}{file}: {error.what}")
            continue
        _say_gone(ledger, run_id, step, notes)
        return Origin(run_id, step), folder_of(place, manifest)
    _say_gone(ledger, run_id, 0, notes)
    came_from = document.get("resumed_from")
    if came_from and came_from["step"]:
        return Origin(**came_from), checkpoint_folder(ledger, came_from["run"], came_from["step"])
    return Origin(run_id, 0), None


def _lacking(ledger: Ledger, origin: Origin) -> str:
    """Say which states the checkpoint of `origin` was saved without, and what follows; empty where it has all."""
    place = committed(ledger.run_folder(origin.run)).get(origin.step)
    states = read_manifest(place)["states"] if place is not None else {}
    absent = [name for name in _CONSEQUENCES if states.get(name) == "absent"]
    if not absent:
        return ""
    meaning = "; ".join(_CONSEQUENCES[name] for name in absent)
    return (
        f"not an exact resume: the checkpoint at step {origin.step} holds no {', '.join(absent)}: {meaning}"
    )


def _say_gone(ledger: Ledger, run_id: str, step: int, notes: list[str]) -> None:
    """Note the newest checkpoint after `step` that is not here, and why."""
    here = committed(ledger.run_folder(run_id))
    rows = ledger.checkpoints.search(where("run") == run_id)
    gone = [row for row in rows if row["step"] > step and (why_gone(dict(row)) or row["step"] not in here)]
    if gone:
        last = max(gone, key=lambda row: int(row["step"]))
        why = why_gone(last) or "somebody removed it"
        notes.append(f"the checkpoint at step {last['step']} of run {run_id} is not here: {why}")


def checkpoint_folder(ledger: Ledger, run_id: str, step: int) -> Path:
    """Return the folder of one checkpoint, verified. Raises CheckpointError, saying so where it was pruned."""
    place = committed(ledger.run_folder(run_id)).get(step)
    why = why_gone(ledger.checkpoint(run_id, step) or {})
    if why and place is None:
        raise CheckpointError(
            f"the checkpoint at step {step} is not here: {why}",
            where=f"run {run_id}",
            mend="a whole replay (without --segment) needs none; a resume goes on from another run of the lineage",
        )
    if place is None:
        raise CheckpointError(
            f"run {run_id} has no whole checkpoint at step {step}", where=str(ledger.folder)
        )
    return folder_of(place, inspect(place))


def lineage(ledger: Ledger, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the segments of a lineage, the first one first, ending with `document`.

    Raises InputError where one of them is not in the ledger, or the lineage is a circle.
    """
    chain = [document]
    while chain[0].get("resumed_from"):
        earlier = ledger.run(chain[0]["resumed_from"]["run"])
        if earlier is None or any(earlier["id"] == one["id"] for one in chain):
            what = "which is not in this ledger" if earlier is None else "which goes on from it"
            raise InputError(
                f"it goes on from run {chain[0]['resumed_from']['run']}, {what}",
                where=f"run {chain[0]['id']}",
                mend="see labassist audit",
            )
        chain.insert(0, earlier)
    return chain
