from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from labassist.machine.cgroup import Container
from labassist.machine.host import Host
from labassist.machine.line import bar, machine_line
from labassist.machine.nvml import Nvml, is_own, mib
from labassist.machine.readings import GpuSample, HostSample, MachineSample
from labassist.machine.sample import Sampler

REPOSITORY = Path(__file__).parent.parent
GIB = 1 << 30


def has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what is imported, and when


def test_importing_and_building_a_sampler_loads_no_torch_textual_or_pynvml() -> None:
    code = (
        "import sys; from labassist.machine.sample import Sampler; from labassist.machine.line import machine_line;"
        "s = Sampler(); before = 'pynvml' in sys.modules; s.sample();"
        "print(before, 'pynvml' in sys.modules, [m for m in ('torch', 'textual', 'numpy') if m in sys.modules])"
    )
    assert python(code).split(maxsplit=2) == ["False", "True", "[]\n"]


# --- the host, really sampled


def test_the_host_is_sampled_within_its_limits() -> None:
    host = Host(Path.cwd())
    spin = time.monotonic() + 0.3
    while time.monotonic() < spin:
        pass
    sample = host.sample()
    assert sample.cpu is not None
    assert 0 < sample.cpu <= 100
    assert sample.cpu * sample.cores > 10  # of one core, however many there are
    assert 0 < sample.cores <= (os.cpu_count() or 1)
    assert 0 < sample.memory_used < sample.memory_total <= psutil.virtual_memory().total
    assert sample.disk_free is not None
    assert sample.disk_total is not None
    assert 0 < sample.disk_free <= sample.disk_total
    assert all(0 <= core <= 100 for core in sample.per_core or [])


def test_used_memory_is_what_the_kernel_could_not_give_out() -> None:
    """Filling memory proves nothing: a virtual machine may be given more while it runs."""
    sample = Host(Path.cwd()).sample()
    if sample.memory_scope != "host":
        assert 0 < sample.memory_used <= sample.memory_total
        return
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    assert abs(sample.memory_used - (total - available)) < 512 << 20


def test_a_first_sample_at_once_has_no_cpu_number_rather_than_a_made_up_one() -> None:
    # Two readings inside one kernel tick: no time has passed that could be divided by.
    cpus = [sample.cpu for sample in (Host(Path.cwd()).sample() for _ in range(20))]
    assert None in cpus


def test_a_folder_that_is_gone_has_no_free_space(tmp_path: Path) -> None:
    sample = Host(tmp_path / "gone").sample()
    assert sample.disk_free is None
    assert sample.disk_total is None


# --- limits of containers, from trees of files as kernels show them


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_2_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/app\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/memory.stat": "anon 1\n",
            "sys/fs/cgroup/pod/memory.max": f"{24 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {2 * GIB}\nactive_file 7\n",
            "sys/fs/cgroup/pod/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/app/memory.max": "max\n",
            "sys/fs/cgroup/pod/app/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/app/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/app/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        },
    )
    container = Container(root)
    assert container.memory() == (3 * GIB, 24 * GIB)
    assert container.cpu() == (2.5, 1.5)


def test_version_1_with_controllers_apart(tmp_path: Path) -> None:
    group = "/docker/ab12"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:{group}\n3:cpu:{group}\n2:cpuacct:{group}\n1:name=systemd:/\n0::/\n",
            "proc/self/mountinfo": "".join(
                f"{n} 31 0:{n} {group} /sys/fs/cgroup/{name} ro - cgroup cgroup rw,{name}\n"
                for n, name in enumerate(("cpu", "cpuacct", "memory"), 32)
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 4096\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpuacct/cpuacct.usage": "7500000000\n",
        },
    )
    container = Container(root)
    assert container.memory() == (GIB - 4096, 2 * GIB)
    assert container.cpu() == (7.5, 4.0)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2_MOUNT},
        {
            "proc/self/cgroup": "3:memory,cpu:/\n",
            "proc/self/mountinfo": "32 31 0:29 / /sys/fs/cgroup rw - cgroup cgroup rw,memory,cpu\n",
            "sys/fs/cgroup/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory.usage_in_bytes": "5\n",
            "sys/fs/cgroup/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu.cfs_period_us": "100000\n",
        },
        # a group outside what the mount shows
        {"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": V2_MOUNT, "sys/fs/cgroup/x": ""},
    ],
)
def test_no_limit_is_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    container = Container(tree(tmp_path, files))
    assert container.memory() is None
    assert container.cpu() is None


