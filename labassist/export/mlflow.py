"""Runs into MLflow, through its own client: parameters, every value of the curves, tags with the provenance."""

from __future__ import annotations

import importlib
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.export.facts import own_curve
from labassist.ledger.curve_table import numbers
from labassist.ledger.store import Ledger

ID_TAG = "labassist.run"
BATCH = 1000
"""Values that MLflow takes at once."""
LONGEST = 5000
"""Signs of a tag or parameter that MLflow takes."""

_STATUS = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "running": "RUNNING",
    "stopped": "KILLED",
    "lost": "KILLED",
}


def write(ledger: Ledger, runs: list[dict[str, Any]], target: str) -> tuple[int, int]:
    """Log runs to a tracking store and return how many were, and how many were there already.

    `target` is a tracking URI, or a path: an SQLite file. An experiment is a job; a run is known by the tag
    `labassist.run`. Digests of batches are no numbers and stay here. Raises InputError where MLflow is missing or
    refuses.
    """
    client_type, entities, error_type = _mlflow()
    uri = target if "://" in target else f"sqlite:///{Path(target).expanduser().absolute()}"
    try:
        client = client_type(tracking_uri=uri)
        logged = sum(_log(client, entities, ledger, run) for run in runs)
    except error_type as error:
        said = (str(error).splitlines() or [""])[0]
        raise InputError(f"MLflow refuses: {said}", where=uri, mend="name another store with -o") from error
    return logged, len(runs) - logged


def _mlflow() -> tuple[Any, Any, Any]:
    try:
        tracking = importlib.import_module("mlflow.tracking")
        entities = importlib.import_module("mlflow.entities")
        exceptions = importlib.import_module("mlflow.exceptions")
    except ImportError as error:
        raise InputError(
            f"this Python has no {error.name}",
            where="export --to mlflow",
            mend="pip install 'labassist[mlflow]'",
        ) from None
    return tracking.MlflowClient, entities, exceptions.MlflowException


def _log(client: Any, entities: Any, ledger: Ledger, run: dict[str, Any]) -> bool:
    """Log one run; False where it is there already."""
    known = client.get_experiment_by_name(run["job"])
    experiment = known.experiment_id if known else client.create_experiment(run["job"])
    if client.search_runs([experiment], f"tags.`{ID_TAG}` = '{run['id']}'", max_results=1):
        return False
    began = _milliseconds(run["created"])
    made = client.create_run(experiment, start_time=began, tags=_tags(run), run_name=run["id"])
    name = made.info.run_id
    settings = {
        "seed": run["seed"],
        "mode": run["mode"],
        "threads": run.get("threads", ""),
        **run.get("config", {}),
    }
    parameters = [entities.Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
    for at in range(0, len(parameters), 100):
        client.log_batch(name, params=parameters[at : at + 100])
    curve = own_curve(ledger, run)
    values = [
        entities.Metric(series, float(value), began + round(1000 * float(curve.t.get(step, 0.0))), step)
        for series in numbers(curve)
        for step, value in curve.series[series].items()
    ]
    for at in range(0, len(values), BATCH):
        client.log_batch(name, metrics=values[at : at + BATCH])
    ended = _milliseconds(run["ended"]) if run.get("ended") else None
    client.set_terminated(name, _STATUS[run["state"]], ended)
    return True


def _tags(run: dict[str, Any]) -> dict[str, str]:
    code, origin = run["code"], run.get("resumed_from") or {}
    tags = {
        ID_TAG: run["id"],
        "mlflow.source.name": " ".join(run["argv"]),
        "mlflow.source.git.commit": code.get("commit", ""),
        "mlflow.note.content": run.get("note", ""),
        "labassist.state": run["state"],
        "labassist.code": code.get("digest", ""),
        "labassist.uncommitted": code.get("patch", ""),
        "labassist.verdict": (run.get("verdict") or {}).get("verdict", ""),
        "labassist.replay_of": run.get("replay_of") or "",
        "labassist.resumed_from": f"{origin['run']} step {origin['step']}" if origin else "",
        "labassist.health": run.get("health", ""),
        "labassist.cost": str(run.get("cost", "")),
        **{f"labassist.version.{key}": value for key, value in run.get("versions", {}).items()},
    }
    return {key: value[:LONGEST] for key, value in tags.items() if value}


def _milliseconds(time: str) -> int:
    return math.floor(datetime.fromisoformat(time).timestamp() * 1000)
