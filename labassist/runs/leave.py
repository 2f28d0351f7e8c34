"""`labassist leave`: before a rented box is given back, bring everything to another place and prove that it is there.

Live runs are stopped with a checkpoint, one bundle is made of the whole ledger, of every branch and of what
the runs made, it is copied and its hash is taken at its destination. Only then it says that it is safe to go,
and what would stay behind. Pulling the plug anywhere in between loses nothing, and a second call goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import CodeError, InputError, LedgerError
from labassist.ledger.environment import machine
from labassist.ledger.gitcmd import open_repository
from labassist.ledger.kept import listing
from labassist.ledger.store import Ledger
from labassist.record.protocol import file_sha256
from labassist.runs import life
from labassist.runs.parcel import collect, write
from labassist.runs.recover import recover
from labassist.runs.remote import Remote, send
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
        }

    def text(self) -> str:
        """Return the answer in lines for a person."""
        lines = [f"stopped run {run}" for run in self.stopped]
        lines.append(
            f"copied to {self.bundle}, {self.bytes / 2**20:,.1f} MiB, its hash checked there: {self.sha256}"
        )
        lines.append(f"safe: {self.runs} runs, {self.checkpoints} checkpoints, their code, and every branch")
        if self.lost:
            lines.append("on this box only, and gone with it:")
            lines += [f"  {what}" for what in self.lost]
        lines.append(f"NOT SAFE to go: {self.unsafe}" if self.unsafe else "it is safe to go")
        lines.append(f"at home: labassist import {Path(self.bundle.rpartition(':')[2]).name}")
        return "\n".join(lines)


def leave(workspace: Workspace, ledger: Ledger, target: Remote | Path, *, checkpoints: str, say: Say) -> Left:
    """Stop, bundle, copy and verify. Raises LedgerError where a step fails; what was done stands."""
    stopped = _stop_all(ledger, say)
    bundle, facts = _bundle(workspace, ledger, checkpoints, say)
    place, unsafe = _copy(workspace, bundle, target, facts["sha256"], say)
    left = Left(
        place,
        facts["sha256"],
        bundle.stat().st_size,
        facts["runs"],
        facts["checkpoints"],
        stopped,
        verified=True,
        unsafe=unsafe,
        lost=facts["notes"] + _left_behind(workspace, ledger, checkpoints),
    )
    bundle.unlink()  # its copy is verified; the ledger itself is still here
    bundle.with_suffix(".json").unlink()
    return left


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


def _bundle(workspace: Workspace, ledger: Ledger, checkpoints: str, say: Say) -> tuple[Path, dict[str, Any]]:
    """Return the bundle of the ledger as it now is; one that an interrupted call has finished is used again."""
    folder = workspace.root / ".labassist" / "leave"
    folder.mkdir(parents=True, exist_ok=True)
    branches = _branch_state(workspace)
    name = f"labassist-{socket.gethostname().split('.')[0]}-{ledger.journal.head[:12]}-{checkpoints}"
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
        parcel = collect(workspace, ledger, (), checkpoints=checkpoints, scratch=work, branches=True)
        digest = write(parcel, path)
    facts = {
        "sha256": digest,
        "runs": len(parcel.runs),
        "checkpoints": sum(len(parcel.steps(run)) for run in parcel.runs),
        "notes": parcel.notes,
        "branches": branches,
    }
    note.write_text(json.dumps(facts))
    return path, facts


def _copy(
    workspace: Workspace, bundle: Path, target: Remote | Path, sha256: str, say: Say
) -> tuple[str, str]:
    """Copy the bundle and verify it there; return where it lies, and why that place does not outlive the box."""
    if isinstance(target, Remote):
        if not target.path.endswith(".tar"):
            target = target / bundle.name
        say(f"copying to {target}")
        send(bundle, target, sha256)
        return str(target), ""
    if not target.name.endswith(".tar"):
        if not target.is_dir():
            raise InputError(
                "there is no such folder", where=str(target), mend="make it first, or name HOST:PATH"
            )
        target = target / bundle.name
    say(f"copying to {target}")
    try:
        _copy_here(bundle, target, sha256)
        same = os.stat(target).st_dev == os.stat(workspace.root).st_dev
    except OSError as error:
        raise LedgerError(
            f"the bundle cannot be copied: {error.strerror}; it stays here, and nothing is lost",
            where=str(target),
            mend="free some space there and run it again",
        ) from error
    return str(target), "the copy lies on the disk of this workspace and goes away with it" if same else ""


def _copy_here(source: Path, target: Path, sha256: str) -> None:
    """Copy to another folder of this machine, from where a partial copy ends, and read it back."""
    if target.exists() and file_sha256(target) == sha256:
        return
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    with source.open("rb") as read, part.open("ab") as written:
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


def _left_behind(workspace: Workspace, ledger: Ledger, checkpoints: str) -> list[str]:
    """Return what no bundle holds, in a line each."""
    found = []
    runs = [dict(row) for row in ledger.runs if isinstance(row.get("id"), str)]
    unseen = [row["id"] for row in runs if row["state"] == "running"]
    found += [f"run {run}, which another machine may still be training" for run in unseen]
    if checkpoints != "all":
        what = "all but the last of each run" if checkpoints == "last" else "every one"
        found.append(f"checkpoints: {what} (take them along with --checkpoints all)")
    large = {}
    for row in runs:
        for given in row.get("inputs", []):
            if not given.get("stored"):
                large[given["path"]] = given["bytes"]
        for kept in listing(row["code"].get("extra", ""), ledger.objects):
            if not kept.stored:
                large[kept.path] = kept.bytes
    here = {name: size for name, size in large.items() if (workspace.root / name).exists()}
    named = [
        f"{name}, {size / 2**20:,.1f} MiB (recorded by its hash only)" for name, size in sorted(here.items())
    ]
    found += named[:_MOST_NAMED]
    if len(named) > _MOST_NAMED:
        found.append(f"{len(named) - _MOST_NAMED} more files that are recorded by their hash only")
    return found + _uncommitted(workspace)


def _uncommitted(workspace: Workspace) -> list[str]:
    """Return what of the repository is in no commit: changes and stashes."""
    try:
        repo = open_repository(workspace.root)
    except CodeError:
        return ["the workspace's own files: it is in no git repository"]
    found = []
    changed = (
        repo.run("status", "--porcelain", "--untracked-files=all").decode("utf-8", "replace").splitlines()
    )
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        found.append(
            f"changes that no commit has: {changed[0][3:]}{more} (the runs that used them have them; commit them, "
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
