"""Files of a run that lie in the workspace, outside the ledger: declared outputs, and checkpoints of another trainer.

They travel only while they are still what the run recorded, and are put only where nothing else lies.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from labassist.errors import CheckpointError, CodeError, LedgerError, counted
from labassist.ledger import foreign, room
from labassist.ledger.gitcmd import open_repository
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects
from labassist.ledger.records import Kept, to_document, why_gone
from labassist.ledger.store import Ledger
from labassist.record.inspect import committed, folder_of, read_manifest
from labassist.record.protocol import CHECKPOINTS, file_sha256
from labassist.workspace import Workspace

_CLOSED = (".git", "ledger", ".labassist", "labs", "templates")
"""What an import never puts anything into."""


def belongings(
    workspace: Workspace, ledger: Ledger, document: dict[str, Any], checkpoints: str
) -> Iterator[tuple[str, Path]]:
    """Yield path in the workspace and place of each file that goes along with a run."""
    for output in document.get("outputs", []):
        path = workspace.root / output["path"]
        if output.get("sha256") and is_open(output["path"]) and digest_of(path) == output["sha256"]:
            for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
                yield file.relative_to(workspace.root).as_posix(), file
    rows = [dict(row) for row in ledger.checkpoints]
    owners = foreign.claims(ledger.folder, rows, ledger.objects)
    described = {
        step: path for step, path in committed(ledger.run_folder(document["id"])).items() if path.is_file()
    }
    last = max(described, default=-1)
    for step, path in described.items():
        if checkpoints == "all" or (checkpoints == "last" and step == last):
            yield from _foreign(workspace, document["id"], path, owners)


def _foreign(
    workspace: Workspace, run: str, manifest_path: Path, owners: dict[Path, str]
) -> Iterator[tuple[str, Path]]:
    try:
        manifest = read_manifest(manifest_path)
    except CheckpointError:
        return  # the audit names it
    folder = folder_of(manifest_path, manifest)
    if not folder.is_dir() or owners.get(folder, run) != run or not folder.is_relative_to(workspace.root):
        return
    for name in manifest["files"]:
        inside = (folder / name).relative_to(workspace.root).as_posix()
        if is_open(inside) and (folder / name).is_file():
            yield inside, folder / name


def digest_of(path: Path) -> str:
    """Return a file or folder as one output, nothing where there is neither."""
    return file_sha256(path) if path.is_file() else folder_digest(path) if path.is_dir() else ""


def folder_digest(path: Path) -> str:
    """Return a folder as one output: the SHA-256 of its files' paths and hashes, in order."""
    files = (one for one in path.rglob("*") if one.is_file())
    return folder_digest_of({one.relative_to(path).as_posix(): file_sha256(one) for one in files})


def folder_digest_of(hashes: dict[str, str]) -> str:
    """Return the digest of a folder whose files, by their path in it, have these hashes."""
    names = sorted(hashes, key=PurePosixPath)
    return hashlib.sha256(os.fsencode("".join(f"{hashes[name]} {name}\n" for name in names))).hexdigest()


