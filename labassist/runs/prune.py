"""Drop old checkpoints and keep what they were: a journalled tombstone with the hash of every file.

A lineage is a run and what it goes on from; its last checkpoints are those that a resume would take. Nothing
of a lineage that still runs is touched, nor a checkpoint that another trainer keeps in a folder of its own.
The tombstones are journalled first; a death in between leaves folders that the next `prune` removes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError, LedgerError, counted, did_you_mean
from labassist.ledger import curves, foreign
from labassist.ledger.records import why_gone
from labassist.ledger.store import Ledger
from labassist.record.protocol import metrics_file

Key = tuple[str, int]
"""A run's id and a step."""


@dataclass(frozen=True)
class Policy:
    """What is kept; everything else goes."""

    last: int = 3
    """The newest of each lineage; at least one."""
    every: int = 0
    """Steps that are a multiple of it; 0: none for that reason."""
    best: str = ""
    """Of each lineage, the one with the lowest value of this series; empty: none for that reason."""
    named: frozenset[Key] = frozenset()
    runs: frozenset[str] = frozenset()
    """Only lineages with one of these runs; empty: all."""


@dataclass
class Pruned:
    """What a policy keeps and drops."""

    dropped: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoint documents as they were."""
    kept: dict[Key, str] = field(default_factory=dict)
    """Why each of the others is kept."""
    finished: list[str] = field(default_factory=list)
    """Folders of an earlier prune that was interrupted, now removed."""
    dry: bool = False

    @property
    def bytes(self) -> int:
        """Bytes in the files of the checkpoints that were dropped."""
        return sum(int(one["bytes"]) for one in self.dropped)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `prune --json`."""
        names = ("run", "step", "bytes", "manifest")
        return {
            "dry_run": self.dry,
            "dropped": [{name: one[name] for name in names} for one in self.dropped],
            "kept": [{"run": run, "step": step, "why": why} for (run, step), why in self.kept.items()],
            "freed_bytes": self.bytes,
            "finished": self.finished,
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        word = "would drop" if self.dry else "dropped"
        lines = [f"{word} {one['run']} step {one['step']}  {one['bytes']:,} bytes" for one in self.dropped]
        lines += [f"kept {run} step {step}: {why}" for (run, step), why in self.kept.items()]
        lines += [f"removed {name}, which an interrupted prune had left" for name in self.finished]
        freed = f"{self.bytes / 2**20:,.1f} MiB"
        end = f"would free {freed}; run it without --dry-run to do it" if self.dry else f"freed {freed}"
        return "\n".join([*lines, f"{counted(len(self.dropped), 'checkpoints')}, {end}"])


def keys(ledger: Ledger, names: Sequence[str]) -> frozenset[Key]:
    """Return the checkpoints that a person names, as `RUN:STEP` or all of `RUN`. Raises InputError."""
    found: set[Key] = set()
    for name in names:
        run, colon, step = name.rpartition(":")
        run_id = ledger.find(run if colon else name)["id"]
        steps = {row["step"] for row in ledger.checkpoints if row["run"] == run_id}
        if colon and (not step.isdecimal() or int(step) not in steps):
            mend = f"there are {', '.join(map(str, sorted(steps))) or 'none'}"
            raise InputError(
                f"run {run_id} has no checkpoint at step {step}", where=f"--keep {name}", mend=mend
            )
        found |= {(run_id, int(step))} if colon else {(run_id, one) for one in steps}
    return frozenset(found)


def prune(ledger: Ledger, policy: Policy, *, dry: bool = False) -> Pruned:
    """Drop what `policy` does not keep. Raises LedgerError where the ledger or a folder cannot be written."""
    if policy.last < 1:
        raise InputError(
            "the newest checkpoint of a lineage is always kept", where="--keep-last", mend="give 1 or more"
        )
    if dry:
        return _choose(ledger, policy, dry)
    with ledger.journal.locked():
        found = _choose(ledger, policy, dry)
        by_run: dict[str, list[dict[str, Any]]] = {}
        for document in found.dropped:
            by_run.setdefault(document["run"], []).append({**document, "pruned": True})
        for run_id, documents in by_run.items():
            ledger.put("prune", run_id, checkpoints=documents)
    for document in ledger.checkpoints:
        if document.get("pruned"):
            path = ledger.folder / document["path"]
            now = any(one["path"] == document["path"] for one in found.dropped)
            if _remove(path) and not now:
                found.finished.append(document["path"])
    ledger.save_view()
    return found


def _remove(folder: Path) -> bool:
    """Remove a checkpoint's folder, its COMMIT first: half a folder never looks whole. False: none there."""
    if not folder.is_dir():
        return False
    try:
        (folder / "COMMIT").unlink(missing_ok=True)
        shutil.rmtree(folder)
    except OSError as error:
        raise LedgerError(
            f"it is dropped from the record and cannot be removed: {error.strerror}",
            where=str(folder),
            mend="remove the folder, or run `labassist prune` again",
        ) from error
    return True


def _choose(ledger: Ledger, policy: Policy, dry: bool) -> Pruned:
    runs = {row["id"]: dict(row) for row in ledger.runs if isinstance(row.get("id"), str)}
    there = {
        (row["run"], row["step"]): dict(row)
        for row in ledger.checkpoints
        if not why_gone(dict(row)) and not foreign.is_foreign(dict(row))
    }
    found = Pruned(dry=dry)
    considered: set[Key] = set()
    series: set[str] = set()
    for lineage in _lineages(runs):
        ids = {run_id for run_id, _ in lineage}
        if policy.runs and not ids & policy.runs:
            continue
        own = {key for key in there if key[0] in ids}
        considered |= own
        if any(runs[run_id]["state"] == "running" for run_id in ids):
            found.kept |= dict.fromkeys(sorted(own), "its lineage still runs")
            continue
        path = {key: document for key, document in there.items() if _on_path(key, lineage)}
        newest = sorted(path, key=lambda key: key[1])[-policy.last :]
        found.kept |= dict.fromkeys(newest, f"one of the last {policy.last} of its lineage")
        if policy.best and path:
            values = _series(ledger, lineage[0][0])
            series |= set(values)
            best = _best(values.get(policy.best, {}), path)
            if best is not None:
                found.kept.setdefault(best, f"lowest {policy.best} of its lineage")
            else:  # which of them is the best cannot be said, so none is lost
                for key in path:
                    found.kept.setdefault(key, f"its lineage has no {policy.best} at a checkpoint")
    if policy.best and series and policy.best not in series:
        raise InputError(
            f"no run has a series {policy.best!r}{did_you_mean(policy.best, series)}",
            where="--keep-best",
            mend=f"there are {', '.join(sorted(series))}",
        )
    for key in sorted(considered):
        if policy.every and key[1] % policy.every == 0:
            found.kept.setdefault(key, f"a multiple of {policy.every}")
        if key in policy.named:
            found.kept.setdefault(key, "named")
    found.dropped = [there[key] for key in sorted(considered) if key not in found.kept]
    found.kept = dict(sorted(found.kept.items()))
    return found


def _lineages(runs: dict[str, dict[str, Any]]) -> list[list[tuple[str, int | None]]]:
    """Return each lineage from its newest run back: a run, and the last step that the next one took from it."""
    resumed = {row["resumed_from"]["run"] for row in runs.values() if row.get("resumed_from")}
    found = []
    for run_id in runs:
        if run_id in resumed:
            continue
        chain: list[tuple[str, int | None]] = [(run_id, None)]
        until: int | None = None
        while (origin := runs[chain[-1][0]].get("resumed_from")) and origin["run"] in runs:
            until = origin["step"] if until is None else min(until, origin["step"])
            if origin["run"] in {one for one, _ in chain}:
                break
            chain.append((origin["run"], until))
        found.append(chain)
    return found


def _on_path(key: Key, lineage: list[tuple[str, int | None]]) -> bool:
    """Say whether a checkpoint lies on the way to the lineage's end, and not in what was dropped by a resume."""
    return any(key[0] == run_id and (until is None or key[1] <= until) for run_id, until in lineage)


def _series(ledger: Ledger, run_id: str) -> Mapping[str, Mapping[int, Any]]:
    """Return every series of the joined curve, or of the run's own where the lineage cannot be joined."""
    try:
        return curves.joined(ledger, run_id).series
    except LedgerError:
        return curves.read_curve(ledger.run_folder(run_id) / metrics_file()).series


def _best(values: Mapping[int, Any], path: dict[Key, dict[str, Any]]) -> Key | None:
    """Return the checkpoint at whose step a series is lowest; None where no step of theirs has a value."""
    known = [
        (float(value), key)
        for key in path
        if isinstance(value := values.get(key[1]), float) and value == value
    ]
    return min(known)[1] if known else None