def test_a_limit_replaces_the_machine_s_numbers(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/memory.max": f"{64 << 20}\n",
            "sys/fs/cgroup/memory.current": f"{16 << 20}\n",
            "sys/fs/cgroup/cpu.max": "25000 100000\n",
            "sys/fs/cgroup/cpu.stat": "usage_usec 1000000\n",
        },
    )
    host = Host(Path.cwd(), Container(root))
    time.sleep(0.05)
    (root / "sys/fs/cgroup/cpu.stat").write_text("usage_usec 1001000\n")
    sample = host.sample()
    assert (sample.memory_used, sample.memory_total) == (16 << 20, 64 << 20)
    assert (sample.memory_scope, sample.cpu_scope, sample.cores) == ("container", "container", 0.25)
    # 1 ms of CPU in at least 50 ms, of a quarter of a core
    assert sample.cpu is not None
    assert 0 < sample.cpu <= 8.0


# --- GPUs


@pytest.mark.skipif(has_driver(), reason="this machine has an NVIDIA driver")
def test_no_driver_is_said_in_words() -> None:
    with Sampler() as sampler:
        sample = sampler.sample()
    assert sample.gpus == []
    assert sample.no_gpu == "no NVIDIA driver (libnvidia-ml.so.1 not found)"
    assert machine_line(sample, 80).endswith("  no GPU")


# A driver library for the real bindings to talk to: two GPUs, of which the second lacks nearly everything.
FAKE_NVML = r"""
#include <string.h>
typedef unsigned long long u64; typedef unsigned int u32; typedef long dev;
static int initial = INIT;
int nvmlInit_v2(void) { return initial; }
int nvmlInitWithFlags(u32 f) { return initial; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "error"; }
int nvmlDeviceGetCount_v2(u32 *n) { *n = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, dev *d) { *d = i + 1; return i == 2 ? 15 : 0; }
int nvmlDeviceGetName(dev d, char *s, u32 n) { strcpy(s, d == 1 ? "Test GPU" : "Old GPU"); return 0; }
int nvmlDeviceGetUUID(dev d, char *s, u32 n) { strcpy(s, "GPU-1"); return d == 1 ? 0 : 3; }
typedef struct { u64 total, free, used; } mem1;
typedef struct { u32 version; u64 total, reserved, free, used; } mem2;
int nvmlDeviceGetMemoryInfo(dev d, mem1 *m) { m->total = 24576ull << 20; m->used = 900ull << 20; return 0; }
int nvmlDeviceGetMemoryInfo_v2(dev d, mem2 *m) {
  if (m->version != (sizeof(mem2) | (2u << 24))) return 25;
  m->total = 24576ull << 20; m->reserved = 400ull << 20; m->used = (500ull << 20) + 700000; return d == 1 ? 0 : 13; }
typedef struct { u32 gpu, memory; } util;
int nvmlDeviceGetUtilizationRates(dev d, util *u) { u->gpu = 93; u->memory = 40; return d == 1 ? 0 : 3; }
int nvmlDeviceGetPowerUsage(dev d, u32 *p) { *p = 312000; return d == 1 ? 0 : 3; }
int nvmlDeviceGetEnforcedPowerLimit(dev d, u32 *p) { *p = 450000; return d == 1 ? 0 : 3; }
int nvmlDeviceGetTemperature(dev d, u32 s, u32 *t) { *t = 71; return d == 1 ? 0 : 3; }
int nvmlDeviceGetClockInfo(dev d, u32 k, u32 *c) { *c = k == 1 ? 2505 : 10501; return d == 1 ? 0 : 3; }
int nvmlDeviceGetMaxClockInfo(dev d, u32 k, u32 *c) { *c = k == 1 ? 2520 : 10501; return d == 1 ? 0 : 3; }
int nvmlDeviceGetCurrentClocksThrottleReasons(dev d, u64 *r) { *r = 0x100000000004ull; return d == 1 ? 0 : 3; }
int nvmlDeviceGetCurrPcieLinkGeneration(dev d, u32 *g) { *g = 4; return 0; }
typedef struct { u32 pid; u64 used; u32 gi, ci; } proc;
int nvmlDeviceGetComputeRunningProcesses_v3(dev d, u32 *n, proc *p) {
  if (d != 1) return 3;
  if (*n < 1) { *n = 1; return 7; }
  p[0].pid = 4000000; p[0].used = 300ull << 20; *n = 1; return 0; }
static int slow_calls = 0;
int nvmlDeviceGetTotalEnergyConsumption(dev d, u64 *e) { *e = 1000ull * ++slow_calls; return 0; }
"""

