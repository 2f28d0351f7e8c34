"""`labassist leave`: before a rented box is given back, bring everything to another place and prove that it is there.

The destination is looked at first. Live runs are stopped with a checkpoint, one bundle is made of the whole ledger, of every branch and of what
the runs made, it is copied and its hash is taken at its destination. Only then it says that it is safe to go,
and what would stay behind. Pulling the plug anywhere in between loses nothing, and a second call goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import CodeError, LedgerError, counted
from labassist.ledger import foreign
from labassist.ledger.environment import machine
from labassist.ledger.gitcmd import open_repository
from labassist.ledger.records import why_gone
from labassist.ledger.store import Ledger
from labassist.record.protocol import file_sha256
from labassist.runs import life
from labassist.runs.belongings import by_hash_only, not_taken
from labassist.runs.destination import Destination, look
from labassist.runs.parcel import collect, files_of, write
from labassist.runs.recover import recover
from labassist.runs.remote import Remote, parse, send
from labassist.runs.scratch import scratch
from labassist.workspace import Workspace

Say = Callable[[str], None]
_POLL_S = 0.25
_MOST_NAMED = 8


@dataclass
class Left:
    """What was brought away, and what was not."""

    bundle: str
    """Where the copy lies."""
    sha256: str = ""
    bytes: int = 0
    runs: int = 0
    checkpoints: int = 0
    stopped: list[str] = field(default_factory=list)
    verified: bool = False
    """The hash of the copy was taken at its destination and is that of the bundle."""
    unsafe: str = ""
    """Why the copy does not outlive this box, though it is whole."""
    lost: list[str] = field(default_factory=list)
    """What is on this box only."""
    notes: list[str] = field(default_factory=list)
    """What else a person should know of the copy."""

    @property
    def safe(self) -> bool:
        """True when everything that labassist keeps is somewhere else."""
        return self.verified and not self.unsafe

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `leave --json`."""
        return {
            "safe": self.safe,
            "verified": self.verified,
            "unsafe": self.unsafe,
            "bundle": self.bundle,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "runs": self.runs,
            "checkpoints": self.checkpoints,
            "stopped": self.stopped,
            "lost": self.lost,
            "notes": self.notes,
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        lines = [f"stopped run {run}" for run in self.stopped]
        lines.append(
            f"copied to {self.bundle}, {self.bytes / 2**20:,.1f} MiB, its hash checked there: {self.sha256}"
        )
        word = "in it" if self.unsafe else "safe"
        lines.append(
            f"{word}: {counted(self.runs, 'runs')}, {counted(self.checkpoints, 'checkpoints')}, their code, and every branch there is"
        )
        if self.lost:
            lines.append("on this box only, and gone with it:")
            lines += [f"  {what}" for what in self.lost]
        lines += [f"note: {what}" for what in self.notes]
        lines.append(f"NOT SAFE to go: {self.unsafe}" if self.unsafe else "it is safe to go")
        place = parse(self.bundle)
        there = place.path if isinstance(place, Remote) else str(place)
        if isinstance(place, Remote) and not there.startswith(("/", "~")):
            there = f"~/{there}"
        lines.append(f"at home, in a workspace: labassist import {shlex.quote(there)}")
        return "\n".join(lines)


def leave(
    workspace: Workspace,
    ledger: Ledger,
    target: Remote | Path,
    *,
    checkpoints: str,
    say: Say,
    with_files: bool = False,
) -> Left:
    """Look at the destination, then stop, bundle, copy and verify.

    Raises InputError or LedgerError where a step fails; what was done stands.
    """
    if ledger.journal.readonly:
        raise LedgerError(
            "the ledger is read-only, so nothing runs here that could be stopped",
            where=str(workspace.root),
            mend="labassist export --all --to bundle -o PATH writes a bundle from it",
        )
    place = look(workspace.root, target)
    _check_room(workspace, ledger, checkpoints, place)
    stopped = _stop_all(ledger, say)
    bundle, facts = _bundle(workspace, ledger, checkpoints, with_files, say)
    copy = _copy(bundle, target, facts["sha256"], say)
    left = Left(
        copy,
        facts["sha256"],
        bundle.stat().st_size,
        facts["runs"],
        facts["checkpoints"],
        stopped,
        verified=True,
        unsafe=place.unsafe,
        lost=facts["notes"] + _left_behind(workspace, ledger, checkpoints, set(facts["work"])),
        notes=[place.unknown] if place.unknown else [],
    )
    older = {name: size for name, size in place.files.items() if _is_older(name, bundle.name)}
    if older:
        names = ", ".join(f"{name} ({size / 2**20:,.1f} MiB)" for name, size in sorted(older.items()))
        left.notes.append(f"older bundles of this machine lie there too, and nothing removes them: {names}")
    bundle.unlink()  # its copy is verified; the ledger itself is still here
    bundle.with_suffix(".json").unlink()
    return left


def _is_older(name: str, bundle: str) -> bool:
    return name != bundle and name.startswith(_name_start()) and name.endswith(".tar")


def _name_start() -> str:
    return f"labassist-{socket.gethostname().split('.')[0]}-"


def _check_room(workspace: Workspace, ledger: Ledger, checkpoints: str, place: Destination) -> None:
    """Compare what the bundle will take, about, with the room here and there. Raises LedgerError."""
    need = sum(ledger.objects.path(sha).stat().st_size for sha in ledger.objects)
    for row in ledger.runs:
        if not ledger.run_folder(row["id"]).is_dir():
            continue
        need += sum(path.stat().st_size for _, path in files_of(ledger, row["id"], checkpoints))
        need += sum(output.get("bytes", 0) for output in row.get("outputs", []))
    with contextlib.suppress(CodeError):
        counted = open_repository(workspace.root).run("count-objects", "-v").decode()
        need += sum(int(size) << 10 for size in re.findall(r"size(?:-pack)?: (\d+)", counted))
    made = workspace.root / ".labassist" / "leave"
    here = sum(path.stat().st_size for path in made.iterdir()) if made.is_dir() else 0
    there = sum(size for name, size in place.files.items() if name.endswith(".part"))
    for where, free in (
        ("here", shutil.disk_usage(workspace.root).free + here),
        ("at its destination", place.free + there),
    ):
        if need > free:
            raise LedgerError(
                f"the bundle will take about {need / 2**20:,.1f} MiB, and {free / 2**20:,.1f} MiB are free {where}; "
                "nothing was stopped",
                where="leave",
                mend="free some space, take fewer checkpoints along, or name another place",
            )


def _stop_all(ledger: Ledger, say: Say) -> list[str]:
    """Ask every live run for a checkpoint and its end, and wait until their records are closed."""
    stopped = []
    for document in ledger.running():
        run = document["id"]
        folder = ledger.run_folder(run)
        if life.life(folder, document, machine().id) == "alive":
            say(f"asking run {run} for a checkpoint and its end")
            life.ask_to_stop(folder)
            stopped.append(run)
    for run in stopped:
        folder = ledger.run_folder(run)
        while (ledger.run(run) or {}).get("state") == "running":
            if not life.held(folder / "alive") and not life.held(folder / "supervised"):
                recover(ledger)  # nobody is left to close it
            time.sleep(_POLL_S)
    return stopped


def _bundle(
    workspace: Workspace, ledger: Ledger, checkpoints: str, with_files: bool, say: Say
) -> tuple[Path, dict[str, Any]]:
    """Return the bundle of the ledger as it now is; one that an interrupted call has finished is used again."""
    folder = workspace.root / ".labassist" / "leave"
    folder.mkdir(parents=True, exist_ok=True)
    branches = _branch_state(workspace)
    name = f"{_name_start()}{ledger.journal.head[:12]}-{checkpoints}{'-files' if with_files else ''}"
    path, note = folder / f"{name}.tar", folder / f"{name}.json"
    try:
        facts: dict[str, Any] = json.loads(note.read_text())
        if facts["branches"] == branches and file_sha256(path) == facts["sha256"]:
            say(f"going on with {path.name}")
            return path, facts
    except (OSError, ValueError, KeyError):
        pass  # there is none yet, or its writer was killed: it is made again
    for old in folder.iterdir():
        old.unlink()
    say("making the bundle")
    with scratch(workspace, "leave") as work:
        parcel = collect(
            workspace,
            ledger,
            (),
            checkpoints=checkpoints,
            scratch=work,
            branches=True,
            with_files=with_files,
        )
        digest = write(parcel, path)
    facts = {
        "sha256": digest,
        "runs": len(parcel.runs),
        "checkpoints": sum(len(parcel.steps(run)) for run in parcel.runs),
        "notes": parcel.notes,
        "work": sorted(parcel.work),
        "branches": branches,
    }
    note.write_text(json.dumps(facts))
    return path, facts


def _copy(bundle: Path, target: Remote | Path, sha256: str, say: Say) -> str:
    """Copy the bundle and verify it there; return where it lies."""
    if isinstance(target, Remote):
        if not target.path.endswith(".tar"):
            target = target / bundle.name
        say(f"copying to {target}")
        send(bundle, target, sha256)
        return str(target)
    if not target.name.endswith(".tar"):
        target = target / bundle.name
    say(f"copying to {target}")
    try:
        _copy_here(bundle, target, sha256)
    except OSError as error:
        raise LedgerError(
            f"the bundle cannot be copied: {error.strerror}; it stays here, and nothing is lost",
            where=str(target),
            mend="free some space there and run it again",
        ) from error
    return str(target)


def _copy_here(source: Path, target: Path, sha256: str) -> None:
    """Copy to another folder of this machine, from where a partial copy ends, and read it back."""
    if target.exists() and file_sha256(target) == sha256:
        return
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    only_mine = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with source.open("rb") as read, open(only_mine, "ab") as written:
        if have > source.stat().st_size:
            written.truncate(0)
            have = 0
        read.seek(have)
        shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())
    if file_sha256(part) != sha256:
        part.unlink()
        raise LedgerError("the copy is not what was written", where=str(target), mend="run it again")
    os.replace(part, target)


