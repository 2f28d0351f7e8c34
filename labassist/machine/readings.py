"""The shapes of one look at the machine. A value that could not be read is None, never a made-up zero."""

from __future__ import annotations

from typing import Literal

import msgspec

Scope = Literal["host", "container"]


class GpuProcess(msgspec.Struct, omit_defaults=True):
    """A process that holds memory on a GPU."""

    pid: int
    """As NVML gives it: inside a container this is a pid of the host."""
    memory: int | None = None
    """Bytes on this GPU."""
    own: bool | None = None
    """True: one of our run's processes. None: cannot be told (NVML's pids are not those of this namespace)."""


class GpuSlow(msgspec.Struct, omit_defaults=True):
    """Readings that cost milliseconds each, taken less often."""

    time: float
    """When they were taken: seconds since the epoch."""
    pcie_tx: float | None = None
    """Bytes/s from the GPU to the host, over the driver's last 20 ms."""
    pcie_rx: float | None = None
    """Bytes/s from the host to the GPU, over the driver's last 20 ms."""
    energy: float | None = None
    """Joules since the driver was loaded."""
    power_capped: float | None = None
    """Seconds below the wanted clock because of the power limit, since the driver was loaded."""
    thermal_capped: float | None = None
    """Seconds below the wanted clock because of heat, since the driver was loaded."""
    absent: dict[str, str] = {}
    """Reading -> why this GPU did not give it."""


class GpuSample(msgspec.Struct, omit_defaults=True):
    """One GPU at one moment."""

    index: int
    """NVML's number (PCI bus order, as in nvidia-smi), whatever CUDA_VISIBLE_DEVICES says."""
    name: str = ""
    uuid: str = ""
    util: int | None = None
    """Percent of the last period in which any kernel ran: 100 does not mean efficient."""
    memory_util: int | None = None
    """Percent of the last period in which device memory was read or written."""
    memory_used: int | None = None
    """Bytes allocated, without what the driver reserves for itself: nvidia-smi's memory.used."""
    memory_total: int | None = None
    """Bytes."""
    memory_reserved: int | None = None
    """Bytes that the driver keeps for itself; None with drivers before 510, which count them as used."""
    power: float | None = None
    """Watts; the mean over a second on Ampere (not GA100) and later, else at the moment."""
    power_limit: float | None = None
    """Watts, the limit in force."""
    temperature: int | None = None
    """Degrees Celsius."""
    sm_clock: int | None = None
    """MHz."""
    sm_clock_max: int | None = None
    """MHz."""
    memory_clock: int | None = None
    """MHz."""
    memory_clock_max: int | None = None
    """MHz."""
    throttle_bits: int | None = None
    """NVML's clock event reasons as they came."""
    throttle: list[str] | None = None
    """The same by name (`labassist.machine.throttle`), unknown bits in hex."""
    fan: int | None = None
    """Percent of the full speed; absent on cards without a fan of their own."""
    pcie_gen: int | None = None
    """Now; an idle link drops to 1, so judge it under load only."""
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    """Lanes now."""
    pcie_width_max: int | None = None
    processes: list[GpuProcess] | None = None
    slow: GpuSlow | None = None
    absent: dict[str, str] = {}
    """Reading -> why this GPU did not give it."""


class HostSample(msgspec.Struct, omit_defaults=True):
    """CPU, memory and disk: the container's where one sets limits, else the machine's."""

    cores: float
    """CPUs this process may use: the smaller of its affinity and the container's quota."""
    memory_used: int
    """Bytes; without caches that the kernel can drop."""
    memory_total: int
    """Bytes: the container's limit where it is below the machine's memory."""
    cpu: float | None = None
    """Percent of `cores` in use since the last sample; None in the first one."""
    per_core: list[float] | None = None
    """Percent of each CPU in the affinity mask; of the machine, not only of the container."""
    cpu_scope: Scope = "host"
    memory_scope: Scope = "host"
    load: tuple[float, float, float] | None = None
    """Mean number of runnable tasks over 1, 5 and 15 minutes, of the whole machine."""
    disk_free: int | None = None
    """Bytes free to this user where the sampler was told to look."""
    disk_total: int | None = None
    """Bytes."""


class MachineSample(msgspec.Struct, omit_defaults=True):
    """One look at the machine."""

    time: float
    """Seconds since the epoch."""
    host: HostSample
    gpus: list[GpuSample] = []
    no_gpu: str = ""
    """Why `gpus` is empty, in words; empty when it is not."""
