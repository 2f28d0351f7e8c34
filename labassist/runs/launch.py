"""Start one recorded run: capture what it is, journal that it started, hand it to a supervisor.

Everything that can be refused is refused here, before anything is journalled. A foreground run is the
same thing as a detached one, with somebody following its files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from labassist import __version__, own
from labassist.errors import InputError, LabError, LedgerError, NoRepositoryError
from labassist.ledger import code as code_capture
from labassist.ledger import environment, package, secrets
from labassist.ledger.records import Code, Kept, Mode, Origin, Run, to_document
from labassist.ledger.store import Ledger, new_run_id
from labassist.record.environment import environment_for
from labassist.runs import artifacts, life
from labassist.runs.absorb import iso, now
from labassist.runs.terms import Terms
from labassist.workspace import Workspace

PROTOCOL = 1
ARGV = "LABASSIST_ARGV"
"""Hands the command line, secrets and all, from the launcher to the supervisor and no further."""
LOW_DISK_BYTES = 200 * 1024 * 1024
_TOGETHER_S = 5.0
"""Runs that several processes start at once are journalled in any order: that is no clock set back."""


@dataclass
class Plan:
    """What is to be started. A replay fills in what a fresh run captures."""

    job: str
    kind: Literal["job", "command"]
    argv: list[str]
    """Program and arguments; `python` as the first word means this interpreter."""
    mode: Mode = "exact"
    seed: int = 1337
    threads: int = 1
    profile: str = ""
    nested: dict[str, Any] = field(default_factory=dict)
    flat: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    outputs: list[str] = field(default_factory=list)
    resumed_from: Origin | None = None
    resume_path: Path | None = None
    drop: list[str] = field(default_factory=list)
    """States of the checkpoint that the trainer leaves out on purpose (an ablation)."""
    replay_of: str | None = None
    code: Code | None = None
    """None: capture the workspace as it stands."""
    root: Path | None = None
    """None: the workspace itself; a replay's scratch copy otherwise."""
    package_root: Path | None = None
    """Folder with the labassist that the trainer imports; None: a copy of the one that runs now."""
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    stop_after: int | None = None
    experiment: bool = False
    """One of the runs of `ckpt prove` or `ablate`."""
    env: dict[str, str] | None = None
    """The recorded environment variables of a replay; None: those of this process."""
    cwd: str = "."
    script: Path | None = None
    """The program of a command, where it is a file: kept even if git ignores it or does not know it."""
    terms: Terms = field(default_factory=Terms)
    """Price, limits and what is done at the end."""
    warnings: list[str] = field(default_factory=list)
    """What is known already that a person should know; kept with the run."""
    started: bool = False
    """The trainer runs already, with the environment that it has: it enlists itself."""


def launch(
    workspace: Workspace, ledger: Ledger, plan: Plan, committing: Callable[[], None] = lambda: None
) -> str:
    """Start `plan` under a detached supervisor and return the id of its run.

    `committing` is called when all has been captured, just before the start is journalled. Raises CodeError, InputError or LedgerError, and then nothing was journalled or left behind.
    """
    _preflight_disk(workspace)
    run_id = new_run_id()
    folder = ledger.run_folder(run_id)
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise LedgerError(f"cannot record here: {error.strerror}", where=str(folder)) from error
    locks: list[int] = []
    try:
        for name in ("alive", "supervised"):
            lock = life.take(folder / name)
            assert lock is not None  # the folder is new: nobody else knows it
            locks.append(lock)
        if os.environ.get(artifacts.VARIABLE):
            artifacts.checkpoints_place(folder)
        record, order = describe(workspace, ledger, plan, run_id, folder)
        write_order(folder, order)
        committing()
        ledger.write("start", to_document(record))
        alive, supervised = map(str, locks)
        options = ("--alive", alive, "--supervised", supervised)
        spawn_supervisor(ledger.folder, run_id, *options, argv=plan.argv, pass_fds=locks)
    except BaseException:
        with contextlib.suppress(LabError):
            if ledger.run(run_id):
                _never_started(ledger, run_id)
        if not (folder / "positions.jsonl").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for lock in locks:
            os.close(lock)
    return run_id


