"""Hold labassist's GPU readings against nvidia-smi's on a CUDA machine.

Loads the first GPU with matrix products in a subprocess, then once a second takes our sample, nvidia-smi's, and
ours again: nvidia-smi takes some 100 ms, so its value must lie between (or be equal to one of) our two. Power is
compared like with like: `nvmlDeviceGetPowerUsage` and `power.draw` are both a mean over a second on Ampere (not
GA100) and later; `power.draw.instant` is logged beside them. Run with PYTHONPATH at the repository's root:

    python bench/machine_truth.py [--samples 20] [--out FILE.json] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from labassist.machine.nvml import mib
from labassist.machine.readings import GpuSample
from labassist.machine.sample import Sampler

COLUMNS = (
    "memory.used,memory.total,clocks.sm,clocks.max.sm,power.draw,power.draw.instant,"
    "temperature.gpu,utilization.gpu"
)

LOAD = """
import sys, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
c = torch.empty_like(a)
torch.mm(a, b, out=c)
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    for _ in range(50):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize()
"""

CLOCK_STEP = 15
"""MHz between two clocks of the table that recent GPUs use."""
POWER_TOLERANCE = 0.05


def nvidia_smi() -> dict[str, float | None]:
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={COLUMNS}", "--format=csv,noheader,nounits"]
    line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    values = [text.strip() for text in line.strip().split(",")]
    return {
        name: float(text) if text.replace(".", "", 1).isdigit() else None
        for name, text in zip(COLUMNS.split(","), values, strict=True)
    }


def between(value: float | None, one: float | None, other: float | None, slack: float) -> bool:
    if value is None or one is None or other is None:
        return False
    return min(one, other) - slack <= value <= max(one, other) + slack


def compare(smi: dict[str, float | None], before: GpuSample, after: GpuSample) -> dict[str, bool]:
    def both(name: str) -> tuple[float | None, float | None]:
        return getattr(before, name), getattr(after, name)

    used = [mib(sample.memory_used or 0) for sample in (before, after)]
    total = [mib(sample.memory_total or 0) for sample in (before, after)]
    draw = smi["power.draw"] or 0.0
    return {
        "memory.used": smi["memory.used"] in used,
        "memory.total": smi["memory.total"] in total,
        "clocks.sm": between(smi["clocks.sm"], *both("sm_clock"), CLOCK_STEP),
        "clocks.max.sm": between(smi["clocks.max.sm"], *both("sm_clock_max"), 0),
        "power.draw": between(smi["power.draw"], *both("power"), POWER_TOLERANCE * draw),
        "temperature.gpu": between(smi["temperature.gpu"], *both("temperature"), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("machine_truth.json"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    load = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
    pairs: list[dict[str, Any]] = []
    costs: list[float] = []
    try:
        assert load.stdout is not None
        if load.stdout.readline().strip() != "ready":
            print("FAIL the load did not start: is there a CUDA device and torch for it?", file=sys.stderr)
            return 2
        time.sleep(5)  # clocks, power and memory settle
        with Sampler(slow_seconds=None) as sampler:
            sampler.sample()
            for _ in range(options.samples):
                began = time.monotonic()
                before = sampler.sample().gpus[0]
                costs.append(time.monotonic() - began)
                smi = nvidia_smi()
                after = sampler.sample().gpus[0]
                same = compare(smi, before, after)
                pairs.append({"smi": smi, "before": before, "after": after, "same": same})
                time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
        with Sampler(slow_seconds=0.0) as sampler:
            slow = sampler.sample().gpus[0].slow
    finally:
        load.kill()
        load.wait()

    agreed = {name: sum(pair["same"][name] for pair in pairs) for name in pairs[0]["same"]}
    passed = all(count == len(pairs) for count in agreed.values())
    result = {
        "passed": passed,
        "samples": len(pairs),
        "agreed": agreed,
        "sample_ms": round(1000 * statistics.median(costs), 3),
        "slow": slow,
        "pairs": pairs,
    }
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    if options.json:
        print(json.dumps({name: result[name] for name in ("passed", "samples", "agreed", "sample_ms")}))
    else:
        for name, count in agreed.items():
            print(
                f"{'PASS' if count == len(pairs) else 'FAIL'} {name}: {count} of {len(pairs)} samples agree"
            )
        print(f"one sample of ours: {result['sample_ms']} ms; pairs in {options.out}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