SAMPLE = (
    "import msgspec, sys; from labassist.machine.sample import Sampler;"
    "s = Sampler(slow_seconds=3600); a = s.sample(); b = s.sample(); c = s.sample(); s.close();"
    "print(msgspec.json.encode([a, b, c]).decode())"
)


def samples_of(folder: Path, *, count: int, init: int = 0) -> list[MachineSample]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to build a driver library with")
    source = folder / "nvml.c"
    source.write_text(FAKE_NVML.replace("INIT", str(init)).replace("COUNT", str(count)))
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", folder / "libnvidia-ml.so.1", source], check=True, timeout=60
    )
    return msgspec.json.decode(python(SAMPLE, LD_LIBRARY_PATH=str(folder)), type=list[MachineSample])


def test_a_gpu_is_read_through_the_real_bindings(tmp_path: Path) -> None:
    (first, second, _) = samples_of(tmp_path, count=2)
    gpu = first.gpus[0]
    assert (gpu.name, gpu.uuid, gpu.util, gpu.memory_util) == ("Test GPU", "GPU-1", 93, 40)
    # used without reserved, as nvidia-smi shows it; whole MiB rounded down
    assert gpu.memory_used == (500 << 20) + 700000
    assert gpu.memory_reserved == 400 << 20
    assert mib(gpu.memory_used) == 501  # 500.67 MiB, rounded up as nvidia-smi does
    assert (gpu.power, gpu.power_limit, gpu.temperature) == (312.0, 450.0, 71)
    assert (gpu.sm_clock, gpu.sm_clock_max, gpu.memory_clock) == (2505, 2520, 10501)
    assert gpu.throttle == ["SW power cap", "0x100000000000"]
    assert [(process.pid, process.memory, process.own) for process in gpu.processes or []] == [
        (4000000, 300 << 20, None)
    ]
    assert gpu.absent["fan"] == "Function Not Found"
    assert machine_line(first, 80).startswith("GPU0 93% mem 0.5/24.0 GiB 312/450 W 71 C")
    # one GPU's slow readings a sample, then kept until they are due again
    assert [slow and slow.energy for slow in (g.slow for g in first.gpus)] == [1.0, None]
    assert [slow and slow.energy for slow in (g.slow for g in second.gpus)] == [1.0, 2.0]


def test_each_call_may_fail_alone(tmp_path: Path) -> None:
    gpu = samples_of(tmp_path, count=2)[2].gpus[1]
    assert gpu.name == "Old GPU"
    assert (gpu.uuid, gpu.util, gpu.power, gpu.temperature, gpu.processes) == ("", None, None, None, None)
    # no version 2 of memory info: the older call
    assert (gpu.memory_used, gpu.memory_reserved) == (900 << 20, None)
    assert gpu.pcie_gen == 4
    assert gpu.absent["util"] == gpu.absent["compute_processes"] == "Not Supported"
    assert gpu.slow is not None
    assert gpu.slow.energy == 2.0
    assert gpu.slow.absent["pcie_tx"] == "Function Not Found"


