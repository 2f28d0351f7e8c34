"""What runs made in their workspace over there, outside its ledger: declared outputs, folders of another trainer.

It is mirrored beside the mirrored ledger, where it still is what the run recorded, and whatever does not come is
named with the way to bring it: the box may be given back after this.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from labassist.errors import CheckpointError, LedgerError, counted
from labassist.ledger.store import Ledger
from labassist.record.inspect import committed, read_manifest
from labassist.record.protocol import file_sha256
from labassist.runs.belongings import digest_of, folder_digest_of, is_open
from labassist.runs.mirror import PRINTF, Say, There, copy, is_here, joined, listed
from labassist.runs.remote import LOST, Remote
from labassist.workspace import Workspace

RESERVE = 512 << 20
"""Bytes of the disk here that stay free."""
_LISTING = (
    'cd {path} && xargs -0 -r sh -c \'for one; do if [ -e "$one" ]; then '
    f'find -L "$one" -type f -printf "{PRINTF.format(name="p")}" || exit 1; fi; done\' sh'
)
_HASHES = "cd {path} && xargs -0 -r sha256sum -z --"


@dataclass(frozen=True)
class _Made:
    """A file or folder that a run made in its workspace."""

    path: str
    sha256: str
    """Of a file; of a folder the digest of its files."""
    run: str


def mirror_work(
    home: Remote,
    mirror: Path,
    workspace: Workspace,
    ledger: Ledger,
    *,
    checkpoints: str,
    most: float | None,
    say: Say,
) -> list[str]:
    """Bring what the runs of the mirrored `ledger` made and `workspace` lacks; return what stays there, in notes.

    An output with a file above `most` bytes is left there. Raises LedgerError for a lost link; what came is kept.
    """
    made = {one.path: one for one in _made(ledger, checkpoints)}
    notes = [
        _stays(home, one, "an import puts nothing there") for one in made.values() if not _may_come(one.path)
    ]
    wanted = [
        one
        for one in made.values()
        if _may_come(one.path) and digest_of(workspace.root / one.path) != one.sha256
    ]
    if not wanted:
        return notes
    there = list(_listing(home, [one.path for one in wanted]))
    hashes = _hashes(home, [file.name for file in there])
    free = shutil.disk_usage(mirror).free - RESERVE
    bring: list[There] = []
    for one in wanted:
        files = [file for file in there if PurePosixPath(file.name).is_relative_to(one.path)]
        missing = [file for file in files if not is_here(mirror, file)]
        need = sum(file.size for file in missing)
        if not files:
            notes.append(f"{one.path}, which run {one.run} made, is no longer there")
        elif _digest(one.path, files, hashes) != one.sha256:
            notes.append(_stays(home, one, "it is no longer what the run made", files))
        elif most is not None and max(file.size for file in files) > most:
            notes.append(_stays(home, one, f"it has a file above {most / 2**20:,.1f} MiB", files))
        elif need > free:
            notes.append(_stays(home, one, "there is no room for it here", files))
        else:
            free -= need
            bring += missing
    if bring:
        say(
            f"{counted(len(bring), 'files')} that runs made, {sum(one.size for one in bring) / 2**20:,.1f} MiB"
        )
        copy(home, mirror, bring, say)
    for file in bring:
        if file_sha256(mirror / file.name) != hashes[file.name]:
            (mirror / file.name).unlink()
            raise LedgerError(f"{file.name} is not as it is there", where=home.host, mend=LOST)
    return notes


def _may_come(path: str) -> bool:
    """Say whether a file of a run may be mirrored: one of the workspace, or one in a run's folder."""
    parts = PurePosixPath(path).parts
    return is_open(path) or (parts[:2] == ("ledger", "runs") and len(parts) > 4 and ".." not in parts)


def _stays(home: Remote, one: _Made, why: str, files: list[There] | None = None) -> str:
    size = f", {sum(file.size for file in files) / 2**20:,.1f} MiB," if files else ""
    place = f"{home.host}:{one.path}" if one.path.startswith("/") else home / one.path
    return f"{one.path} of run {one.run}{size} stays there: {why}; to have it: scp -r {place} DIR"


def _made(ledger: Ledger, checkpoints: str) -> Iterator[_Made]:
    """Yield what each run that has ended made, a later run's after an earlier one's."""
    for document in ledger.runs:
        if document["state"] == "running":
            continue
        run = document["id"]
        for output in document.get("outputs", []):
            if output.get("sha256"):
                yield _Made(output["path"], output["sha256"], run)
        places = {step: path for step, path in committed(ledger.run_folder(run)).items() if path.is_file()}
        for step, place in places.items():
            if checkpoints == "all" or (checkpoints == "last" and step == max(places)):
                yield from _of_trainer(place, run)


def _of_trainer(place: Path, run: str) -> Iterator[_Made]:
    try:
        manifest = read_manifest(place)
    except CheckpointError:
        return  # the audit names it
    for name, promised in manifest["files"].items():
        yield _Made(f"{manifest['folder']}/{name}", promised["sha256"], run)


def _listing(home: Remote, paths: list[str]) -> Iterator[There]:
    """Yield the files at or below some paths there, once each."""
    out = home.run(_LISTING.format(path=home.quoted), joined(paths))
    for one in sorted(set(listed(out)), key=lambda file: file.name):
        if not _may_come(one.name):
            raise LedgerError(f"a run there made a file named {one.name!r}", where=str(home))
        yield one


def _hashes(home: Remote, names: list[str]) -> dict[str, str]:
    out = home.run(_HASHES.format(path=home.quoted), joined(names))
    return {os.fsdecode(line[66:]): line[:64].decode() for line in out.split(b"\0")[:-1]}


def _digest(path: str, files: list[There], hashes: dict[str, str]) -> str:
    if [file.name for file in files] == [path]:
        return hashes[path]
    inside = {str(PurePosixPath(file.name).relative_to(path)): hashes[file.name] for file in files}
    return folder_digest_of(inside)
