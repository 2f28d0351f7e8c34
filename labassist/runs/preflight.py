"""Say before a job starts what it needs of this machine: packages, inputs, memory, disk; refuse what will not fit.

The `[JOB.memory]` table of jobs.toml says how large a job is, in the words of `labassist plan memory`; a `$key` in
it stands for that number of the job's configuration. A job without the table is not estimated.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labassist.errors import InputError
from labassist.runs import artifacts
from labassist.runs.config import Config, Flat
from labassist.runs.jobs import Job

if TYPE_CHECKING:
    from labassist.machine.readings import GpuSample, MachineSample
    from labassist.planner.memory import Estimate
    from labassist.planner.plan import Plan
    from labassist.workspace import Workspace

GIB = 1024**3
MIB = 1024**2

DTYPES = {"float32": "fp32", "bfloat16": "mixed"}
"""A loop's `precision` -> the planner's word: weights stay in fp32, products may be in 16 bits."""

PROCESS_GIB = 0.6
"""What a trainer's process holds before there is a model: Python with torch took 0.3 GiB without CUDA, and twice
that with it."""

ON_CPU = 1.2
"""A training on the CPU against the formula, which is a card's: torch keeps dropout's masks in fp32 there, and with
dropout the attention's scores. 6.2 GiB were measured of the first lab's `gpu` profile in fp32, where the formula and the
process make 5.4; of its `laptop` profile 0.35, where they make 0.8."""

DISK_RESERVE = 200 * MIB
"""Left free beside the checkpoints, for curves, logs and the ledger; `launch` refuses to start with less."""

LARGEST_READ = 64 * MIB
"""A larger file of samples is not read before the job: that would take seconds, and the job reads it all the same."""

OTHER_GPUS = Path("/dev/kfd")
"""There where an AMD card is, which torch calls `cuda` and NVML does not see."""

Resolve = Callable[[str], Config]


@dataclass(frozen=True)
class Needs:
    """What a job with its numbers takes."""

    plan: Plan
    estimate: Estimate
    device: str
    """auto, cpu or cuda."""
    card: str
    """The card that the job holds itself to, as `24GB`; empty: all of the real one."""
    steps: int
    every: int
    """Steps between two checkpoints, 0 where that is not known."""
    keep: int
    """Checkpoints that are kept, 0: all."""

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint: what is trained, and the optimizer's state of it."""
        from labassist.planner.formula import optimizer_bytes

        return self.plan.trained_bytes * self.plan.trainable + sum(optimizer_bytes(self.plan))

    @property
    def checkpoints(self) -> int:
        """How many checkpoints lie there at the end, the last step's included."""
        made = -(-self.steps // self.every) if self.every else 1
        return min(made, self.keep) if self.keep else made

    @property
    def host(self) -> float:
        """Bytes of the machine's memory where the training runs on the CPU; a checkpoint is copied before it is written."""
        inside = sum(size for name, size in self.estimate.parts.items() if name != "context")
        return PROCESS_GIB * GIB + ON_CPU * inside + self.checkpoint


@dataclass(frozen=True)
class Refusal:
    """Why a job does not fit here, and the `--set` that would make it fit, where one alone does."""

    what: str
    set: str = ""


def preflight(workspace: Workspace, job: Job, config: Config, profiles: Resolve | None = None) -> list[str]:
    """Return what a person should know before the job starts with these numbers.

    `profiles` gives the numbers of another profile with the same overrides; the largest one that fits is offered.
    Raises InputError where a package or an input is missing, where training samples cannot be read, and where memory
    or disk will not do.
    """
    from labassist.machine.sample import Sampler

    _packages(job)
    _inputs(workspace, job, config.flat)
    _rows(workspace, job, config.flat)
    if not job.memory:
        return []
    try:
        needs = needed(workspace.root, job, config.flat)
    except InputError as error:
        return [f"the memory that it needs is not estimated: {error}"]
    here = workspace.ledger if workspace.ledger.is_dir() else workspace.root
    with Sampler(artifacts.disk(here)) as sampler:
        machine = sampler.sample()
    refused = refusal(job, needs, machine)
    if refused is not None:
        raise InputError(
            refused.what,
            where=f"{job.name}, profile {config.profile}",
            mend=_offer(workspace.root, job, config, profiles, machine)
            or refused.set
            or "take a smaller model",
        )
    return _notes(job, needs)


def needed(root: Path, job: Job, flat: Mapping[str, Any]) -> Needs:
    """Return what a job takes with these numbers. Raises InputError where it cannot be planned."""
    from labassist.planner import arch
    from labassist.planner.memory import estimate
    from labassist.planner.plan import Plan

    values: dict[str, Any] = {}
    for key, value in job.memory.items():
        if isinstance(value, str) and value.startswith("$"):
            if value[1:] not in flat:
                raise InputError(f"this run has no {value[1:]!r}", where=f"{job.name}: memory.{key}")
            value = flat[value[1:]]
        values[key] = value
    given = {key: values[key] for key in Plan.__dataclass_fields__ if key in values and key != "model"}
    if "dtype" in given:
        given["dtype"] = DTYPES.get(given["dtype"], given["dtype"])
    if "lora_targets" in given:
        targets = given["lora_targets"]
        given["lora_targets"] = tuple(targets.split(",") if isinstance(targets, str) else targets)
    if "model" in values:
        own = root / values["model"]
        model = arch.load(str(own) if own.exists() else values["model"])
    else:
        model = arch.small(
            job.name, values["hidden"], values["layers"], values["heads"], values["vocabulary"], given["seq"]
        )
    plan = Plan(model, **given).checked()
    return Needs(
        plan,
        estimate(plan),
        values.get("device", "auto"),
        values.get("card", ""),
        values.get("steps", 0),
        values.get("checkpoint", 0),
        values.get("keep", 0),
    )


def refusal(job: Job, needs: Needs, machine: MachineSample) -> Refusal | None:
    """Return why a job does not fit on a machine, None where it does or where that cannot be told."""
    return _memory(job, needs, machine) or _disk(job, needs, machine)


def _memory(job: Job, needs: Needs, machine: MachineSample) -> Refusal | None:
    gpu = card(machine.gpus)
    if needs.device == "cuda" and gpu is None and not machine.gpus and not OTHER_GPUS.exists():
        why = f" ({machine.no_gpu})" if machine.no_gpu else ""
        return Refusal(f"it needs a GPU, and there is none here{why}", _set(job, "device", "cpu"))
    if needs.device == "cpu" or (needs.device == "auto" and gpu is None):
        free = machine.host.memory_total - machine.host.memory_used
        if needs.host <= free:
            return None
        return Refusal(
            f"it needs about {_gib(needs.host)} of memory, and {_gib(free)} of "
            f"{_gib(machine.host.memory_total)} are free",
            _smaller_batch(job, needs, lambda batch: batch.host <= free),
        )
    if gpu is None or gpu.memory_total is None:
        return None
    from labassist.planner.cards import find
    from labassist.planner.memory import MARGIN

    rehearsed = find(needs.card) if needs.card else None
    room = _free(gpu) if rehearsed is None else min(_free(gpu), int(rehearsed.usable_mib * MIB))

    def fits(other: Needs) -> bool:
        return other.estimate.total_gib * (1 + MARGIN) * GIB <= room

    if fits(needs):
        return None
    held = f"{_gib(room)} are free of {gpu.name}'s {_gib(gpu.memory_total)}"
    if rehearsed is not None and room < _free(gpu):
        held = f"{_gib(room)} are what a {rehearsed.name} leaves to it"
    return Refusal(
        f"it needs about {needs.estimate.total_gib:.1f} GiB of GPU memory, and {held}",
        _smaller_batch(job, needs, fits),
    )


def card(gpus: Sequence[GpuSample]) -> GpuSample | None:
    """Return the GPU that a trainer's `cuda` is: the first that CUDA_VISIBLE_DEVICES leaves; None: none, or not known.

    CUDA counts the fastest first unless told otherwise, so that of unlike cards the one with most room is taken.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        first = wanted.split(",")[0].strip()
        named = [
            gpu
            for gpu in gpus
            if first == str(gpu.index) or (first[:4] == "GPU-" and gpu.uuid.startswith(first))
        ]
        return named[0] if named else None
    alike = len({gpu.name for gpu in gpus}) < 2 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return gpus[0] if gpus and alike else max(gpus, key=_free, default=None)


def _free(gpu: GpuSample) -> int:
    return (gpu.memory_total or 0) - (gpu.memory_used or 0) - (gpu.memory_reserved or 0)


def _disk(job: Job, needs: Needs, machine: MachineSample) -> Refusal | None:
    free = machine.host.disk_free
    if free is None or not needs.steps:
        return None
    room = free - DISK_RESERVE
    if needs.checkpoint * needs.checkpoints <= room:
        return None
    count = needs.checkpoints
    what = f"its {count:,} checkpoints of {_gib(needs.checkpoint)}" if count > 1 else "its checkpoint"
    rarer = ""
    if room >= needs.checkpoint and needs.every:
        rarer = _set(job, "checkpoint", -(-needs.steps // (room // needs.checkpoint)))
    return Refusal(
        f"{what} need {_gib(needs.checkpoint * count)} of disk, and {_gib(free)} are free, of which "
        f"{_gib(DISK_RESERVE)} are kept for curves, logs and the ledger",
        rarer or f"free some space, or name a folder on a larger disk: {artifacts.VARIABLE}=DIR",
    )


def _smaller_batch(job: Job, needs: Needs, fits: Callable[[Needs], bool]) -> str:
    """Return the `--set` of the largest halving of the batch that fits, empty where none does."""
    from labassist.planner.memory import estimate

    batch = needs.plan.batch
    while batch > 1:
        batch //= 2
        plan = needs.plan.with_(batch=batch)
        if fits(replace(needs, plan=plan, estimate=estimate(plan))):
            return _set(job, "batch", batch)
    return ""


def _set(job: Job, name: str, value: object) -> str:
    """Return `take --set KEY=VALUE` where a word of the memory table stands for a key, else nothing."""
    key = job.memory.get(name)
    return f"take --set {key[1:]}={value}" if isinstance(key, str) and key.startswith("$") else ""


def _offer(root: Path, job: Job, config: Config, profiles: Resolve | None, machine: MachineSample) -> str:
    """Return the profile to take in place of one that does not fit: the one that needs most and fits."""
    found: list[tuple[float, str]] = []
    for name in job.profiles if profiles else ():
        if profiles is None or name == config.profile:
            continue
        with suppress(InputError):  # one that cannot be planned is not offered
            needs = needed(root, job, profiles(name).flat)
            if refusal(job, needs, machine) is None:
                found.append((needs.host, name))
    return f"take --profile {max(found)[1]}, which fits" if found else ""


def _notes(job: Job, needs: Needs) -> list[str]:
    if not needs.every or needs.every < needs.steps:
        return []
    mend = _set(job, "checkpoint", max(1, needs.steps // 4))
    return [
        "no checkpoint falls before the last step: a crash costs the whole run"
        + (f"; {mend}" if mend else "")
    ]


def _packages(job: Job) -> None:
    missing = [name for name in job.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"this job needs {', '.join(missing)}, which this Python does not have",
            where=job.name,
            mend=f"pip install {' '.join(missing)}",
        )


def _inputs(workspace: Workspace, job: Job, flat: Flat) -> None:
    """Raise InputError where a key that names an input names a file that is not there; an empty one names none."""
    for key in job.inputs:
        name = flat.get(key)
        if isinstance(name, str) and name and not (workspace.root / Path(name).expanduser()).exists():
            raise InputError(
                f"{name} is not there",
                where=f"{job.name}: {key}",
                mend=f"mend --set {key}=PATH, from the workspace",
            )


def _rows(workspace: Workspace, job: Job, flat: Flat) -> None:
    """Raise InputError at the first fault of a file of samples; a large one is read by the job alone."""
    from labassist.data import rows

    for key in job.rows:
        name = flat.get(key)
        path = workspace.root / Path(name).expanduser() if isinstance(name, str) and name else None
        if path is not None and path.is_file() and path.stat().st_size <= LARGEST_READ:
            found = rows.inspect(path)
            if found.problems:
                raise rows.first_fault(found, str(name))


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / MIB:.0f} MiB"