def _left_behind(workspace: Workspace, ledger: Ledger, checkpoints: str, taken: set[str]) -> list[str]:
    """Return what no bundle holds, in a line each; `taken` are the files of the workspace that this one does."""
    found = []
    runs = [dict(row) for row in ledger.runs if isinstance(row.get("id"), str)]
    unseen = [row["id"] for row in runs if row["state"] == "running"]
    found += [f"run {run}, which another machine may still be training" for run in unseen]
    count = sum(_checkpoints_left(ledger, row["id"], checkpoints) for row in runs)
    if count:
        what = "all but the last of each run" if checkpoints == "last" else "every one"
        found.append(f"checkpoints: {count}, {what} (take them along with --checkpoints all)")
    found += not_taken(workspace.root, runs, taken)
    large = {}
    for row in runs:
        for _, place, size, sha256 in by_hash_only(workspace.root, row, ledger.objects):
            inside = place.relative_to(workspace.root) if place.is_relative_to(workspace.root) else place
            if place.exists() and inside.as_posix() not in taken:
                known = "hash" if sha256 else "name"
                large[inside.as_posix()] = f"{size / 2**20:,.1f} MiB (recorded by its {known} only)"
    named = [f"{name}, {what}" for name, what in sorted(large.items())]
    found += named[:_MOST_NAMED]
    if len(named) > _MOST_NAMED:
        found.append(f"{len(named) - _MOST_NAMED} more files that are recorded by their hash only")
    if any("its hash only" in what for what in large.values()):
        found[-1] += " (take such files along with --with-files)"
    return found + _uncommitted(workspace, taken | large.keys())


