"""Say before a replay whether it can be expected to be exact here.

Each difference between the record and this machine is listed with what it means. `breaks` is said only of
what is known to change arithmetic or data: PyTorch promises nothing across releases, devices or builds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from labassist.errors import CodeError
from labassist.ledger import environment, room
from labassist.ledger.gitcmd import open_repository
from labassist.ledger.kept import known_by, named, too_large
from labassist.ledger.objects import Objects
from labassist.record.protocol import file_sha256

COMPUTES = re.compile(
    r"^(torch|numpy|triton|bitsandbytes|transformers|peft|trl|accelerate|safetensors|datasets|tokenizers"
    r"|flash-attn|xformers|nvidia-(cublas|cudnn|nccl|cuda-runtime).*|mkl|intel-openmp)$"
)
"""Distributions whose version can change a value; others are noted only."""

_VECTOR_ISA = re.compile(r"^(avx|amx|fma|sse|neon|asimd|sve|f16c|vsx)")


class Difference(msgspec.Struct, omit_defaults=True):
    """One way in which this machine is not the recorded one."""

    what: str
    recorded: str
    here: str
    breaks: bool
    """True: an exact replay cannot be expected."""


def preflight(run: dict[str, Any], objects: Objects, workspace: Path) -> list[Difference]:
    """Return the differences for a run document, those that break exactness first."""
    found = [*_environment(run, objects), *_hardware(run, objects), *_data(run, objects, workspace)]
    found += _large(run, objects, workspace)
    if run["mode"] == "fast":
        found.append(Difference("mode", "fast", "fast", breaks=False))
    return sorted(found, key=lambda difference: not difference.breaks)


def _environment(run: dict[str, Any], objects: Objects) -> list[Difference]:
    recorded = objects.get_json(run["environment"])
    here = environment.environment()
    found = []
    for key in ("python", "implementation"):
        if recorded.get(key) != here.get(key):
            found.append(Difference(key, str(recorded.get(key)), str(here.get(key)), breaks=False))
    then, now = _versions(recorded), _versions(here)
    for name in sorted(then.keys() | now.keys()):
        a, b = then.get(name, "absent"), now.get(name, "absent")
        if a != b:
            found.append(Difference(name, a, b, breaks=bool(COMPUTES.match(name))))
    return found


def _versions(described: dict[str, Any]) -> dict[str, str]:
    pairs = (entry.partition("==")[::2] for entry in described.get("distributions", []))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def _hardware(run: dict[str, Any], objects: Objects) -> list[Difference]:
    recorded = objects.get_json(run["hardware"])
    here = environment.hardware()
    found = []
    then, now = recorded.get("cpu", {}), here.get("cpu", {})
    if then.get("model") != now.get("model"):
        found.append(Difference("cpu", str(then.get("model")), str(now.get("model")), breaks=False))
    a, b = _vector(then), _vector(now)
    if a != b:
        lost, gained = " ".join(sorted(a - b)), " ".join(sorted(b - a))
        found.append(Difference("vector instructions", lost or "-", gained or "-", breaks=True))
    gpus_then, gpus_now = recorded.get("gpus", []), here.get("gpus", [])
    used = bool(run.get("versions", {}).get("gpu"))
    for key in ("name", "compute_capability", "sm_count"):
        a_list, b_list = [g.get(key) for g in gpus_then], [g.get(key) for g in gpus_now]
        if a_list != b_list:
            found.append(Difference(f"gpu {key}", _words(a_list), _words(b_list), breaks=used))
    return found


def _vector(cpu: dict[str, Any]) -> set[str]:
    return {flag for flag in cpu.get("flags", []) if _VECTOR_ISA.match(flag)}


def _words(values: list[Any]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def _data(run: dict[str, Any], objects: Objects, workspace: Path) -> list[Difference]:
    found = []
    for given in room.inputs(run, objects):
        if given.get("stored") and objects.has(given["sha256"]):
            continue
        here = _here(workspace / given["path"], given["bytes"], given["sha256"])
        if here:
            found.append(Difference(f"input {given['name']}", given["path"], here, breaks=True))
    return found


def _large(run: dict[str, Any], objects: Objects, workspace: Path) -> list[Difference]:
    """Compare the files of the code that were too large to be kept; nobody knows whether the run reads them."""
    large = too_large(run["code"].get("extra", ""), objects)
    if not large:
        return []
    try:
        top = open_repository(workspace).top
    except CodeError:
        top = workspace
    by: dict[tuple[str, str], list[str]] = {}
    for kept in large:
        here = _here(top / kept.path, kept.bytes, kept.sha256)
        by.setdefault((f"by {known_by(kept)}", here), []).append(kept.path)
    return [Difference(named(paths), how, here, breaks=False) for (how, here), paths in by.items() if here]


def _here(path: Path, size: int, sha256: str) -> str:
    """Say of a file that a record has the hash of: missing, changed, or nothing where it is the same."""
    if not path.is_file():
        return "missing"
    same = path.stat().st_size == size and sha256 in ("", file_sha256(path))
    return "" if same else "changed"
