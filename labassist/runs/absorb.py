"""Turn what a trainer wrote into what the ledger says.

The trainer appends to its own files and never touches the journal. Whoever watches the run (its first
supervisor, or one that adopted it) reads those files with an `Absorber`. Everything here may be done
twice: an adopter starts again at the first line, and what is in the ledger already is passed over.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from labassist.errors import CheckpointError
from labassist.ledger import answers, curves, room, secrets
from labassist.ledger.kept import named
from labassist.ledger.records import Checkpoint, Input, Seal, to_document
from labassist.ledger.store import Ledger
from labassist.ledger.verdict import changed_settings
from labassist.record.inspect import committed, folder_of, inspect, manifest_file, read_manifest
from labassist.record.protocol import file_sha256
from labassist.runs import life
from labassist.runs.belongings import made

KEPT_INPUT_BYTES = 4 * 1024 * 1024
"""Inputs up to this size are kept as objects, so that a replay needs nothing else."""

_SEALED_WHOLE = ("order.json", "alive", "supervised", "end.json", "exit-status", "log.txt", "supervisor.log")
_OF_SERVERS = ("serving.json", answers.FILE)


class Absorber:
    """Reads one run's files as they grow. `poll` is cheap; `finalise` closes the run."""

    def __init__(self, ledger: Ledger, run_id: str, workspace: Path) -> None:
        self.ledger = ledger
        self.run_id = run_id
        self.workspace = workspace
        self.folder = ledger.run_folder(run_id)
        self.finish: dict[str, Any] | None = None
        self.health = ""
        self.last: dict[str, Any] = {}
        self.step = 0
        self._tokens_per_step = 0
        self._span: tuple[int, float, int, float] | None = None
        self._events_read = 0
        self._curve = curves.Tail(self.folder / "metrics-rank0.jsonl")

    def poll(self) -> None:
        """Read what is new, and journal what the ledger does not hold yet."""
        for row in self._curve.poll():
            self._see(row)
        for kind, group in itertools.groupby(self._events(), key=lambda one: one[0]["event"]):
            events, lengths = zip(*group, strict=True)
            if kind == "input":
                self._inputs(events)  # at once: a corpus may have thousands of files
            else:
                for event in events:
                    self._take(event)
            # Only now: an event that could not be journalled is read again at the next poll.
            self._events_read += sum(lengths)

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "hello":
                self._hello(event)
            case "warning":
                self._warn(event["line"])
            case "checkpoint":
                self._checkpoint(event["step"], event["path"], event["curve"], event.get("rng", ""))
            case "finish":
                self.finish = event

    def _events(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield each event that was not taken yet, and its length in bytes."""
        try:
            with open(self.folder / "events-rank0.jsonl", "rb") as file:
                file.seek(self._events_read)
                data = file.read()
        except FileNotFoundError:
            return
        for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
            yield json.loads(line), len(line)

    def _see(self, row: dict[str, Any]) -> None:
        step, t = row["step"], row.get("t", 0.0)
        self.step = max(self.step, step)
        first = self._span[:2] if self._span else (step, t)
        self._span = (*first, step, t)
        for name, value in row.items():
            if name in ("step", "t"):
                continue
            self.last[name] = value
            if name == "loss" and not self.health and isinstance(value, float) and not math.isfinite(value):
                self.health = f"loss is {value} at step {step}"

    def rate(self) -> float:
        """Tokens a second over the recorded steps, 0 while unknown."""
        if not self._span or not self._tokens_per_step:
            return 0.0
        first, began, last, ended = self._span
        return (last - first) * self._tokens_per_step / (ended - began) if ended > began else 0.0

    def _hello(self, event: dict[str, Any]) -> None:
        self._tokens_per_step = event.get("tokens_per_step", 0)
        randomness = self.ledger.objects.put_json(
            {
                "flags": event.get("flags", {}),
                "rng": event.get("rng", {}),
                "versions": event.get("versions", {}),
                **{key: event[key] for key in ("seeds", "mends") if event.get(key)},
            }
        )
        config = secrets.redact_config(event.get("config", {}))

        def change(run: dict[str, Any]) -> dict[str, Any]:
            run["randomness"] = randomness
            run["total_steps"] = event.get("total_steps", 0)
            run["measured"] = room.few(event.get("measured", []))
            run["tokens_per_step"] = event.get("tokens_per_step", 0)
            run["versions"] = {**run.get("versions", {}), **_short(event.get("versions", {}))}
            if config and run["kind"] == "command":
                run["config"] = room.settings(config)
            return run

        self._change("hello", change)
        self._say_changed()

    def _say_changed(self) -> None:
        """Warn where a command goes on with other settings than the run that it goes on from."""
        run = self.ledger.run(self.run_id) or {}
        origin = run.get("resumed_from")
        earlier = self.ledger.run(origin["run"]) if origin and run["kind"] == "command" else None
        if not earlier or not earlier.get("total_steps"):
            return  # nobody heard what that one's trainer was set to
        before, here = (
            {**one.get("config", {}), "total_steps": one["total_steps"]} for one in (earlier, run)
        )
        if changed := changed_settings(before, here):
            self._warn(
                f"it goes on with other settings than run {earlier['id']}: {changed}; the script reads them from "
                "somewhere that is not recorded (an environment variable?): set them again"
            )

    def _warn(self, line: str) -> None:
        def change(run: dict[str, Any]) -> dict[str, Any]:
            return {**run, "warnings": room.added(run.get("warnings", []), line)}

        self._change("warning", change)

    def _inputs(self, events: Sequence[dict[str, Any]]) -> None:
        found = {entry["name"]: entry for entry in map(self._input, events)}

        def change(run: dict[str, Any]) -> dict[str, Any]:
            known = {one["name"]: one for one in room.inputs(run, self.ledger.objects)}
            room.place_inputs(run, list((known | found).values()), self.ledger.objects)
            return run

        self._change("input", change)
        self._say_other_data(found)

    def _say_other_data(self, found: dict[str, dict[str, Any]]) -> None:
        """Warn where a run reads other data than the run that it goes on from."""
        origin = (self.ledger.run(self.run_id) or {}).get("resumed_from")
        earlier = self.ledger.run(origin["run"]) if origin else None
        before = {one["name"]: one["sha256"] for one in room.inputs(earlier or {}, self.ledger.objects)}
        names = [name for name, one in found.items() if before.get(name, one["sha256"]) != one["sha256"]]
        if earlier and names:
            self._warn(
                f"it goes on with other data than run {earlier['id']}: {named(names)}; the joined curve is not one "
                "experiment, unless the recorded file is brought back and the run is resumed again"
            )

    def _input(self, event: dict[str, Any]) -> dict[str, Any]:
        path = Path(event["path"])
        whole = path if path.is_absolute() else self.workspace / path
        stored = False
        if event["bytes"] <= KEPT_INPUT_BYTES and whole.is_file():
            stored = self.ledger.objects.put_file(whole) == event["sha256"]
        return to_document(
            Input(
                name=event["name"],
                path=self._recorded_path(event),
                bytes=event["bytes"],
                sha256=event["sha256"],
                stored=stored,
                split=event.get("split") or {},
            )
        )

    def _recorded_path(self, event: dict[str, Any]) -> str:
        """Return the input's path; a replay reads a scratch copy, and its record names the real one."""
        document = self.ledger.run(self.run_id) or {}
        original = self.ledger.run(document["replay_of"]) if document.get("replay_of") else None
        for known in room.inputs(original or {}, self.ledger.objects):
            if known["name"] == event["name"]:
                return str(known["path"])
        return str(event["path"])

    def _change(self, kind: str, change: Any) -> None:
        document = self.ledger.run(self.run_id) or {}
        if change(dict(document)) != document:
            self.ledger.change(kind, self.run_id, change)

    def _checkpoint(self, step: int, path: str, curve: dict[str, Any], rng: str) -> None:
        if self.ledger.checkpoint(self.run_id, step) is not None:
            return
        place = self.folder / path
        try:
            manifest = read_manifest(place)
            # A trainer may have deleted an older checkpoint of its own by now; it was whole when sealed.
            if folder_of(place, manifest).is_dir():
                inspect(place)
        except CheckpointError as error:
            # The trainer says it is whole and the disk says otherwise: never to be resumed from.
            self.health = self.health or f"checkpoint {step}: {error.what}"
            return
        self.ledger.write_checkpoint(
            to_document(
                Checkpoint(
                    run=self.run_id,
                    step=step,
                    path=str(place.relative_to(self.ledger.folder)),
                    manifest=self.ledger.objects.put_file(manifest_file(place)),
                    bytes=sum(file["bytes"] for file in manifest["files"].values()),
                    tensors=len(manifest["tensors"]),
                    curve={name: msgspec.convert(seal, Seal) for name, seal in curve.items()},
                    rng=rng,
                    time=now(),
                )
            )
        )

    def finalise(self, *, vanished: str) -> dict[str, Any]:
        """Journal the end of the run and return its last document.

        `vanished` says in words what it means that no end marker was written; the caller knows whether
        the machine went away or only the processes. Raises LedgerError when the ledger cannot be written:
        the run then stays open, and the next labassist process closes it.
        """
        end = self._read_end()
        left = life.end_ranks(self.folder) if end.get("signal") is not None else 0
        self.poll()
        if left:
            what = f"{left} process{'es' if left > 1 else ''} that still recorded"
            self._warn(
                f"its command was killed, and with it {what}, which no stop could have reached any more"
            )
        self._late_checkpoints()
        outcome = self._outcome(end, vanished)
        order = self.folder / "order.json"
        seconds = life.last_sign(self.folder) - order.stat().st_mtime if order.exists() else 0.0
        seals = self.ledger.objects.put_json(self._seals())
        declared = (self.ledger.run(self.run_id) or {}).get("outputs", [])
        # Before the change, which keeps every other writer waiting: an output may be 15 GB.
        outputs, troubles = made(self.workspace, declared)

        def change(run: dict[str, Any]) -> dict[str, Any]:
            run.update(outcome)
            run["ended"] = end.get("time") or now()
            # One that went on from the last step of all has no line of its own.
            run["step"] = max(self.step, self.finish["step"] if self.finish else 0)
            run["seconds"] = round(max(0.0, seconds), 3)
            run["tokens_per_s"] = round(self.rate(), 1)
            run["last"] = room.newest({name: curves.encode(value) for name, value in self.last.items()})
            run["health"] = self.health
            run["seals"] = seals
            if kept := answers.count(self.folder):
                run["answers"] = kept
            if run.get("price"):
                run["cost"] = round(run["price"] * run["seconds"] / 3600, 4)
            run["outputs"] = outputs
            if outcome["state"] == "finished":
                for line in troubles:
                    run["warnings"] = room.added(run.get("warnings", []), line)
            return {key: value for key, value in run.items() if value not in ("", [], {}, None)}

        kind = "lost" if outcome["state"] == "lost" else "end"
        document = self.ledger.change(kind, self.run_id, change)
        self.ledger.save_view()
        return document

    def _late_checkpoints(self) -> None:
        """Journal checkpoints that were committed just before a death cut off their event."""
        for step, place in committed(self.folder).items():
            if self.ledger.checkpoint(self.run_id, step) is None:
                curve = {name: to_document(seal) for name, seal in self._curve_seals(upto=step)}
                self._checkpoint(step, f"checkpoints/{place.name}", curve, "")

    def _read_end(self) -> dict[str, Any]:
        try:
            end: dict[str, Any] = json.loads((self.folder / "end.json").read_text())
        except FileNotFoundError:
            # On a full disk the shim has room only where it had written before.
            known = life.pids(self.folder)
            return known if "time" in known else {}
        with contextlib.suppress(FileNotFoundError):
            # A script that was started by hand writes its own marker, before its status is settled.
            status = (self.folder / "exit-status").read_bytes()
            end["exit"] = status[-1] if status else end["exit"]
        return end

    def _outcome(self, end: dict[str, Any], vanished: str) -> dict[str, Any]:
        asked = life.stop_asked(self.folder)
        why = life.stop_reason(self.folder)
        status, number = end.get("exit"), end.get("signal")
        if self.finish is not None and number is not None and asked:
            number, status = None, 0  # it had finished, and the request caught it on its way out
        if not end and self.finish is None:
            return {"state": "lost", "reason": vanished}
        if number is not None and asked:
            return {
                "state": "stopped",
                "signal": number,
                "reason": f"{why}: stopped before it could take a checkpoint",
            }
        if number is not None:
            return {"state": "failed", "signal": number, "reason": f"killed by signal {number}"}
        if status and asked and self.finish is not None:
            # A launcher of several ranks (torchrun) says 1 when it was asked to stop and they all did.
            return {"state": "stopped", "exit": status, "reason": f"{why}, exit status {status}"}
        if status and asked and not self.step:
            reason = f"{why}: stopped before its first step, exit status {status}"
            return {"state": "stopped", "exit": status, "reason": reason}
        if status == 130 and self.finish is not None and self.finish["why"] == "stop":
            return {"state": "stopped", "exit": status, "reason": "stopped by ctrl-c"}
        if status:
            trouble = f"; its end could not be written: {end['trouble']}" if "trouble" in end else ""
            # It may have said itself why it ended as it did.
            told = self.finish["why"] if self.finish is not None else "done"
            why = told if told not in ("done", "stop") else f"exit status {status}"
            return {"state": "failed", "exit": status, "reason": f"{why}{trouble}"}
        if self.finish is not None and self.finish["why"] == "stop":
            own = self.health and not asked
            reason = f"stopped itself: {self.health}" if own else why
            return {"state": "stopped", "exit": 0, "reason": reason}
        if self.finish is None and asked:
            return {"state": "stopped", "exit": 0, "reason": why}
        return {"state": "finished", "exit": 0, "reason": ""}

    def _curve_seals(self, upto: int | None = None) -> Iterator[tuple[str, Seal]]:
        for path in sorted(self.folder.glob("metrics-rank*.jsonl")):
            data = path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if upto is not None:
                lines = whole.splitlines(keepends=True)
                whole = b"".join(line for line in lines if json.loads(line)["step"] <= upto)
            yield path.name, Seal(len(whole), hashlib.sha256(whole).hexdigest())

    def _seals(self) -> dict[str, Any]:
        seals = dict(self._curve_seals())
        events = (
            *sorted(self.folder.glob("events-rank*.jsonl")),
            *(self.folder / name for name in (*_SEALED_WHOLE, *_OF_SERVERS)),
        )
        for path in events:
            if path.exists():
                seals[path.name] = Seal(path.stat().st_size, file_sha256(path))
        return {name: to_document(seal) for name, seal in sorted(seals.items())}


def _short(versions: dict[str, Any]) -> dict[str, str]:
    wanted = ("torch", "cuda", "cudnn", "nccl", "gpu", "numpy")
    return {name: str(versions[name]) for name in wanted if versions.get(name)}


def now() -> str:
    """Return the UTC time as the ledger writes it."""
    return iso(time.time())


def iso(seconds: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC, with milliseconds and a Z."""
    stamp = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
    return stamp.replace("+00:00", "Z")