def made(workspace: Path, declared: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return declared outputs as they are now, and one line for each that is not there or cannot be read."""
    found, troubles = [], []
    for output in declared:
        path = workspace / output["path"]
        try:
            files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
            size = sum(one.stat().st_size for one in files)
            found.append(to_document(Kept(output["path"], size, digest_of(path), stored=False)))
            why = "" if found[-1]["sha256"] else "it was not made"
        except OSError as error:
            found.append({**output, "stored": False})
            why = f"it cannot be read: {error.strerror}"
        if why:
            troubles.append(
                f"{output['path']} was declared as an output, and {why}; a replay cannot compare it"
            )
    return found, troubles


def is_open(inside: str) -> bool:
    """Say whether a path relative to a workspace may be written by an import."""
    parts = PurePosixPath(inside).parts
    return (
        bool(parts) and not inside.startswith("/") and ".." not in parts and parts[0].lower() not in _CLOSED
    )


def not_taken(workspace: Path, documents: Iterable[dict[str, Any]], taken: Iterable[str]) -> list[str]:
    """Say which declared outputs that are still here are not among the files that are `taken` along."""
    places = [PurePosixPath(path) for path in taken]
    found = {}
    for document in documents:
        for output in document.get("outputs", []):
            path, here = output["path"], workspace / output["path"]
            if any(one.is_relative_to(path) for one in places):
                continue
            if not any(one.is_file() for one in (here, *here.rglob("*"))):
                continue
            why = "it is no longer what the run made" if is_open(path) else "an import puts nothing there"
            found[path] = f"{path}, an output of run {document['id']}: {why}, so copy it yourself"
    return list(found.values())


def not_here(ledger: Ledger, taken: dict[str, list[int]], checkpoints: str) -> Iterator[str]:
    """Say which checkpoints should be among the steps `taken` of each run and are not, as where their disk is away."""
    steps: dict[str, list[int]] = {run: [] for run in taken}
    for row in ledger.checkpoints:
        if row["run"] in steps and not why_gone(dict(row)) and not foreign.is_foreign(dict(row)):
            steps[row["run"]].append(row["step"])
    for run, known in steps.items():
        wanted = {"all": known, "last": sorted(known)[-1:]}.get(checkpoints, [])
        missing = sorted(set(wanted) - set(taken[run]))
        if missing:
            place = ledger.run_folder(run) / CHECKPOINTS
            away = f": {os.readlink(place)} is not here" if place.is_symlink() and not place.exists() else ""
            what = f"{counted(len(missing), 'checkpoints')}, of step {missing[-1]},"
            yield f"run {run}: {what} cannot be found and taken along{away}"


def by_hash_only(
    workspace: Path, document: dict[str, Any], objects: Objects
) -> Iterator[tuple[str, Path, int, str]]:
    """Yield name, place, bytes and hash of each file that a run used and that the ledger has no copy of.

    The hash is empty where only the name is known. The place is where a replay here looks for it.
    """
    for given in room.inputs(document, objects):
        if not given.get("stored"):
            yield given["path"], workspace / given["path"], given["bytes"], given["sha256"]
    extra = document.get("code", {}).get("extra", "")
    if not extra:
        return
    try:
        top = open_repository(workspace).top
    except CodeError:
        top = workspace
    for kept in listing(extra, objects):
        if not kept.stored:
            yield kept.path, top / kept.path, kept.bytes, kept.sha256


def large_files(workspace: Path, document: dict[str, Any], objects: Objects) -> Iterator[tuple[str, Path]]:
    """Yield path in the workspace and place of those files that are still here as the run used them."""
    for _, place, size, sha256 in by_hash_only(workspace, document, objects):
        if sha256 and place.is_relative_to(workspace) and _is(place, size, sha256):
            inside = place.relative_to(workspace).as_posix()
            if is_open(inside):
                yield inside, place


def _is(place: Path, size: int, sha256: str) -> bool:
    return place.is_file() and place.stat().st_size == size and file_sha256(place) == sha256


def lacking(workspace: Path, documents: Iterable[dict[str, Any]], objects: Objects) -> dict[str, str]:
    """Return the files that these runs used, of which there is no copy in the ledger and none at their place.

    Each with its size and place in words.
    """
    found = {}
    for document in documents:
        for name, place, size, sha256 in by_hash_only(workspace, document, objects):
            if sha256 and _is(place, size, sha256):
                continue
            known = f"{size / 2**20:,.1f} MiB, known by its hash only" if sha256 else "known by its name only"
            found[name] = f"{name} ({known}) of run {document['id']}, looked for at {place}"
    return found


def put_back(workspace: Path, files: dict[str, Path], place: Any) -> list[str]:
    """Put files into the workspace where nothing lies yet; return a note for each that found something else.

    Raises LedgerError for a path that leads out of the workspace or into what is not a run's.
    """
    notes = []
    for inside, source in files.items():
        target = workspace / inside
        parent = target.parent.resolve()
        if not is_open(inside) or not parent.is_relative_to(workspace.resolve()):
            raise LedgerError(f"a run's file may not be put at {inside!r}", where=str(workspace))
        if target.exists() or target.is_symlink():
            if not target.is_file() or file_sha256(target) != file_sha256(source):
                notes.append(f"{inside} is another file here and was left as it is")
            continue
        parent.mkdir(parents=True, exist_ok=True)
        place(source, target)
    return notes
