"""What `labassist doctor` says of the machine: python, torch, bitsandbytes, git, the terminal, the hub, locks."""

from __future__ import annotations

import fcntl
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

Level = Literal["ok", "note", "warning", "problem"]

HUB = "https://huggingface.co"
HUB_S = 4.0
"""Seconds that the hub may take to answer."""

OLDEST_PYTHON = (3, 11)


class Finding(msgspec.Struct):
    """One line of the doctor's answer. `warning` costs something sooner or later, `problem` is in the way now."""

    about: str
    level: Level
    says: str
    mend: str = ""


def python() -> list[Finding]:
    """Look at the interpreter."""
    said = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return [Finding("python", "problem", said, "install Python 3.11 or later")]
    if sys.maxsize < 2**32:
        return [Finding("python", "problem", f"{said}, of 32 bits", "torch needs a Python of 64 bits")]
    return [Finding("python", "ok", said)]


def stack(told: Mapping[str, Any], hardware: Mapping[str, Any]) -> list[Finding]:
    """Judge what `labassist.finetune.stack.ask` and `labassist.ledger.environment.hardware` told."""
    gpus = [gpu.get("name", "a GPU") for gpu in hardware.get("gpus", [])]
    if told.get("missing"):
        return [Finding("torch", "problem", "is not installed", "pip install 'labassist[loop]'")]
    if "error" in told:
        mend = "install it again: pip install --force-reinstall torch"
        return [Finding("torch", "problem", told["error"], mend)]
    return [_torch(told, hardware, gpus), _bitsandbytes(told, bool(gpus))]


def _torch(told: Mapping[str, Any], hardware: Mapping[str, Any], gpus: list[str]) -> Finding:
    build = (
        f"CUDA {told['cuda']}" if told.get("cuda") else f"ROCm {told['hip']}" if told.get("hip") else "CPU"
    )
    said = f"{told['torch']}, built for {build}"
    driver, most = hardware.get("driver", ""), hardware.get("cuda_driver", "")
    if told.get("available"):
        bad = [device for device in told.get("devices", []) if not device["works"]]
        if bad:
            kind = ".".join(map(str, bad[0]["capability"]))
            why = bad[0].get("error", "a product of two matrices comes out wrong")
            return Finding(
                "torch",
                "problem",
                f"{said}, does not compute on {bad[0]['name']} (compute capability {kind}): {why}",
                f"install a torch whose builds include it; this one has {' '.join(told.get('arches', []))}",
            )
        cards = ", ".join(device["name"] for device in told.get("devices", []))
        behind = f", driver {driver} (CUDA {most})" if driver else ""
        return Finding("torch", "ok", f"{said}, computes on {cards}{behind}")
    if not gpus:
        return Finding("torch", "ok", f"{said}; no NVIDIA GPU is seen here, so it trains on the CPU")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1", "none", "NoDevFiles"):
        return Finding(
            "torch",
            "warning",
            f"{said}; CUDA_VISIBLE_DEVICES={hidden!r} hides {gpus[0]}",
            "unset CUDA_VISIBLE_DEVICES",
        )
    if not told.get("cuda"):
        return Finding(
            "torch",
            "problem",
            f"{said}, and there is {gpus[0]}",
            f"install the torch build for CUDA {most or 'of your driver'} or older",
        )
    if most and _number(told["cuda"]) > _number(most):
        return Finding(
            "torch",
            "problem",
            f"{said}, and driver {driver} knows CUDA up to {most}",
            f"take a newer driver, or a torch for CUDA {most} or older",
        )
    why = told.get("cuda_error") or "it says no more"
    return Finding("torch", "problem", f"{said}, and CUDA does not start: {why}", "see `nvidia-smi`")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _bitsandbytes(told: Mapping[str, Any], gpu: bool) -> Finding:
    about = "bitsandbytes"
    version, error = told.get("bitsandbytes"), told.get("bitsandbytes_error")
    if error:
        mend = "pip install -U bitsandbytes; `python -m bitsandbytes` says what it looks for"
        return Finding(about, "problem" if gpu else "warning", error, mend)
    if version is None:
        mend = "pip install 'labassist[train]'"
        return Finding(about, "note", "is not installed; only 4-bit and 8-bit training needs it", mend)
    which = "has a library for this CUDA" if told.get("available") else "works on the CPU"
    return Finding(about, "ok", f"{version}, {which}")


