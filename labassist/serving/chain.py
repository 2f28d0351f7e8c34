"""From answers back to data: what a served model was made of, as its run recorded it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labassist.ledger import answers
from labassist.ledger.store import Ledger
from labassist.serving import JOB

SHORT = 12


def is_server(document: Mapping[str, Any]) -> bool:
    """Say whether a run is a server."""
    return document.get("job") == JOB


def answered(ledger: Ledger, document: Mapping[str, Any]) -> int:
    """Return how many answers a server has kept, so far where it lives."""
    kept = document.get("answers")
    return int(kept) if kept else answers.count(ledger.run_folder(document["id"]))


def chain(ledger: Ledger, document: Mapping[str, Any]) -> list[str]:
    """Return the links from a server's answers to the data, each in words; the model's, then those of its adapters.

    What another ledger recorded is named all the same, and said not to be here.
    """
    inputs = {one["name"]: one for one in document.get("inputs", [])}
    if "model" not in inputs:
        return []
    model = inputs["model"]["split"]
    name = document.get("config", {}).get("name", "")
    number = answered(ledger, document)
    links = [
        f"{number:,} answer{'s' if number != 1 else ''}",
        f"served model {name} ({str(model.get('digest', ''))[:SHORT]})",
    ]
    if model.get("merge"):
        links.append(f"merge {model['merge']}")
    if model.get("adapter"):
        links.append(_adapter(ledger, model["adapter"]))
    links += _data(model)
    base = model.get("base")
    if base:
        links.append(f"base {base.get('name', '')} ({str(base.get('digest', ''))[:SHORT]})")
    for key, one in inputs.items():
        if key.startswith("adapter "):
            told = {**one["split"], "sha256": one["sha256"]}
            links.append(f"{key}: {', '.join([_adapter(ledger, told), *_data(told)])}")
    return links


def _adapter(ledger: Ledger, told: Mapping[str, Any]) -> str:
    run = str(told.get("run", ""))
    digest = str(told.get("sha256", ""))[:SHORT]
    if not run:
        return f"an adapter of no run ({digest})"
    here = "" if ledger.run(run) else ", which is not in this ledger"
    return f"adapter of run {run} at step {told.get('step', 0)}{here} ({digest})"


def _data(told: Mapping[str, Any]) -> Iterator[str]:
    if told.get("data"):
        yield "data " + ", ".join(f"{name} {sha[:SHORT]}" for name, sha in told["data"].items())


def line(ledger: Ledger, document: Mapping[str, Any]) -> str:
    """Return the chain in one line."""
    return " <- ".join(chain(ledger, document))
