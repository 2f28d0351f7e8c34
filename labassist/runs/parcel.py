"""What is handed from one ledger to another: some runs with all that belongs to them, as one file or in place.

A bundle is a plain tar: `origins/<run>.json` (the lines of the journal that made a run's documents),
`objects/<sha256>`, `runs/<id>/…`, `work/…` (outputs in the workspace), `code.bundle` (a git bundle), and last
`bundle.json`, which has the SHA-256 of every other file. So a bundle that was cut has no `bundle.json`, and one that was changed does not fit it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import socket
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import msgspec

from labassist import __version__
from labassist.errors import CheckpointError, InputError, LedgerError
from labassist.ledger import codestore, origin
from labassist.ledger.origin import MARKS, Line
from labassist.ledger.records import why_gone
from labassist.ledger.refs import closure
from labassist.ledger.store import Ledger
from labassist.record.durable import sync_folder
from labassist.record.inspect import committed, folder_of, read_manifest
from labassist.runs.absorb import now
from labassist.runs.belongings import belongings, large_files, not_here
from labassist.workspace import Workspace

FORMAT, VERSION = "labassist-bundle", 1
_INDEX, _CODE, _COURSE = "bundle.json", "code.bundle", "course"
_NOT_TAKEN = {"positions.jsonl", "stop", "stop-at"}
"""Of a run folder: its positions are those of the journal that it leaves."""


@dataclass
class Parcel:
    """Runs on their way to another ledger. Nothing in it is written twice before it arrives."""

    host: str
    made: str
    head: str = ""
    """Head of the journal that they come from."""
    lines: dict[str, list[Line]] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    objects: dict[str, Path] = field(default_factory=dict)
    files: dict[str, dict[str, Path]] = field(default_factory=dict)
    """Run -> path in its folder -> where the file lies."""
    work: dict[str, Path] = field(default_factory=dict)
    """Path in the workspace -> a file of these runs that lies there, outside the ledger."""
    code: Path | None = None
    places: dict[str, str] = field(default_factory=dict)
    shallow: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def steps(self, run: str) -> list[int]:
        """Return the steps of the checkpoints that come along with a run."""
        found = {PurePosixPath(name).parts for name in self.files.get(run, {})}
        return sorted(
            int(parts[1][5:])
            for parts in found
            if len(parts) == 3 and parts[0] == "checkpoints" and parts[2] == "COMMIT"
        )


def collect(
    workspace: Workspace,
    ledger: Ledger,
    names: Sequence[str],
    *,
    checkpoints: str,
    scratch: Path,
    branches: bool = False,
    with_files: bool = False,
) -> Parcel:
    """Gather runs, what they were resumed from, and what belongs to them; no names: all that have ended.

    With `with_files` the files go along that the ledger knows by their hash only, where they are still here.

    `scratch` is for the git bundle; with `branches` it holds every branch of the workspace's repository too. Raises InputError for a run that still runs, LedgerError for a ledger whose
    journal is damaged, CodeError where git fails.
    """
    parcel = Parcel(socket.gethostname(), now(), ledger.journal.head)
    every = origin.lines_by_run(ledger.folder)
    chosen = _chosen(ledger, names, parcel)
    parcel.runs = [document["id"] for document in chosen]
    groups = [*parcel.runs, *([MARKS] if not names and MARKS in every else [])]
    parcel.lines = {run: every[run] for run in groups}
    named: list[Any] = [json.loads(line.line[65:]) for lines in parcel.lines.values() for line in lines]
    parcel.objects = {sha: ledger.objects.path(sha) for sha in sorted(closure(named, ledger.objects))}
    for document in chosen:
        parcel.files[document["id"]] = dict(files_of(ledger, document["id"], checkpoints))
        parcel.work |= belongings(workspace, ledger, document, checkpoints)
        if with_files:
            parcel.work |= large_files(workspace.root, document, ledger.objects)
    parcel.notes += not_here(ledger, {run: parcel.steps(run) for run in parcel.runs}, checkpoints)
    scratch.mkdir(parents=True, exist_ok=True)
    packed = codestore.pack(
        workspace.root, ledger.folder, chosen, scratch / _CODE, scratch, branches=branches
    )
    parcel.code, parcel.places, parcel.shallow = packed.file, packed.inner, packed.shallow
    parcel.notes += packed.notes
    return parcel


def _chosen(ledger: Ledger, names: Sequence[str], parcel: Parcel) -> list[dict[str, Any]]:
    """Return the runs that are asked for and their ancestors, in the order of the journal."""
    documents = {row["id"]: dict(row) for row in ledger.runs if isinstance(row.get("id"), str)}
    wanted = {ledger.find(name)["id"] for name in names}
    lost = set() if names else _without_folder(ledger, documents)
    for run_id, document in documents.items():
        if run_id in lost:
            why = "its folder is gone, or that of a run that it goes on from"
            parcel.notes.append(f"run {run_id} is not taken along: {why}; see labassist fsck")
        elif document["state"] != "running":
            if not names:
                wanted.add(run_id)
        elif run_id in wanted:
            raise InputError(
                "it still runs", where=f"run {run_id}", mend=f"stop it first: labassist stop {run_id}"
            )
        elif not names:
            parcel.notes.append(f"run {run_id} still runs and is not taken along; it comes when it has ended")
    waiting = list(wanted)
    while waiting:
        came_from = documents[waiting.pop()].get("resumed_from")
        if came_from and came_from["run"] not in wanted and came_from["run"] in documents:
            wanted.add(came_from["run"])
            waiting.append(came_from["run"])
    if not wanted:
        raise InputError(
            "there is no run to take along", where=str(ledger.folder), mend="see `labassist runs`"
        )
    return [document for run_id, document in documents.items() if run_id in wanted]


def _without_folder(ledger: Ledger, documents: dict[str, dict[str, Any]]) -> set[str]:
    """Return the runs whose folder is gone and what goes on from them: one lost folder keeps no other run here."""
    ended = {run: one for run, one in documents.items() if one["state"] != "running"}
    gone = {run for run in ended if not ledger.run_folder(run).is_dir()}
    found = set(gone)
    while gone:
        later = {run for run, one in ended.items() if (one.get("resumed_from") or {}).get("run") in gone}
        gone = later - found
        found |= gone
    return found


def files_of(ledger: Ledger, run: str, checkpoints: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a run folder that go along, by their path in it."""
    folder = ledger.run_folder(run)
    if not folder.is_dir():
        raise LedgerError("the run's folder is gone", where=str(folder), mend="see `labassist fsck`")
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in _NOT_TAKEN and not path.name.endswith(".tmp"):
            yield path.name, path
    whole = {
        step: path
        for step, path in committed(folder).items()
        if not why_gone(ledger.checkpoint(run, step) or {"pruned": True})
    }
    own = {step: path for step, path in whole.items() if path.is_dir()}
    last = max(own, default=-1)
    described = max((step for step in whole if step not in own), default=-1)
    for step, path in whole.items():
        if path.is_file():  # a manifest: its trainer keeps the folder, wherever that is
            yield f"checkpoints/{path.name}", path
            if checkpoints == "all" or (checkpoints == "last" and step == described):
                yield from _of_trainer(folder, path)
        elif checkpoints == "all" or (checkpoints == "last" and step == last):
            for file in sorted(one for one in path.rglob("*") if one.is_file()):
                yield f"checkpoints/{path.name}/{file.relative_to(path).as_posix()}", file


