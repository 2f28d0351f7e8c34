"""What a check read, under names whose content can be digested again later, without running the check.

run <id>            the run's record, but for its note
note <id>           its note
runs <json>         the records of the finished originals that fit {"job", "profile", "config"}
replays <id>        the records of its replays that have a verdict; without an id of all such replays
curve <id>          the metrics files of its lineage
checkpoint <id> <n> the manifest of the checkpoint at step n, of the last one for -1
guess <step>        the learner's guess
file <path>         a file of the learner's folder of the lab
checks              the lab's checks.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tinydb import where

from labassist.ledger import canonical
from labassist.ledger.records import Mark
from labassist.ledger.store import Ledger
from labassist.record.inspect import manifest_file
from labassist.record.protocol import file_sha256, metrics_file

CHECKS = "checks"
DIGITS = 32
"""Hex digits of a digest: half a SHA-256 tells any two contents apart."""


def digest(name: str, ledger: Ledger, lab: str, package: Path, learner: Path) -> str:
    """Return the digest of what a name stands for now, empty where there is nothing.

    `lab` is the lab's id, `package` its folder in the package and `learner` the one in the workspace.
    """
    kind, _, rest = name.partition(" ")
    if kind == "run":
        document = ledger.run(rest)
        return "" if document is None else _records([document])
    if kind == "note":
        return _short(str((ledger.run(rest) or {}).get("note", "")).encode())
    if kind == "runs":
        return _records(matching(ledger, **json.loads(rest)))
    if kind == "replays":
        return _records(replays(ledger, rest))
    if kind == "curve":
        return _files(ledger.run_folder(run) / metrics_file(0) for run in lineage(ledger, rest))
    if kind == "checkpoint":
        run, _, step = rest.partition(" ")
        path = checkpoint(ledger, run, int(step))
        return "" if path is None else _files([manifest_file(path)])
    if kind == "guess":
        return _short((guess(ledger.marks(), lab, rest) or "").encode())
    if kind == "file":
        return _files([learner / rest])
    return _files([package / "checks.py"]) if kind == CHECKS else ""


def matching(
    ledger: Ledger, job: str, profile: str | None, config: Mapping[str, Any], any_state: bool = False
) -> list[dict[str, Any]]:
    """Return the finished runs of a job that have these values, newest first; no replays. `None` is any profile.

    `any_state`: those that are not finished too. A server is stopped and never finishes.
    """
    found = runs_of(ledger, job, profile, config)
    return [document for document in found if any_state or document["state"] == "finished"]


def runs_of(ledger: Ledger, job: str, profile: str | None, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of a job that have these values, in whatever state, newest first; no replays."""

    def wanted(run: Mapping[str, Any]) -> bool:
        return run.get("job") == job and not run.get("replay_of") and fits(run, profile, config)

    return _newest_first(ledger, wanted)


def of_step(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of some runs that a step may take for its own: one that left a state out on purpose is none."""
    return [run for run in runs if not run.get("dropped")]


def runs_of_lab(ledger: Ledger, lab: str) -> list[dict[str, Any]]:
    """Return every run of a lab's jobs, replays too, newest first."""
    return _newest_first(ledger, lambda run: str(run.get("job", "")).startswith(f"{lab}/"))


def replays(ledger: Ledger, run: str) -> list[dict[str, Any]]:
    """Return the replays of a run, for an empty id of any run, that have a verdict; newest first."""

    def wanted(one: Mapping[str, Any]) -> bool:
        return bool(one.get("verdict") and one.get("replay_of") and run in ("", one["replay_of"]))

    return _newest_first(ledger, wanted)


def _newest_first(ledger: Ledger, wanted: Callable[[Mapping[str, Any]], bool]) -> list[dict[str, Any]]:
    found = ledger.runs.search(lambda value: wanted(value))
    return [
        dict(document)
        for document in sorted(found, key=lambda one: str(one.get("created", "")), reverse=True)
    ]


def fits(document: Mapping[str, Any], profile: str | None, config: Mapping[str, Any]) -> bool:
    """Say whether a run has a profile and these values of its configuration."""
    if profile is not None and document.get("profile", "") != profile:
        return False
    have = document.get("config", {})
    return all(key in have and _same(have[key], value) for key, value in config.items())


def lineage(ledger: Ledger, run: str) -> list[str]:
    """Return a run and those that it was resumed from, newest first."""
    found: list[str] = []
    current: str | None = run
    while current and current not in found:
        found.append(current)
        document = ledger.run(current) or {}
        current = (document.get("resumed_from") or {}).get("run")
    return found


def checkpoint(ledger: Ledger, run: str, step: int) -> Path | None:
    """Return the path of a run's checkpoint that was not pruned, of the last one for step -1."""
    found = [
        document
        for document in ledger.checkpoints.search(where("run") == run)
        if not document.get("pruned") and step in (-1, document["step"])
    ]
    last = max(found, key=lambda one: int(one["step"]), default=None)
    return None if last is None else ledger.folder / str(last["path"])


def guess(marks: Iterable[Mark], lab: str, step: str) -> str | None:
    """Return the learner's last guess at a step."""
    found = None
    for mark in marks:
        if mark.kind == "guess" and mark.lab == lab and mark.step == step:
            found = mark.guess
    return found


def _same(have: Any, wanted: Any) -> bool:
    """Compare as a person means it: 1 and 1.0 are one number, but True is none."""
    if isinstance(have, bool) or isinstance(wanted, bool):
        return have is wanted
    return bool(have == wanted)


def _records(documents: Iterable[Mapping[str, Any]]) -> str:
    plain = [{key: value for key, value in one.items() if key != "note"} for one in documents]
    return _short(canonical.dumps(plain)) if plain else ""


def _files(paths: Iterable[Path]) -> str:
    """Return one digest of several files; empty when none is there."""
    digests = list(_sha256(paths))
    if not any(digests):
        return ""
    return digests[0][:DIGITS] if len(digests) == 1 else _short("\n".join(digests).encode())


def _sha256(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        try:
            yield file_sha256(path)
        except OSError:
            # That a file is gone is an answer too: its digest is empty.
            yield ""


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