def describe(
    workspace: Workspace, ledger: Ledger, plan: Plan, run_id: str, folder: Path
) -> tuple[Run, dict[str, Any]]:
    """Capture what a plan runs and on what; return its record and its order. `alive` must exist."""
    root = plan.root or workspace.root
    code = plan.code or _capture(workspace, ledger, plan, run_id)
    if not code.package:
        code.package = package.capture_package(ledger.objects)
    package_root = plan.package_root or package.shared_copy(ledger.objects, code.package, workspace.packages)
    kept_env, changes = _environment(plan, folder, package_root)
    _refuse_secret_config(plan.flat)
    machine = environment.machine()
    hardware = environment.hardware()
    machine.inode = (folder / "alive").stat().st_ino
    record = Run(
        id=run_id,
        job=plan.job,
        kind=plan.kind,
        state="running",
        mode=plan.mode,
        seed=plan.seed,
        threads=plan.threads,
        created=now(),
        argv=secrets.redact_argv(plan.argv, os.environ),
        cwd=plan.cwd,
        machine=machine,
        code=code,
        profile=plan.profile,
        note=secrets.redact_text(plan.note, os.environ),
        config=plan.flat,
        env=ledger.objects.put_json(kept_env),
        environment=ledger.objects.put_json(environment.environment()),
        hardware=ledger.objects.put_json(hardware),
        versions={**environment.versions(hardware), "labassist": __version__},
        outputs=[Kept(path, 0, "", stored=False) for path in plan.outputs],
        resumed_from=plan.resumed_from,
        dropped=plan.drop,
        replay_of=plan.replay_of,
        warnings=[*plan.warnings, *_clock(ledger)],
        **plan.terms.document(),
    )
    order = {
        "protocol": PROTOCOL,
        "run": run_id,
        "job": plan.job,
        "kind": plan.kind,
        "mode": plan.mode,
        "seed": plan.seed,
        "threads": plan.threads,
        "config": plan.nested,
        "inputs": plan.inputs,
        "resume": _resume(plan),
        "stop_after": plan.stop_after,
        "argv": record.argv,
        "root": str(root),
        "cwd": str(root / plan.cwd),
        "env": changes,
    }
    if plan.experiment:
        order["experiment"] = True
    if plan.terms.document():
        order["terms"] = plan.terms.document()
    return record, order


