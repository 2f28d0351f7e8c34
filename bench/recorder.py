"""What one `record()` costs, with the digest of 12 indices, and whether memory grows over a million steps.

python bench/recorder.py [--steps N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from labassist import record

MICROSECONDS = 30.0
GROWTH_KIB = 1024
GROUP = 1000


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recorder-") as name:
        order = {
            "protocol": 1,
            "run": "bench",
            "job": "bench",
            "mode": "exact",
            "seed": 1,
            "threads": 1,
            "config": {},
        }
        (Path(name) / "order.json").write_text(json.dumps(order))
        os.environ["LABASSIST_RUN_DIR"] = name
        recorder = record.start(total_steps=options.steps)
        groups = []
        step = began_kib = 0
        while step < options.steps:
            began = time.perf_counter()
            for _ in range(GROUP):
                step += 1
                batch = record.digest([step, *range(11)])
                recorder.record(step, loss=1 / step, lr=0.001, grad_norm=step / 7, batch=batch)
            groups.append((time.perf_counter() - began) / GROUP * 1e6)
            if len(groups) == 10:
                began_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kib
        recorder.finish(step)
        size = (Path(name) / "metrics-rank0.jsonl").stat().st_size
    median = statistics.median(groups)
    results = {"microseconds": median, "grown_kib": grown, "steps": step, "bytes_a_step": size / step}
    fast, bounded = median <= MICROSECONDS, grown <= GROWTH_KIB
    print(f"{'PASS' if fast else 'FAIL'}  record(): {median:.1f} microseconds a step (≤ {MICROSECONDS:.0f})")
    print(f"{'PASS' if bounded else 'FAIL'}  memory: {grown} KiB more after {step:,} steps (≤ {GROWTH_KIB})")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if fast and bounded else 1


if __name__ == "__main__":
    sys.exit(main())
