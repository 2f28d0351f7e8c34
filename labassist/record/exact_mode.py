"""Exact mode for a script that is run alone: what must be set before anything else, by one first line.

    from labassist import record
    record.exact(seed=7)

PYTHONHASHSEED, the thread counts and the cuBLAS workspace are read when Python, OpenMP and CUDA start, so
the script is started once more with them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from labassist.errors import InputError
from labassist.record import protocol
from labassist.record.environment import cores, environment_for

_AGAIN = "LABASSIST_EXACT"
"""Set in the second start, so that there is no third."""

asked: dict[str, Any] = {}
"""What `exact` did in this process: `mode`, `seed`, `threads`; empty where it was not called."""


def exact(seed: int = protocol.DEFAULT_SEED, threads: int = 0) -> None:
    """Make this process repeatable bit for bit, as far as torch promises it; the first line of a script.

    Re-executes the script once where the environment lacks what exact mode needs, then seeds every
    generator and chooses deterministic kernels. `threads` is the intra-op count, 0 for OMP_NUM_THREADS or
    every core. Under `labassist run` the mode, seed and threads of the run count in place of these. Raises
    InputError where the script cannot be started again (a notebook, a script from standard input).
    """
    from labassist.record import determinism

    if os.environ.get(protocol.RUN_DIR):
        order = protocol.read_order()
        mode, seed, threads = order.mode, order.seed, order.threads
    else:
        protocol.show_one_line_errors()
        mode, threads = "exact", threads or _threads()
        _start_again(environment_for(mode, seed, threads))
    determinism.apply(mode, seed, threads)
    asked.update(mode=mode, seed=seed, threads=threads)


def _threads() -> int:
    told = os.environ.get("OMP_NUM_THREADS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return cores()


def _start_again(wanted: dict[str, str]) -> None:
    """Execute this script anew with the variables that it lacks; return where it has them all."""
    lacking = [name for name, value in wanted.items() if os.environ.get(name) != value]
    again = os.environ.pop(_AGAIN, "")
    if not lacking:
        return
    words = " ".join(f"{name}={wanted[name]}" for name in lacking)
    command = sys.orig_argv[1:]
    interactive = not command or hasattr(sys, "ps1") or sys.argv[0] in ("", "-") or "ipykernel" in sys.modules
    if again or interactive:
        raise InputError(
            "this program cannot be started again with the environment that exact mode needs",
            where="record.exact()",
            mend=f"start it with {words}",
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *command], {**os.environ, **wanted, _AGAIN: "1"})
