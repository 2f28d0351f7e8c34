"""What a run ran on: the software environment, the hardware, and which machine it was."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import labassist
from labassist.errors import LedgerError
from labassist.ledger import canonical
from labassist.ledger.records import Machine

_KNOWN_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_SEARCHED = ("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets", "numpy")
"""Distributions whose versions stand in a run's own document."""


def environment() -> dict[str, Any]:
    """Return python, the OS and every installed distribution, with a `digest` over all of it.

    Keys: `python` (its version), `implementation`, `build`, `compiler`, `os` {system, name, machine, libc,
    kernel}, `distributions` ["name==version", sorted], `digest`. The kernel's release is not part of the
    digest: another kernel computes the same.
    """
    libc = " ".join(part for part in platform.libc_ver() if part)
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "build": " ".join(platform.python_build()),
        "compiler": platform.python_compiler(),
        "os": {"system": platform.system(), "name": _os_name(), "machine": platform.machine(), "libc": libc},
        "distributions": distributions(),
    }
    facts["digest"] = hashlib.sha256(canonical.dumps(facts)).hexdigest()
    facts["os"]["kernel"] = platform.release()
    return facts


def distributions(paths: list[str] | None = None) -> list[str]:
    """Return `name==version` of every distribution that an import would find, sorted, names normalised.

    Read from the names of the `.dist-info` folders: parsing the metadata of 300 packages takes 100 ms.
    Of a name that is installed twice, the first on the path counts, as it does for an import.
    """
    found: dict[str, str] = {}
    for entry in dict.fromkeys(paths if paths is not None else sys.path):
        for name, version in sorted(_distributions_in(Path(entry or "."))):
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return sorted(f"{name}=={version}" for name, version in found.items())


def hardware() -> dict[str, Any]:
    """Return the CPU (model, flags, cores), the memory, and each GPU that NVML shows. Without one: no `gpus`.

    Keys: `cpu` {model, flags, cores, logical, usable}, `memory_bytes`, `driver`, `cuda_driver`, `gpus`
    [{name, uuid, compute_capability, memory_bytes, cuda_cores, sm_count, pcie_generation, pcie_width,
    nvlinks, power_limit_watts, ecc, mig}]. What a machine does not tell is absent.
    """
    facts: dict[str, Any] = {"cpu": _cpu()}
    with contextlib.suppress(ValueError, OSError):  # the sizes are not told on every system
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return facts | _gpus()


def machine() -> Machine:
    """Return which machine this is: a hash of /etc/machine-id, or an id made once for this user.

    The machine-id itself is not to be given away (machine-id(5)), and records travel. Raises LedgerError
    when there is none and none can be kept.
    """
    host = socket.gethostname()
    for place in _KNOWN_IDS:
        with contextlib.suppress(OSError):
            known = place.read_text().strip()
            if re.fullmatch(r"[0-9a-f]{32}", known):
                return Machine(id=hashlib.sha256(f"labassist {known}".encode()).hexdigest()[:32], host=host)
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "labassist"
    try:
        return Machine(id=_made_once(state / "machine-id"), host=host)
    except OSError as error:
        raise LedgerError(
            f"this machine has no id, and none can be kept: {error.strerror}",
            where=str(state),
            mend="set XDG_STATE_HOME to a folder that can be written",
        ) from error