def _of_trainer(folder: Path, place: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of another trainer's checkpoint that it keeps in the run's own folder."""
    try:
        manifest = read_manifest(place)
    except CheckpointError:
        return  # the audit names it
    home = folder_of(place, manifest)
    if home.is_relative_to(folder):
        for name in manifest["files"]:
            if (home / name).is_file():
                yield (home / name).relative_to(folder).as_posix(), home / name


def write(parcel: Parcel, path: Path) -> str:
    """Write a parcel as one bundle and return its SHA-256: a partial file first, renamed when it is durable.

    Raises LedgerError, and then there is no new file at `path`.
    """
    partial = path.with_name(path.name + ".part")
    files: dict[str, dict[str, Any]] = {}
    try:
        # The logs in it may hold anything that a script printed, so it is its owner's only.
        partial.unlink(missing_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            hashing = _Hashing(out)
            with tarfile.open(fileobj=hashing, mode="w", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                for name, source in _members(parcel):
                    files[name] = _add(tar, name, source)
                parcel.notes += _damaged(parcel, files)
                index = json.dumps(_index(parcel, files), indent=1).encode()
                _add(tar, _INDEX, index)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise LedgerError(
            f"the bundle cannot be written: {error.strerror}; the ledger is not touched",
            where=error.filename or str(path),
            mend="free some space there, name another place with -o, or take fewer checkpoints along",
        ) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return hashing.sha256.hexdigest()


def _damaged(parcel: Parcel, packed: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Say which checkpoints were packed that are not as their manifests say: their hashes are known by now."""
    for run in parcel.runs:
        for step in parcel.steps(run):
            inside = f"checkpoints/step-{step:08d}"
            try:
                promised = read_manifest(parcel.files[run][f"{inside}/COMMIT"].parent)["files"]
                bad = [
                    name for name in promised if packed.get(f"runs/{run}/{inside}/{name}") != promised[name]
                ]
            except CheckpointError as error:
                bad = [error.what]
            if bad:
                yield (
                    f"the checkpoint at step {step} of run {run} is damaged here, and no import will take it "
                    f"({bad[0]}); --checkpoints all takes the ones before it along"
                )


def _members(parcel: Parcel) -> Iterator[tuple[str, Path | bytes]]:
    for run, lines in parcel.lines.items():
        yield f"origins/{run or _COURSE}.json", msgspec.json.encode(lines)
    for sha, path in parcel.objects.items():
        yield f"objects/{sha}", path
    for run, files in parcel.files.items():
        for name, path in files.items():
            yield f"runs/{run}/{name}", path
    for name, path in parcel.work.items():
        yield f"work/{name}", path
    if parcel.code:
        yield _CODE, parcel.code


def _index(parcel: Parcel, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "by": __version__,
        "host": parcel.host,
        "made": parcel.made,
        "head": parcel.head,
        "runs": parcel.runs,
        "places": parcel.places,
        "shallow": parcel.shallow,
        "notes": parcel.notes,
        "files": files,
    }


class _Hashing:
    """Hashes what is written through it."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._out.write(data)

    def tell(self) -> int:
        return self._out.tell()


class _Reading:
    """Hashes what is read through it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.sha256.update(data)
        return data


def _add(tar: tarfile.TarFile, name: str, source: Path | bytes) -> dict[str, Any]:
    """Add one file and return its size and hash. A file that shrinks meanwhile is an OSError of tarfile."""
    info = tarfile.TarInfo(name)
    info.mode = 0o600
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        info.size = len(source) if isinstance(source, bytes) else os.fstat(file.fileno()).st_size
        reading = _Reading(file)
        tar.addfile(info, reading)
    return {"bytes": info.size, "sha256": reading.sha256.hexdigest()}


def read(path: Path, staging: Path) -> Parcel:
    """Unpack a bundle into the empty folder `staging`, every file checked, and return it as a parcel.

    Raises InputError for what is no bundle, LedgerError for one that is cut or changed or cannot be unpacked.
    """
    seen: dict[str, dict[str, Any]] = {}
    index: dict[str, Any] | None = None
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                data = tar.extractfile(member) if member.isfile() else None
                parts = PurePosixPath(member.name).parts
                if data is None or member.name.startswith("/") or ".." in parts or not parts:
                    raise LedgerError(
                        f"the bundle holds {member.name!r}, which is no file of a ledger", where=str(path)
                    )
                if member.name == _INDEX:
                    index = json.loads(data.read())
                    continue
                seen[member.name] = _unpack(data, staging / member.name)
    except tarfile.ReadError as error:
        if not seen:
            raise InputError(
                "this is no bundle", where=str(path), mend="make one with `labassist export`"
            ) from error
        index = None
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "its index is no JSON"
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = (
            "free some space where this workspace is, and do it again: nothing was imported" if full else ""
        )
        raise LedgerError(f"the bundle cannot be unpacked: {what}", where=str(path), mend=mend) from error
    if index is None:
        raise LedgerError("the bundle was cut: its end is not there", where=str(path), mend="copy it again")
    if index.get("format") != FORMAT or index.get("version", 0) > VERSION:
        what = f"{index.get('format')} version {index.get('version')}"
        raise InputError(f"this is {what}", where=str(path), mend="upgrade labassist to read it")
    for name in sorted(seen.keys() | index["files"].keys()):
        if seen.get(name) != index["files"].get(name):
            raise LedgerError(
                f"{name} is not as it was packed", where=str(path), mend="copy the bundle again"
            )
    return _parcel(index, staging)


def _unpack(data: IO[bytes], target: Path) -> dict[str, Any]:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as file:
        while block := data.read(1 << 20):
            digest.update(block)
            size += len(block)
            file.write(block)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _parcel(index: dict[str, Any], staging: Path) -> Parcel:
    parcel = Parcel(index["host"], index["made"], index["head"], runs=index["runs"])
    parcel.places, parcel.shallow, parcel.notes = index["places"], index["shallow"], index["notes"]
    for name in index["files"]:
        kind, _, rest = name.partition("/")
        if kind == "origins":
            run = rest.removesuffix(".json")
            parcel.lines[MARKS if run == _COURSE else run] = origin.decode(
                (staging / name).read_bytes(), name
            )
        elif kind == "objects":
            parcel.objects[rest] = staging / name
        elif kind == "runs":
            run, _, inside = rest.partition("/")
            parcel.files.setdefault(run, {})[inside] = staging / name
        elif kind == "work":
            parcel.work[rest] = staging / name
        elif name == _CODE:
            parcel.code = staging / name
    return parcel