def test_a_lost_gpu_leaves_the_others_readable(tmp_path: Path) -> None:
    sample = samples_of(tmp_path, count=3)[0]
    assert [gpu.absent.get("handle") for gpu in sample.gpus] == [None, None, "GPU is lost"]
    assert sample.gpus[0].util == 93
    assert "GPU2" in machine_line(sample, 200)


@pytest.mark.parametrize(
    ("init", "count", "words"),
    [
        (9, 1, "the NVIDIA driver is not loaded"),
        (18, 1, "the NVIDIA driver and its library differ in version: reboot, or reload the driver"),
        (999, 1, "NVML does not start: Unknown Error"),
        (0, 0, "the NVIDIA driver is there, but shows no GPU"),
    ],
)
def test_the_reason_for_no_gpu_is_told(tmp_path: Path, init: int, count: int, words: str) -> None:
    sample = samples_of(tmp_path, count=count, init=init)[0]
    assert (sample.gpus, sample.no_gpu) == ([], words)


def test_closing_twice_is_harmless() -> None:
    nvml = Nvml()
    nvml.close()
    nvml.close()
    assert nvml.gpus == []


def test_own_processes_are_ours_and_others_are_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        known = is_own(os.getpid(), frozenset({os.getpid()}))
        if str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]":
            assert known is True
            assert is_own(child.pid, frozenset({os.getpid()})) is True
            assert is_own(os.getppid(), frozenset({os.getpid()})) is False
        else:  # NVML's pids would be the host's: nothing may be claimed
            assert known is None
    finally:
        child.communicate(b"\n", timeout=20)
    assert is_own(1, frozenset()) is None


# --- one line


def machine(**gpu: object) -> MachineSample:
    host = HostSample(cores=2, memory_used=int(1.1 * GIB), memory_total=24 * GIB, cpu=81.0)
    gpus = [msgspec.convert({"index": 0, **gpu}, GpuSample)] if gpu else []
    return MachineSample(time=0.0, host=host, gpus=gpus, no_gpu="" if gpu else "no driver")


def test_the_host_line() -> None:
    assert machine_line(machine(), 80) == "CPU ▇▇▇▇▇▁ 81%  mem 1.1/24 GiB  no GPU"
    assert machine_line(machine(), 80, ascii=True) == "CPU #####. 81%  mem 1.1/24 GiB  no GPU"


def test_the_gpu_line_puts_an_alarm_before_the_numbers() -> None:
    numbers = {
        "util": 93,
        "memory_used": int(8.4 * GIB),
        "memory_total": 24 * GIB,
        "power": 312.4,
        "power_limit": 450.0,
        "temperature": 71,
        "sm_clock": 2505,
        "sm_clock_max": 2520,
    }
    line = machine_line(machine(**numbers, throttle=["SW power cap"]), 80)
    assert line == "GPU0 93% mem 8.4/24.0 GiB 312/450 W 71 C 2,505/2,520 MHz CPU 81%"
    line = machine_line(machine(**numbers, throttle=["SW power cap", "HW thermal"]), 80)
    assert line.startswith("GPU0 93% ! HW thermal mem 8.4/24.0 GiB")


@pytest.mark.parametrize("width", range(1, 121))
def test_the_line_never_exceeds_its_width(width: int) -> None:
    for sample in (machine(), machine(util=100, temperature=90, sm_clock=1)):
        for plain in (False, True):
            line = machine_line(sample, width, plain)
            assert 0 < len(line) <= width
            assert not plain or line.isascii()


def test_a_bar_is_full_at_one_and_empty_at_nought() -> None:
    assert [bar(share, 4, True) for share in (-1, 0, 0.5, 1, 2)] == ["....", "....", "##..", "####", "####"]


def test_a_sample_is_plain_json() -> None:
    with Sampler(slow_seconds=None) as sampler:
        text = msgspec.json.encode(sampler.sample())
    assert msgspec.json.decode(text, type=MachineSample).host.cores > 0
    assert json.loads(text)["host"]["memory_total"] > 0