def _environment(
    plan: Plan, folder: Path, package_root: Path
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return the environment that is kept of a run, and what its trainer's has otherwise than the supervisor's."""
    outer = dict(os.environ)
    changes: dict[str, str | None] = {}
    if plan.env is not None:
        here, _names = secrets.redact_env(outer)
        outer = secrets.fill(plan.env, outer)  # refused here, where one is not set
        changes.update(dict.fromkeys(here))
        changes.update(plan.env)  # with its references: the supervisor fills them in, and the order is kept
    ours = {} if plan.started else environment_for(plan.mode, plan.seed, plan.threads)
    kept_env, _names = secrets.redact_env({**outer, **ours})
    told = {
        **ours,
        "PYTHONPATH": _path_first(package_root),
        "PYTHONUNBUFFERED": "1",
        "LABASSIST_RUN_DIR": str(folder),
    }
    changes.update({name: secrets.escape(value) for name, value in told.items()})
    return kept_env, changes


def _capture(workspace: Workspace, ledger: Ledger, plan: Plan, run_id: str) -> Code:
    """Return the code of a fresh run. A command needs no repository: the files that it names are kept."""
    try:
        return code_capture.capture(
            workspace.root, ledger.objects, run_id, script=plan.script, outputs=plan.outputs
        )
    except NoRepositoryError:
        if plan.kind != "command":
            raise
    files = [workspace.root / plan.cwd / word for word in plan.argv[1:]] + [plan.script or Path()]
    named = {path.resolve() for path in files if path.is_file()}
    kept = sorted(path for path in named if path.stat().st_size <= code_capture.FILE_LIMIT)
    return code_capture.capture_without_git(kept, ledger.objects, workspace.root)


def _refuse_secret_config(flat: dict[str, Any]) -> None:
    """A configuration is recorded as it is and handed to the trainer in a file, so it may hold no secret."""
    for key, value in secrets.redact_config(flat, os.environ).items():
        if isinstance(value, str) and value.replace("$${", "${") != flat[key]:
            raise InputError(
                "looks like a secret", where=key, mend="pass it to the job in an environment variable"
            )


def _resume(plan: Plan) -> dict[str, Any] | None:
    if plan.resumed_from is None or plan.resume_path is None:
        return None
    return {
        "run": plan.resumed_from.run,
        "step": plan.resumed_from.step,
        "path": str(plan.resume_path),
        "drop": plan.drop,
    }


def _path_first(package_root: Path) -> str:
    rest = os.environ.get("PYTHONPATH")
    return f"{package_root}{os.pathsep}{rest}" if rest else str(package_root)


def write_order(folder: Path, order: dict[str, Any]) -> None:
    """Write a run's order.json, once and durably."""
    path = folder / "order.json"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w") as file:
        json.dump(order, file, indent=1)
        file.flush()
        os.fsync(fd)


def spawn_supervisor(
    ledger_folder: Path,
    run_id: str,
    *options: str,
    argv: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
) -> None:
    """Start a detached supervisor: its own session, no terminal, output to a file.

    The command line goes through the environment, because the order on disk has references where the
    secrets stood. Raises LedgerError where the system has no room for another process or file.
    """
    log = ledger_folder / "runs" / run_id / "supervisor.log"
    try:
        with open(log, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            subprocess.Popen(
                own.start("labassist.runs.supervise", str(ledger_folder), run_id, *options),
                cwd=ledger_folder,
                env={**os.environ, ARGV: json.dumps(list(argv))},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                pass_fds=pass_fds,
            )
    except OSError as error:
        raise LedgerError(
            f"the supervisor could not be started: {error.strerror}",
            where=f"run {run_id}",
            mend="start it again; this shell's limits stand in `ulimit -n` (open files) and `ulimit -u` (processes)",
        ) from error


def _clock(ledger: Ledger) -> list[str]:
    """Say that this machine's clock was set back, or another's was ahead: names that count back mean an older run."""
    begun = [str(one.get("created", "")) for one in ledger.runs if not one.get("replay_of")]
    newest = max(begun, default="")
    if newest <= iso(time.time() + _TOGETHER_S):
        return []
    return [
        f"this ledger has a run that began at {newest}, and by this machine's clock it is {now()}: until then @last "
        "is that run and not this one"
    ]


def _never_started(ledger: Ledger, run_id: str) -> None:
    """Close the record of a run that has no process, sealed as any other: with no file that could change."""
    seals = ledger.objects.put_json({})
    ended = {"state": "failed", "ended": now(), "reason": "the supervisor could not be started"}
    ledger.change("end", run_id, lambda run: {**run, **ended, "seals": seals})


def _preflight_disk(workspace: Workspace) -> None:
    """Raise LedgerError where a disk is all but full: that of the ledger, and that of the checkpoints."""
    larger = f"name a folder on a larger disk: {artifacts.VARIABLE}=DIR"
    for place, what, way in (
        (workspace.root, "curves, logs and the ledger", "move the workspace to a larger disk"),
        (artifacts.disk(workspace.root), "checkpoints", larger),
    ):
        free = shutil.disk_usage(place).free
        if free < LOW_DISK_BYTES:
            raise LedgerError(
                f"only {free // 2**20} MiB of disk are free, too few for {what}",
                where=str(place),
                mend=f"free some space, or {way}",
            )
