"""Jobs: what `labassist run LAB/JOB` names. A lab's `jobs.toml` has one table a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError, did_you_mean
from labassist.runs.config import Config, Spec, check, flatten, parse_sets, read_spec, read_toml, resolve_spec
from labassist.workspace import Workspace

KEYS = ("script", "config", "summary", "default_profile", "needs", "inputs", "rows", "memory")

SHAPE = ("hidden", "layers", "heads", "vocabulary")
"""In a memory table: the sizes of a model that is the job's own, in place of `model`."""

MEMORY = (
    *(
        "model",
        *SHAPE,
        "method",
        "dtype",
        "optim",
        "seq",
        "batch",
        "accumulate",
        "checkpointing",
        "attention",
    ),
    *("lora_r", "lora_targets", "lora_dropout", "loss", "padded", "trainer", "gpus", "strategy"),
    *("device", "card", "steps", "checkpoint", "keep"),
)
"""What a memory table may say: the options of `plan memory`; where the job runs, and on a card of which size it keeps
itself; its steps, the steps between two checkpoints, and how many are kept (all, where nothing is said)."""


@dataclass(frozen=True)
class Job:
    """One job of a lab, with its job file read and checked."""

    name: str
    """`01-first-loop/train`."""
    folder: Path
    """The lab's folder, absolute."""
    script: Path
    """Absolute."""
    config_file: Path
    """Absolute."""
    summary: str
    default_profile: str
    """Name of the numbers as the job file's defaults have them, unless `[profiles]` has an entry of that name."""
    spec: Spec
    needs: tuple[str, ...] = ()
    """Packages that its script imports: asked for before a run is started."""
    inputs: tuple[str, ...] = ()
    """Keys of its configuration that name files, relative to the workspace."""
    rows: tuple[str, ...] = ()
    """Those among them that name files of training samples, as `data lint` reads them."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """How large it is, in the words of MEMORY; a text `$key` stands for that number of its configuration."""

    @property
    def profiles(self) -> list[str]:
        """Every name that `--profile` takes, the default first."""
        return [self.default_profile, *(name for name in self.spec.profiles if name != self.default_profile)]


def list_labs(workspace: Workspace) -> list[str]:
    """Return the labs that have jobs, in order."""
    return sorted(path.parent.name for path in workspace.labs.glob("*/jobs.toml"))


def list_jobs(workspace: Workspace) -> list[str]:
    """Return every job's name, in the order of the labs and of their files. Job files are not read."""
    return [f"{lab}/{job}" for lab in list_labs(workspace) for job in _read_jobs(workspace, lab)]


def load_job(workspace: Workspace, name: str) -> Job:
    """Return the job called `LAB/JOB`.

    Raises InputError when there is none (naming the nearest), or when one of its files has a fault.
    """
    lab, slash, task = name.partition("/")
    labs = list_labs(workspace)
    if lab not in labs:
        raise InputError(
            f"no lab {lab!r} here{did_you_mean(lab, labs)}",
            where=str(workspace.labs),
            mend=_listing("labs", labs),
        )
    jobs = _read_jobs(workspace, lab)
    if task not in jobs:
        what = (
            f"no job {task!r} in this lab{did_you_mean(task, jobs)}"
            if slash
            else f"{name!r} is a lab, not a job"
        )
        raise InputError(
            what, where=_place(workspace, lab), mend=_listing("jobs", [f"{lab}/{one}" for one in jobs])
        )
    return _job(workspace, lab, task, jobs[task])


def resolve(
    job: Job,
    profile: str | None = None,
    config_file: str | Path | None = None,
    sets: Sequence[str] = (),
) -> Config:
    """Return a job's numbers: its defaults, then the profile, then `--config FILE`, then each `--set`.

    Raises InputError on an unknown profile or key, and on a value of a wrong type or out of its bounds.
    """
    profile = profile or job.default_profile
    if profile not in job.profiles:
        raise InputError(
            f"no profile {profile!r}{did_you_mean(profile, job.profiles)}",
            where=job.spec.file,
            mend=_listing("profiles", job.profiles),
        )
    layers = []
    if config_file is not None:
        name = str(config_file)
        layers.append(check(job.spec, flatten(read_toml(Path(config_file).expanduser(), name), name), name))
    layers.append(parse_sets(job.spec, sets))
    return resolve_spec(job.spec, profile, layers)