def git(folder: Path) -> list[Finding]:
    """Look for git, and for who commits in `folder`."""
    program = shutil.which("git")
    if program is None:
        mend = "install git; Debian and Ubuntu: apt-get install git"
        return [Finding("git", "problem", "there is no git program", mend)]

    def told(*words: str) -> str:
        done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    version = told("--version").removeprefix("git version ")
    name, address = told("config", "user.name"), told("config", "user.email")
    if not (name and address):
        mend = 'git config --global user.name "You"; git config --global user.email you@example.org'
        return [Finding("git", "warning", f"{version}; it does not know who you are", mend)]
    return [Finding("git", "ok", f"{version}, commits as {name} <{address}>")]


def terminal(environ: Mapping[str, str]) -> list[Finding]:
    """Look at what the terminal app can show: UTF-8, colours, size."""
    found = []
    charset = locale.getpreferredencoding(False)
    stream = getattr(sys.stdout, "encoding", None) or charset
    utf8 = all(one.lower().replace("-", "") == "utf8" for one in (charset, stream))
    if not utf8:
        mend = "export LANG=C.UTF-8, or start the app with --ascii"
        found.append(Finding("terminal", "warning", f"its character set is {stream}, not UTF-8", mend))
    kind = environ.get("TERM", "")
    if kind in ("", "dumb", "unknown"):
        mend = "export TERM=xterm-256color where the terminal is one"
        found.append(
            Finding("terminal", "warning", f"TERM is {kind or 'not set'}: the app cannot draw", mend)
        )
    size = shutil.get_terminal_size()
    if sys.stdout.isatty() and (size.columns < 80 or size.lines < 24):
        mend = "make the window larger"
        found.append(
            Finding("terminal", "warning", f"{size.columns}x{size.lines}; the app wants 80x24", mend)
        )
    if not found:
        found.append(Finding("terminal", "ok", f"{kind}, UTF-8, {_colours(environ)}"))
    return found


def _colours(environ: Mapping[str, str]) -> str:
    if environ.get("NO_COLOR"):
        return "no colours (NO_COLOR)"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "all colours"
    return "256 colours" if "256" in environ.get("TERM", "") else "16 colours"


def hub(environ: Mapping[str, str], timeout: float = HUB_S) -> list[Finding]:
    """Ask the hub, or the mirror that HF_ENDPOINT names, for one small answer."""
    if any(
        environ.get(name, "").lower() in ("1", "true", "yes", "on")
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    ):
        return [
            Finding("hub", "note", "offline mode: only models that are here already", "unset HF_HUB_OFFLINE")
        ]
    place = environ.get("HF_ENDPOINT", HUB).rstrip("/")
    mend = (
        "set HF_ENDPOINT to a mirror that can be reached; the labs' own models need no network"
        if place == HUB
        else "mend HF_ENDPOINT, or unset it"
    )
    if not place.startswith(("https://", "http://")):
        return [Finding("hub", "warning", f"HF_ENDPOINT={place} is no address", "give one with https://")]
    request = urllib.request.Request(f"{place}/api/models/gpt2", headers={"User-Agent": "labassist"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        return [Finding("hub", "warning", f"{place} answers with status {error.code}", mend)]
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        return [Finding("hub", "warning", f"{place} cannot be reached: {why}", mend)]
    return [Finding("hub", "ok", f"{place} answers")]


def locks(folder: Path) -> list[Finding]:
    """Try whether files in `folder` can be written, and whether a lock keeps a second one out."""
    where = f"of {folder}"
    try:
        with (
            tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as first,
            open(first.name, "rb") as second,
        ):
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.fsync(first.fileno())
                return [Finding("locks", "ok", f"the file system {where} has working locks")]
    except PermissionError:
        mend = "read-only is enough to look; to record, copy the workspace to where you may write"
        return [Finding("locks", "problem", f"{folder} cannot be written", mend)]
    except OSError as error:
        mend = "keep the workspace on a local disk"
        return [Finding("locks", "problem", f"the file system {where} has no locks: {error.strerror}", mend)]
    mend = "keep the workspace on a local disk: two processes would destroy the ledger"
    return [Finding("locks", "problem", f"the file system {where} grants one lock twice", mend)]