def _checkpoints_left(ledger: Ledger, run: str, checkpoints: str) -> int:
    """Return how many checkpoints of a run that are here no bundle takes along."""
    rows = [dict(row) for row in ledger.checkpoints if row["run"] == run and not why_gone(dict(row))]
    kinds = [sum(1 for row in rows if foreign.is_foreign(row) is kind) for kind in (False, True)]
    if checkpoints == "all":
        return 0
    return sum(max(0, kind - 1) if checkpoints == "last" else kind for kind in kinds)


def _uncommitted(workspace: Workspace, named: set[str]) -> list[str]:
    """Return what of the repository is in no commit, changes and stashes, but for the files that are `named` already."""
    try:
        repo = open_repository(workspace.root)
    except CodeError:
        return ["the workspace's own files: it is in no git repository"]
    found = []
    out = repo.run("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    inside = workspace.root.relative_to(repo.top).as_posix()
    changed = [
        path
        for path in (line[3:] for line in out.decode("utf-8", "replace").split("\0")[:-1])
        if (path if inside == "." else path.removeprefix(f"{inside}/")) not in named
    ]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        found.append(
            f"changes that no commit has: {changed[0]}{more} (the runs that used them have them; commit them, "
            "and leave again, to keep the files themselves)"
        )
    stashes = repo.run("for-each-ref", "refs/stash").split()
    if stashes:
        found.append("what is in git stash (commit it, and leave again)")
    return found


def _branch_state(workspace: Workspace) -> str:
    """Return what every branch points at: a bundle made before a commit must not be used after it."""
    try:
        return (
            open_repository(workspace.root)
            .run("for-each-ref", "refs/heads/", "refs/tags/")
            .decode("utf-8", "replace")
        )
    except CodeError:
        return ""
