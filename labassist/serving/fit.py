"""Does a server fit on this machine, and how its memory is divided: said before minutes of loading are spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labassist.errors import InputError
from labassist.finetune.model_folder import WEIGHTS
from labassist.planner import arch, inference
from labassist.planner.plan import Plan
from labassist.runs.preflight import card
from labassist.serving.place import Engine
from labassist.serving.target import Options, Target

if TYPE_CHECKING:
    from labassist.machine.readings import MachineSample

GIB = 2**30

CPU_PROCESSES_GIB = 2.6
"""What the three processes of vLLM hold on a CPU beside weights and cache: 2.5 GiB were measured (0.7 + 0.65 + 1.15)
of a model of 135M, and vLLM 0.32.0."""

CPU_CACHE_GIB = (1, 8)
"""The cache's bounds where nobody asked: VLLM_CPU_KVCACHE_SPACE is whole GiB."""

CPU_SEQUENCES = 4
"""Whole sequences that the cache of a CPU server is to hold, where nobody asked."""


@dataclass
class Fit:
    """How a server's memory is divided. GiB."""

    weights: float
    cache_a_sequence: float
    """Keys and values of one sequence of the longest length."""
    needs: float
    """The least that it can start with: one such sequence."""
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def fit(engine: Engine, served: Target, options: Options, machine: MachineSample) -> Fit | None:
    """Return the division of memory; None where the model's shape is not known to the planner.

    Raises InputError where the server cannot fit, with what would make it.
    """
    weights = _weights(served, options) / GIB
    length = served.length(options)
    try:
        shape = arch.load(str(served.model.folder))
        plan = Plan(
            shape, method="inference", dtype="fp32" if options.dtype == "float32" else "bf16", seq=length
        )
        one = inference.cache_bytes_a_token(plan.checked()) * length / GIB
    except InputError as error:
        served.notes.append(f"whether it fits is not estimated: {error}")
        return None
    least = weights + one + (CPU_PROCESSES_GIB if engine.cpu else inference.VLLM_OVERHEAD_GIB)
    found = Fit(weights, one, least)
    (_on_cpu if engine.cpu else _on_card)(found, options, length, machine)
    return found


def _on_cpu(found: Fit, options: Options, length: int, machine: MachineSample) -> None:
    total = machine.host.memory_total / GIB
    free = (machine.host.memory_total - machine.host.memory_used) / GIB
    if options.memory_fraction is not None:
        cache = math.floor(options.memory_fraction * total - found.weights - CPU_PROCESSES_GIB)
        if cache < 1 or cache < found.cache_a_sequence:
            raise InputError(
                f"{options.memory_fraction:g} of {total:.1f} GiB leave no room for a cache beside weights "
                f"({found.weights:.1f}) and vLLM itself ({CPU_PROCESSES_GIB:g})",
                where="--memory-fraction",
                mend=_smaller(found, length, options.memory_fraction * total, CPU_PROCESSES_GIB),
            )
    else:
        low, high = CPU_CACHE_GIB
        most = math.floor(free - found.weights - CPU_PROCESSES_GIB)
        wanted = max(low, min(high, math.ceil(CPU_SEQUENCES * found.cache_a_sequence)))
        cache = max(low, min(wanted, most), math.ceil(found.cache_a_sequence))
    needs = found.weights + CPU_PROCESSES_GIB + cache
    if needs > free:
        raise InputError(
            f"it needs about {needs:.1f} GiB of memory (weights {found.weights:.1f}, cache {cache}), and {free:.1f} "
            f"of {total:.1f} GiB are free",
            where="serve",
            mend=_smaller(found, length, free, CPU_PROCESSES_GIB),
        )
    found.env["VLLM_CPU_KVCACHE_SPACE"] = str(cache)
    found.notes.append(f"about {needs:.1f} GiB of memory, {cache} of them for keys and values")


def _on_card(found: Fit, options: Options, length: int, machine: MachineSample) -> None:
    gpu = card(machine.gpus)
    if gpu is None or not gpu.memory_total:
        return
    share = options.memory_fraction or inference.VLLM_UTILISATION
    total = gpu.memory_total / GIB
    free = (gpu.memory_total - (gpu.memory_used or 0) - (gpu.memory_reserved or 0)) / GIB
    takes = share * total
    if takes > free:
        lower = math.floor(100 * 0.98 * free / total) / 100
        raise InputError(
            f"vLLM takes {share:.0%} of the card whatever the model needs ({takes:.1f} GiB), and {free:.1f} of "
            f"{gpu.name}'s {total:.1f} GiB are free",
            where="--memory-fraction",
            mend=f"give --memory-fraction {lower:g}"
            if lower * total > found.needs
            else "stop what is on the card",
        )
    if found.needs > takes:
        raise InputError(
            f"it needs about {found.needs:.1f} GiB (weights {found.weights:.1f}, one sequence of {length:,} tokens "
            f"{found.cache_a_sequence:.2f}), and {share:.0%} of {gpu.name}'s {total:.1f} GiB are {takes:.1f}",
            where="serve",
            mend=_smaller(found, length, takes, inference.VLLM_OVERHEAD_GIB),
        )
    sequences = int((takes - found.needs + found.cache_a_sequence) / found.cache_a_sequence)
    found.notes.append(
        f"{takes:.1f} of {gpu.name}'s {total:.1f} GiB, of which about {found.weights:.1f} are weights: room for about "
        f"{sequences:,} sequences of {length:,} tokens"
    )


def _smaller(found: Fit, length: int, room: float, overhead: float) -> str:
    """Return what would fit into `room`: a shorter length where one does."""
    left = room - found.weights - overhead
    tokens = int(left / found.cache_a_sequence * length) if left > 0 else 0
    shorter = 2 ** int(math.log2(tokens)) if tokens >= 256 else 0
    if shorter and shorter < length:
        return f"give --max-len {shorter}, or a larger --memory-fraction"
    return (
        "take a smaller or a quantised model (labassist plan memory --method inference says what each needs)"
    )


def _weights(served: Target, options: Options) -> int:
    size = sum(path.stat().st_size for path in served.model.folder.glob(f"*{WEIGHTS}"))
    return 2 * size if options.dtype == "float32" else size
