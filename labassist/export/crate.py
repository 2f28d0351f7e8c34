"""Runs as a Process Run Crate: an RO-Crate whose actions are the runs.

RO-Crate 1.1 (https://w3id.org/ro/crate/1.1) with the profile Process Run Crate 0.5
(https://w3id.org/ro/wfrun/process/0.5). What is large stays where it is and is named by its hash.
"""

from __future__ import annotations

import json
import mimetypes
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labassist import __version__
from labassist.errors import InputError
from labassist.export.facts import Facts, facts
from labassist.ledger.curve_table import csv_text
from labassist.ledger.kept import listing
from labassist.ledger.store import Ledger
from labassist.record.inspect import committed, manifest_file

METADATA = "ro-crate-metadata.json"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
CRATE = "https://w3id.org/ro/crate/1.1"
HOME = "https://www.python.org/"
"""A page on the program that runs every job."""

_STATUS = {"finished": "CompletedActionStatus", "running": "ActiveActionStatus"}


def write(ledger: Ledger, runs: list[dict[str, Any]], folder: Path, made: str) -> Path:
    """Write a crate of these runs into a new folder and return its metadata file.

    `made` is the date of publication. Raises InputError where the folder has something in it already, and OSError.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("is there already", where=str(folder), mend="name a new folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    crate = _Crate(folder, made)
    for run in runs:
        crate.add(ledger, facts(ledger, run))
    place = folder / METADATA
    place.write_text(json.dumps(crate.document(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return place


class _Crate:
    """The entities of one crate, in the order in which they came."""

    def __init__(self, folder: Path, made: str) -> None:
        self._folder = folder
        self._made = made
        self._entities: dict[str, dict[str, Any]] = {}
        self._actions: list[str] = []
        self._parts: list[str] = []
        self._jobs: list[str] = []

    def document(self) -> dict[str, Any]:
        """Return the content of ro-crate-metadata.json."""
        jobs = ", ".join(dict.fromkeys(self._jobs))
        root: dict[str, Any] = {
            "@id": "./",
            "@type": "Dataset",
            "name": f"Recorded runs: {jobs}",
            "description": f"{len(self._actions)} runs of {jobs}, as their ledger has them: configuration, code, "
            "data, environment, every value of their curves, and the hashes of their checkpoints.",
            "datePublished": self._made,
            "license": _ref("#license"),
            "conformsTo": _ref(PROFILE),
            "hasPart": [_ref(part) for part in self._parts],
            "mentions": [_ref(action) for action in self._actions],
        }
        return {
            "@context": f"{CRATE}/context",
            "@graph": [
                {
                    "@id": METADATA,
                    "@type": "CreativeWork",
                    "about": _ref("./"),
                    "conformsTo": _ref(CRATE),
                },
                root,
                {
                    "@id": PROFILE,
                    "@type": "CreativeWork",
                    "name": "Process Run Crate",
                    "version": "0.5",
                },
                {
                    "@id": "#license",
                    "@type": "CreativeWork",
                    "name": "Not stated",
                    "description": "Whoever publishes this says here under which licence.",
                },
                *self._entities.values(),
            ],
        }

    def add(self, ledger: Ledger, one: Facts) -> None:
        """Add one run: its action, the program that it ran, and what it read and made."""
        run, run_id = one.run, one.run["id"]
        self._jobs.append(run["job"])
        inside = Path("runs") / run_id
        results = self._results(one, inside)
        action: dict[str, Any] = {
            "@id": f"#{run_id}",
            "@type": "CreateAction",
            "name": f"Run {run_id} of {run['job']}",
            "description": " ".join([*run["argv"], run.get("note", "")]).strip(),
            "startTime": _time(run["created"]),
            "instrument": _ref(self._instrument(ledger, one, inside)),
            "object": [_ref(name) for name in self._objects(ledger, one)],
            "result": [_ref(name) for name in results],
            "actionStatus": f"http://schema.org/{_STATUS.get(run['state'], 'FailedActionStatus')}",
            "agent": _ref(self._put("#agent", "Person", name="The owner of the ledger")),
        }
        if run.get("ended"):
            action["endTime"] = _time(run["ended"])
        if run["state"] not in _STATUS:
            action["error"] = run.get("reason") or run["state"]
        self._actions.append(action["@id"])
        self._entities[action["@id"]] = action

    def _instrument(self, ledger: Ledger, one: Facts, inside: Path) -> str:
        """Add the job's code, as the commit and the change that it ran from, and return its id."""
        code = one.run["code"]
        name = f"urn:sha256:{code['digest']}"
        parts = []
        if one.patch:
            patch = ledger.objects.get(code["patch"])
            parts.append(self._file(inside / "change.patch", patch, "The change that no commit has"))
        if code.get("vcs") == "none":
            for kept in listing(code.get("extra", ""), ledger.objects):
                if kept.stored:
                    data = ledger.objects.get(kept.sha256)
                    parts.append(self._file(inside / "code" / Path(kept.path).name, data, kept.path))
        commit = f"commit {code['commit']}" if code.get("commit") else "no commit"
        return self._put(
            name,
            "SoftwareApplication",
            name=one.run["job"],
            url=HOME,
            softwareVersion=commit + (" with a change" if one.patch else ""),
            identifier=f"sha256:{code['digest']}",
            description=f"Run by Python {one.run.get('versions', {}).get('python', '')}, recorded by labassist "
            f"{one.run.get('versions', {}).get('labassist', __version__)}",
            **({"hasPart": [_ref(part) for part in parts]} if parts else {}),
        )

    def _objects(self, ledger: Ledger, one: Facts) -> list[str]:
        """Add what a run read: its settings, its data, the checkpoint that it went on from."""
        run = one.run
        found = []
        settings = {"seed": run["seed"], "mode": run["mode"], "threads": run.get("threads", 0)}
        for key, value in {**settings, **run.get("config", {})}.items():
            text = value if isinstance(value, (str, int, float)) else json.dumps(value)
            found.append(self._put(f"#{run['id']}/{key}", "PropertyValue", name=key, value=text))
        for row in run.get("inputs", []):
            if row.get("stored") and ledger.objects.has(row["sha256"]):
                place = Path("inputs") / row["sha256"][:16] / Path(row["path"]).name
                found.append(self._file(place, ledger.objects.get(row["sha256"]), row["name"]))
            else:
                found.append(self._absent(row["sha256"], row["name"], row["path"], row["bytes"]))
        origin = run.get("resumed_from")
        if origin:
            about = f"Checkpoint of run {origin['run']} at step {origin['step']}"
            found.append(self._put(f"#{origin['run']}/step-{origin['step']}", "CreativeWork", name=about))
        return found

    def _results(self, one: Facts, inside: Path) -> list[str]:
        """Add what a run made: its record, its curves, the manifests of its checkpoints, its outputs."""
        record = json.dumps(one.run, indent=2, ensure_ascii=False).encode()
        found = [self._file(inside / "record.json", record, "The run's record in the ledger")]
        if one.environment:
            data = json.dumps(one.environment, indent=1).encode()
            found.append(self._file(inside / "environment.json", data, "Every installed package"))
        if one.curve.series:
            text = csv_text(one.curve, list(one.curve.series)).encode()
            found.append(self._file(inside / "curve.csv", text, "Its curves, of the whole lineage"))
        for path in sorted(one.folder.glob("metrics-rank*.jsonl")):
            found.append(self._file(inside / path.name, path, "The curve as its trainer wrote it"))
        whole = committed(one.folder)
        for row in one.checkpoints:
            about = f"Checkpoint at step {row['step']}: the hash of each file and tensor"
            if row["step"] in whole:
                manifest = manifest_file(whole[row["step"]])
                found.append(self._file(inside / f"step-{row['step']:08d}.manifest.json", manifest, about))
            else:
                found.append(self._absent(row["manifest"], about, row["path"], row["bytes"]))
        for row in one.run.get("outputs", []):
            if row["sha256"]:
                found.append(self._absent(row["sha256"], Path(row["path"]).name, row["path"], row["bytes"]))
        return found

    def _file(self, place: Path, content: bytes | Path, about: str) -> str:
        """Put a file into the crate and return its id."""
        target = self._folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, target)
        else:
            target.write_bytes(content)
        name = quote(place.as_posix())
        kind = mimetypes.guess_type(place.name)[0] or (
            "application/jsonl" if place.suffix == ".jsonl" else "application/octet-stream"
        )
        self._put(name, "File", name=about, contentSize=str(target.stat().st_size), encodingFormat=kind)
        if name not in self._parts:
            self._parts.append(name)
        return name

    def _absent(self, sha256: str, name: str, path: str, size: int) -> str:
        """Add something that is not in the crate, by its hash."""
        return self._put(
            f"#sha256-{sha256}",
            "CreativeWork",
            name=name,
            description=f"{path}, {size} bytes; not in this crate",
            identifier=f"sha256:{sha256}",
        )

    def _put(self, name: str, kind: str, /, **properties: Any) -> str:
        self._entities.setdefault(name, {"@id": name, "@type": kind, **properties})
        return name


def _time(stamp: str) -> str:
    """Return a time of the ledger without its milliseconds, which the profile's own check does not know."""
    return f"{stamp[:19]}+00:00"


def _ref(name: str) -> dict[str, str]:
    return {"@id": name}