def _place(workspace: Workspace, lab: str) -> str:
    """Return how a lab's jobs.toml is named in errors."""
    return str((workspace.labs / lab / "jobs.toml").relative_to(workspace.root))


def _read_jobs(workspace: Workspace, lab: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a lab's jobs.toml. Raises InputError on anything in it that is not a job."""
    where = _place(workspace, lab)
    jobs = read_toml(workspace.labs / lab / "jobs.toml", where)
    for name, table in jobs.items():
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise InputError(
                f"{name!r} cannot name a job", where=where, mend="use letters, digits, `_`, `.`, `-`"
            )
        if not isinstance(table, dict):
            raise InputError(
                f"{name!r} stands outside a job's table", where=where, mend="write [JOB] above it"
            )
        for key, value in table.items():
            if key not in KEYS:
                raise InputError(
                    f"unknown key {key!r}{did_you_mean(key, KEYS)}",
                    where=f"{where}: {name}",
                    mend=f"there are {', '.join(KEYS)}",
                )
            if key == "memory" and isinstance(value, dict):
                continue
            if key == "memory":
                raise InputError(
                    "memory is a table",
                    where=f"{where}: {name}",
                    mend=f"write [{name}.memory] and a key a line",
                )
            if not isinstance(value, str) or not value:
                raise InputError(f"{key} must be text", where=f"{where}: {name}", mend=f'write {key} = "…"')
        for key in ("script", "config"):
            if key not in table:
                raise InputError(f"{key} is missing", where=f"{where}: {name}", mend=f'write {key} = "…"')
    return jobs


def _job(workspace: Workspace, lab: str, task: str, table: dict[str, Any]) -> Job:
    """Return the job of a table, its job file read."""
    folder = workspace.labs / lab
    paths = {}
    for key in ("script", "config"):
        path = folder / table[key]
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise InputError(
                f"{key} {table[key]!r} is no file of this lab",
                where=f"{_place(workspace, lab)}: {task}",
                mend=f"put it in {folder.relative_to(workspace.root)}/, or mend the name",
            )
        paths[key] = path
    spec = read_spec(paths["config"], str(paths["config"].relative_to(workspace.root)))
    where = f"{_place(workspace, lab)}: {task}"
    named = {one: tuple(table.get(one, "").split()) for one in ("inputs", "rows")}
    for one, keys in named.items():
        for key in keys:
            _refers(spec, key, f"{where}: {one}")
    return Job(
        f"{lab}/{task}",
        folder,
        paths["script"],
        paths["config"],
        table.get("summary", ""),
        table.get("default_profile", "default"),
        spec,
        tuple(table.get("needs", "").split()),
        named["inputs"],
        named["rows"],
        _memory(spec, table.get("memory", {}), f"{where}: memory"),
    )


def _memory(spec: Spec, table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a job's memory table, each of its keys and references known."""
    for key, value in table.items():
        if key not in MEMORY:
            raise InputError(
                f"unknown key {key!r}{did_you_mean(key, MEMORY)}",
                where=where,
                mend=f"there are {', '.join(MEMORY)}",
            )
        if isinstance(value, str) and value.startswith("$"):
            _refers(spec, value[1:], f"{where}.{key}")
    if table and "model" not in table and not {*SHAPE, "seq"} <= table.keys():
        raise InputError(
            "says neither the model nor its sizes",
            where=where,
            mend=f"give model, or {', '.join(SHAPE)} and seq",
        )
    return table


def _refers(spec: Spec, key: str, where: str) -> None:
    """Raise InputError where a key that jobs.toml names is none of the job's configuration."""
    if key not in spec.defaults:
        raise InputError(
            f"{spec.file} has no {key!r}{did_you_mean(key, spec.defaults)}", where=where, mend="mend the name"
        )


def _listing(kind: str, names: Sequence[str]) -> str:
    """Return what there is, for the mend of an error."""
    return f"{kind} here: {', '.join(names) or 'none'}"
