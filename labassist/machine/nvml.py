"""NVIDIA GPUs through NVML (nvidia-ml-py), where every single call may fail.

Nothing is loaded before the first `Nvml()`. No driver, no library, no GPU: `gpus` is empty and `reason` says why.
A call that one card lacks (a GeForce without ECC, a data-centre card without a fan) leaves that reading absent, and
is not tried again on that card. Costs measured on an H200: most calls 5 to 15 microseconds; PCIe throughput 20 ms
(it samples), energy 2.4 ms, violation status 0.5 ms: those three are in `Gpu.read_slow`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from labassist.machine import throttle
from labassist.machine.readings import GpuProcess, GpuSample, GpuSlow

# NVML return codes that will not change while this process lives: invalid argument, not supported,
# no permission, function not found (an older driver), version mismatch, deprecated.
_FOR_GOOD = frozenset({2, 3, 4, 13, 25, 26})

_START = {
    4: "no permission to use the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    12: "no NVIDIA driver (libnvidia-ml.so.1 not found)",
    17: "the operating system blocks the NVIDIA driver",
    18: "the NVIDIA driver and its library differ in version: reboot, or reload the driver",
}

_TEMPERATURE_GPU = 0
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_PCIE_TX, _PCIE_RX = 0, 1
_POLICY_POWER, _POLICY_THERMAL = 0, 1

# The inode of the first pid namespace, fixed in the kernel (include/linux/proc_ns.h).
_HOST_PIDS = "pid:[4026531836]"


class Nvml:
    """A session with the driver: `gpus`, or the `reason` why there are none."""

    def __init__(self) -> None:
        self.gpus: list[Gpu] = []
        self.reason = ""
        self._library: Any = None
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
            return
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            self.reason = _START.get(error.value, f"NVML does not start: {error}")
            return
        self._library = library
        try:
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            self.reason = f"NVML cannot count the GPUs: {error}"
            return
        self.gpus = [Gpu(library, index) for index in range(count)]
        if not self.gpus:
            self.reason = "the NVIDIA driver is there, but shows no GPU"

    def close(self) -> None:
        """End the session. Safe to call twice."""
        library, self._library = self._library, None
        self.gpus = []
        if library is not None:
            try:
                library.nvmlShutdown()
            except library.NVMLError as error:
                self.reason = f"NVML does not stop: {error}"


class Gpu:
    """One GPU: asks each reading alone and remembers which ones it never gives."""

    def __init__(self, library: Any, index: int) -> None:
        self.index = index
        self._library = library
        self._never: dict[str, str] = {}
        self._absent: dict[str, str] = {}
        self._handle: Any = None
        self._fixed: dict[str, Any] | None = None

    def read(self, own: frozenset[int] = frozenset()) -> GpuSample:
        """Return the cheap readings. `own`: pids whose processes, and their descendants, are marked as ours."""
        self._absent = {}
        sample = GpuSample(index=self.index)
        if not self._find():
            sample.absent = self._absent
            return sample
        for name, value in self._identity().items():
            setattr(sample, name, value)
        self._read_memory(sample)
        rates = self._ask("util", "nvmlDeviceGetUtilizationRates")
        if rates is not None:
            sample.util, sample.memory_util = int(rates.gpu), int(rates.memory)
        sample.power = _scaled(self._ask("power", "nvmlDeviceGetPowerUsage"), 1e-3)
        sample.power_limit = _scaled(self._ask("power_limit", "nvmlDeviceGetEnforcedPowerLimit"), 1e-3)
        sample.temperature = self._ask("temperature", "nvmlDeviceGetTemperature", _TEMPERATURE_GPU)
        sample.sm_clock = self._ask("sm_clock", "nvmlDeviceGetClockInfo", _CLOCK_SM)
        sample.memory_clock = self._ask("memory_clock", "nvmlDeviceGetClockInfo", _CLOCK_MEMORY)
        # The older of two names of one call: drivers before 535 have only this one.
        sample.throttle_bits = self._ask("throttle", "nvmlDeviceGetCurrentClocksThrottleReasons")
        if sample.throttle_bits is not None:
            sample.throttle = throttle.names(sample.throttle_bits)
        sample.fan = self._ask("fan", "nvmlDeviceGetFanSpeed")
        sample.pcie_gen = self._ask("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration")
        sample.pcie_width = self._ask("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth")
        sample.processes = self._processes(own)
        sample.absent = self._absent
        return sample

    def read_slow(self) -> GpuSlow:
        """Return the readings that take milliseconds each (about 45 ms together on an H200)."""
        self._absent = {}
        slow = GpuSlow(time=time.time(), absent=self._absent)
        if self._find():
            slow.pcie_tx = _scaled(self._ask("pcie_tx", "nvmlDeviceGetPcieThroughput", _PCIE_TX), 1e3)
            slow.pcie_rx = _scaled(self._ask("pcie_rx", "nvmlDeviceGetPcieThroughput", _PCIE_RX), 1e3)
            slow.energy = _scaled(self._ask("energy", "nvmlDeviceGetTotalEnergyConsumption"), 1e-3)
            power = self._ask("power_capped", "nvmlDeviceGetViolationStatus", _POLICY_POWER)
            thermal = self._ask("thermal_capped", "nvmlDeviceGetViolationStatus", _POLICY_THERMAL)
            slow.power_capped = _scaled(getattr(power, "violationTime", None), 1e-9)
            slow.thermal_capped = _scaled(getattr(thermal, "violationTime", None), 1e-9)
        return slow

    def _find(self) -> bool:
        if self._handle is None:
            get = self._library.nvmlDeviceGetHandleByIndex
            self._handle = self._call("handle", lambda: get(self.index))
        return self._handle is not None

    def _identity(self) -> dict[str, Any]:
        """Return what does not change, asked once."""
        if self._fixed is None:
            self._fixed = {
                "name": _decoded(self._ask("name", "nvmlDeviceGetName")),
                "uuid": _decoded(self._ask("uuid", "nvmlDeviceGetUUID")),
                "sm_clock_max": self._ask("sm_clock_max", "nvmlDeviceGetMaxClockInfo", _CLOCK_SM),
                "memory_clock_max": self._ask("memory_clock_max", "nvmlDeviceGetMaxClockInfo", _CLOCK_MEMORY),
                "pcie_gen_max": self._ask("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
                "pcie_width_max": self._ask("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
            }
        return self._fixed

    def _read_memory(self, sample: GpuSample) -> None:
        # Version 2 of the call tells reserved memory apart from used, as nvidia-smi does since driver 510. Some
        # WSL drivers have it and fail it; with those, and before 510, nvidia-smi shows version 1's number.
        memory = self._ask("memory_reserved", "nvmlDeviceGetMemoryInfo", self._library.nvmlMemory_v2)
        if memory is not None:
            sample.memory_reserved = int(memory.reserved)
        else:
            memory = self._ask("memory", "nvmlDeviceGetMemoryInfo")
        if memory is not None:
            sample.memory_used, sample.memory_total = int(memory.used), int(memory.total)

    def _processes(self, own: frozenset[int]) -> list[GpuProcess] | None:
        found: dict[int, GpuProcess] = {}
        answered = False
        for kind in ("Compute", "Graphics"):
            listed = self._ask(f"{kind.lower()}_processes", f"nvmlDeviceGet{kind}RunningProcesses")
            answered = answered or listed is not None
            for process in listed or []:
                pid = int(process.pid)
                found[pid] = GpuProcess(pid, process.usedGpuMemory, is_own(pid, own))
        return [found[pid] for pid in sorted(found)] if answered else None

    def _ask(self, reading: str, function: str, *arguments: Any) -> Any:
        """Return what one NVML call gives, or None, with the reason in `absent`."""
        if reading in self._never:
            self._absent[reading] = self._never[reading]
            return None
        call = getattr(self._library, function, None)
        if call is None:
            self._absent[reading] = self._never[reading] = f"this nvidia-ml-py lacks {function}"
            return None
        return self._call(reading, lambda: call(self._handle, *arguments))

    def _call(self, reading: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._library.NVMLError as error:
            self._absent[reading] = str(error)
            if error.value in _FOR_GOOD:
                self._never[reading] = str(error)
        except getattr(self._library, "NVMLLibraryMismatchError", ()) as error:
            self._absent[reading] = self._never[reading] = " ".join(str(error).split())
        return None


def mib(size: int) -> int:
    """Return bytes as the whole MiB that nvidia-smi prints: rounded up.

    Measured with driver 580.159 on an H200: 1,010.81 MiB used is printed as 1011, 615.06 reserved as 616.
    """
    return -(-size >> 20)


def is_own(pid: int, own: frozenset[int]) -> bool | None:
    """Say whether `pid`, as NVML gives it, is one of `own` or descends from one; None: it cannot be told."""
    if not own or not _sees_host_pids():
        return None
    if pid in own:
        return True
    try:
        return any(parent.pid in own for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return None  # it ended a moment ago, or belongs to someone who hides it


def _sees_host_pids() -> bool:
    # NVML reports pids of the host. In a pid namespace of our own the same number is somebody else.
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _HOST_PIDS
    except OSError:
        return not Path("/proc/self").exists()


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _decoded(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