def versions(hardware_facts: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the few facts worth searching: python, labassist, torch and its company, cpu, gpu, driver.

    Nothing is imported: versions come from the installed metadata. `hardware_facts` spares a second look.
    """
    facts = hardware_facts if hardware_facts is not None else hardware()
    told = {"python": platform.python_version(), "labassist": labassist.__version__}
    for name in _SEARCHED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            told[name] = importlib.metadata.version(name)
    told["cpu"] = facts["cpu"].get("model", "")
    names = [gpu.get("name", "") for gpu in facts.get("gpus", [])]
    kinds = [
        f"{names.count(name)}x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    ]
    told["gpu"] = ", ".join(kinds)
    told["driver"] = facts.get("driver", "")
    return {key: value for key, value in told.items() if value}


def _distributions_in(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and version of each distribution that lies in one folder of the path."""
    try:
        names = os.listdir(folder)
    except OSError:  # not every entry of sys.path is a folder that exists
        return
    for name in names:
        if name.endswith(".dist-info"):
            project, _, version = name.removesuffix(".dist-info").rpartition("-")
            if project:
                yield project, version
        elif name.endswith(".egg-info"):
            told = importlib.metadata.PathDistribution(folder / name).metadata
            if told is not None and told["Name"]:
                yield told["Name"], told["Version"] or ""


def _os_name() -> str:
    """Return the distribution's name and version, or the system's where it tells none."""
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()


def _cpu() -> dict[str, Any]:
    """Return model, instruction set flags and cores of the processor (flags from /proc/cpuinfo only)."""
    facts: dict[str, Any] = {"machine": platform.machine(), "logical": os.cpu_count() or 1}
    if hasattr(os, "sched_getaffinity"):
        facts["usable"] = len(os.sched_getaffinity(0))
    try:
        blocks = Path("/proc/cpuinfo").read_text().strip().split("\n\n")
    except OSError:
        return facts | {"model": platform.processor() or platform.machine()}
    fields = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.split("\n"))}
        for block in blocks
    ]
    first = fields[0]
    facts["model"] = first.get("model name") or first.get("Model") or platform.machine()
    facts["flags"] = sorted((first.get("flags") or first.get("Features") or "").split())
    facts["stepping"] = "-".join(first[key] for key in ("cpu family", "model", "stepping") if key in first)
    cores = {(one.get("physical id"), one.get("core id")) for one in fields if "core id" in one}
    facts["cores"] = len(cores) or facts["logical"]
    return facts


def _gpus() -> dict[str, Any]:
    """Return what NVML tells of the driver and each GPU; nothing where there is no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return {}
    except pynvml.NVMLError:  # no driver, or no GPU
        return {}
    try:
        facts = _told(
            driver=lambda: _text(pynvml.nvmlSystemGetDriverVersion()),
            cuda_driver=lambda: _cuda(pynvml.nvmlSystemGetCudaDriverVersion()),
            count=pynvml.nvmlDeviceGetCount,
        )
        facts["gpus"] = [_gpu(pynvml, number) for number in range(facts.pop("count", 0))]
        return facts
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, number: int) -> dict[str, Any]:
    """Return what NVML tells of one GPU."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
    except nvml.NVMLError as error:
        return {"error": str(error)}
    return _told(
        name=lambda: _text(nvml.nvmlDeviceGetName(handle)),
        uuid=lambda: _text(nvml.nvmlDeviceGetUUID(handle)),
        compute_capability=lambda: ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle))),
        memory_bytes=lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        cuda_cores=lambda: int(nvml.nvmlDeviceGetNumGpuCores(handle)),
        sm_count=lambda: _sm_count(nvml, handle),
        pcie_generation=lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
        pcie_width=lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        nvlinks=lambda: _nvlinks(nvml, handle),
        power_limit_watts=lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        ecc=lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
        mig=lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
    )


def _told(**questions: Callable[[], Any]) -> dict[str, Any]:
    """Ask each question by itself: what a driver, a card or a container does not answer is left out."""
    import pynvml

    answers = {}
    for name, ask in questions.items():
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            answers[name] = ask()
    return answers


def _sm_count(nvml: Any, handle: Any) -> int:
    """Return the number of SMs: NVML tells the CUDA cores, and each architecture has so many in an SM.

    Source of the cores an SM: the throughput table of NVIDIA's CUDA programming guide. A later
    architecture that it does not list yet is taken as 128, as all have had since 8.6.
    """
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    in_one = 64 if (major, minor) in ((6, 0), (7, 0), (7, 2), (7, 5), (8, 0)) else 128
    return int(nvml.nvmlDeviceGetNumGpuCores(handle)) // in_one


def _nvlinks(nvml: Any, handle: Any) -> int:
    """Return how many NVLink links are up. Raises NVMLError where the card is not asked about links."""
    active = int(nvml.nvmlDeviceGetNvLinkState(handle, 0))
    for link in range(1, nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += int(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:  # this card has no more
            break
    return active


def _cuda(number: int) -> str:
    """Return a CUDA version from NVML's number: 13020 is 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: str | bytes) -> str:
    """Return what NVML gave as text; older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _made_once(place: Path) -> str:
    """Return the id kept in `place`, making it at the first time; of two makers at once, one wins."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        temporary.write_text(secrets.token_hex(16) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, place)
        temporary.unlink()
    return place.read_text().strip()
