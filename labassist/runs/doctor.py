"""`labassist doctor`: is everything here that a recorded run needs, and what to do where it is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from labassist.errors import InputError
from labassist.finetune import stack as torch_stack
from labassist.ledger.environment import hardware
from labassist.machine import checkup
from labassist.machine.checkup import Finding, Level
from labassist.machine.mounts import mount_of
from labassist.runs import artifacts
from labassist.runs.jobs import list_jobs, load_job, resolve
from labassist.runs.preflight import DISK_RESERVE, needed
from labassist.serving import place as engines
from labassist.workspace import Workspace

SIGNS: dict[Level, str] = {"ok": "ok  ", "note": "note", "warning": "WARN", "problem": "BAD "}
_GIB = 2**30


@dataclass
class Health:
    """What the doctor found."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True when nothing is in the way; a warning is not."""
        return not any(one.level == "problem" for one in self.findings)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `doctor --json`."""
        return {"ok": self.ok, "findings": [msgspec.to_builtins(one) for one in self.findings]}

    def text(self) -> str:
        """Return a line a finding, with its mend below."""
        lines = []
        for one in self.findings:
            lines.append(f"{SIGNS[one.level]} {one.about:<12} {one.says}")
            if one.mend and one.level != "ok":
                lines.append(f"     {'':<12} mend: {one.mend}")
        return "\n".join(lines)


def examine(workspace: Workspace | None) -> Health:
    """Look at everything; without a workspace, at the machine and the current folder."""
    folder = workspace.root if workspace else Path.cwd()
    found = checkup.python()
    found += checkup.stack(torch_stack.ask(), hardware())
    found += disk(folder)
    found += room(workspace) if workspace else []
    found += checkup.locks(workspace.ledger if workspace else folder)
    found += checkup.git(folder)
    found += checkup.terminal(os.environ)
    found += checkup.hub(os.environ)
    found += serving()
    if workspace is None:
        mend = "make one with `labassist new DIR`, or name one with --workspace DIR"
        found.append(Finding("workspace", "note", f"{folder} lies in no workspace", mend))
    return Health(found)


def serving() -> list[Finding]:
    """Say what `labassist serve` would serve with; without it everything else works."""
    try:
        engine = engines.find()
    except InputError as error:
        python, source = engines.interpreter()
        if source == engines.VARIABLE or python.exists():
            return [Finding("serving", "warning", f"{error.where}: {error.what}", error.mend)]
        return [Finding("serving", "ok", f"{error.what}; to serve a model: labassist setup vllm")]
    return [Finding("serving", "ok", f"{engine.text}, {engine.python}")]


def disk(folder: Path) -> list[Finding]:
    """Say what disks the workspace and its checkpoints lie on, and whether they outlive the machine."""
    places = {"disk": folder}
    big = artifacts.disk(folder)
    if big.stat().st_dev != folder.stat().st_dev:
        places["checkpoints"] = big
    found = []
    for about, place in places.items():
        free = f"{shutil.disk_usage(place).free / _GIB:,.1f} GiB free"
        mount = mount_of(place)
        if mount is None:
            found.append(Finding(about, "note", f"{place}: {free}; what kind of disk it is, is not known"))
        elif mount.dies:
            mend = "keep the workspace on a volume that stays, or bring it home: labassist leave HOST:PATH"
            found.append(Finding(about, "warning", f"{place} {mount.dies}; {free}", mend))
        elif mount.remote:
            mend = "a local disk is faster and surer; `locks` says whether this one will do"
            found.append(Finding(about, "note", f"{place} is on a network ({mount.kind}); {free}", mend))
        else:
            found.append(Finding(about, "ok", f"{place} is on {mount.kind} ({mount.source}); {free}"))
    return found


def room(workspace: Workspace) -> list[Finding]:
    """Compare the free space with the checkpoints that each job's numbers plan."""
    place = artifacts.disk(workspace.root)
    free = shutil.disk_usage(place).free - DISK_RESERVE
    needs = list(_planned(workspace))
    large = [(name, size) for name, size in needs if size > free]
    if large:
        name, size = min(large, key=lambda one: one[1])
        others = f" and {len(large) - 1} more" if len(large) > 1 else ""
        mend = f"free some space, name a larger disk with {artifacts.VARIABLE}=DIR, or see labassist prune"
        says = f"too little for the checkpoints of {name} ({size / _GIB:,.1f} GiB){others}"
        return [Finding("room", "warning", says, mend)]
    if not needs:
        return []
    name, size = max(needs, key=lambda one: one[1])
    said = f"enough for each job's planned checkpoints; the most, {size / _GIB:,.1f} GiB, are those of {name}"
    return [Finding("room", "ok", said)]


def _planned(workspace: Workspace) -> Iterator[tuple[str, int]]:
    """Yield each job and profile with the bytes of the checkpoints that it will keep."""
    for name in list_jobs(workspace):
        job = load_job(workspace, name)
        for profile in job.profiles if job.memory else ():
            try:
                needs = needed(workspace.root, job, resolve(job, profile).flat)
            except InputError:
                continue  # a model that is not here yet cannot be planned; `run` says so
            if needs.steps:
                yield f"{name} --profile {profile}", needs.checkpoint * needs.checkpoints
