"""Go on from a run's last complete checkpoint, as a new segment of the same lineage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labassist.errors import CheckpointError, InputError
from labassist.ledger.environment import machine
from labassist.ledger.records import Origin
from labassist.ledger.store import Ledger
from labassist.record.inspect import inspect
from labassist.runs import config as job_config
from labassist.runs import life
from labassist.runs.jobs import load_job
from labassist.runs.launch import Plan, launch
from labassist.workspace import Workspace


@dataclass
class Resumed:
    """A segment that was started."""

    run: str
    origin: Origin
    notes: list[str]
    """What a person should know: a torn checkpoint passed over, code that changed since."""


def resume(workspace: Workspace, ledger: Ledger, name: str, sets: list[str], note: str = "") -> Resumed:
    """Start the segment that goes on from run `name` and return it.

    Without any complete checkpoint it starts again from step 0. Raises InputError when the run's trainer
    still lives or the run was a command, and LedgerError when there is no such run.
    """
    document = ledger.find(name)
    run_id = document["id"]
    folder = ledger.run_folder(run_id)
    if life.held(folder / "alive"):
        raise InputError(
            "its trainer is alive", where=f"run {run_id}", mend=f"stop it first: labassist stop {run_id}"
        )
    if document["kind"] != "job":
        raise InputError(
            "only a job can be resumed: this command wrote no checkpoints that labassist knows",
            where=f"run {run_id}",
            mend="start it again with labassist run",
        )
    if document["state"] == "finished":
        raise InputError(
            f"it finished all of its {document['step']} steps",
            where=f"run {run_id}",
            mend="there is nothing to go on with; start a longer one with --set",
        )
    notes: list[str] = []
    if document["state"] == "running" and life.life(folder, document, machine().id) == "unseen":
        notes.append("this ledger is a copy of another one, where that run may still be alive")
    origin, path = last_checkpoint(ledger, document, notes)
    flat = dict(document["config"])
    if sets:
        job = load_job(workspace, document["job"])
        flat |= job_config.parse_sets(job.spec, sets)
    plan = Plan(
        job=document["job"],
        kind="job",
        argv=document["argv"],
        mode=document["mode"],
        seed=document["seed"],
        threads=document.get("threads", 1),
        profile=document.get("profile", ""),
        nested=job_config.Config(document.get("profile", ""), flat).nested,
        flat=flat,
        note=note,
        resumed_from=origin,
        resume_path=path,
    )
    started = launch(workspace, ledger, plan)
    current = ledger.run(started)
    if current and current["code"]["digest"] != document["code"]["digest"]:
        notes.append("the code has changed since that run: the joined curve is not one experiment")
    return Resumed(started, origin, notes)


def last_checkpoint(ledger: Ledger, document: dict[str, Any], notes: list[str]) -> tuple[Origin, Path | None]:
    """Return the newest checkpoint that is whole, by its own manifest; step 0 and None without one.

    A damaged one is passed over with a note. A segment that died before its first checkpoint hands over
    the one that it came from.
    """
    run_id = document["id"]
    for folder in sorted((ledger.run_folder(run_id) / "checkpoints").glob("step-????????"), reverse=True):
        try:
            inspect(folder)
        except CheckpointError as error:
            notes.append(f"passed over {folder.name}: {error.what}")
            continue
        return Origin(run_id, int(folder.name[5:])), folder
    came_from = document.get("resumed_from")
    if came_from and came_from["step"]:
        folder = ledger.run_folder(came_from["run"]) / "checkpoints" / f"step-{came_from['step']:08d}"
        inspect(folder)
        return Origin(came_from["run"], came_from["step"]), folder
    return Origin(run_id, 0), None


def lineage(ledger: Ledger, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the segments of a lineage, the first one first, ending with `document`."""
    chain = [document]
    while chain[0].get("resumed_from"):
        earlier = ledger.run(chain[0]["resumed_from"]["run"])
        if earlier is None:
            raise InputError(
                f"it goes on from run {chain[0]['resumed_from']['run']}, which is not in this ledger",
                where=f"run {chain[0]['id']}",
            )
        chain.insert(0, earlier)
    return chain
