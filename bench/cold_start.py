"""How long `labassist --help` takes from a cold process: the median must stay under 0.25 s.

python bench/cold_start.py [--json] [--runs N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

LIMIT_SECONDS = 0.25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    seconds = []
    for _ in range(args.runs + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "labassist", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    measured = seconds[1:]  # the first one may compile
    median = statistics.median(measured)
    ok = median < LIMIT_SECONDS
    if args.json:
        document = {
            "ok": ok,
            "median_s": median,
            "max_s": max(measured),
            "limit_s": LIMIT_SECONDS,
            "runs": len(measured),
        }
        print(json.dumps(document))
    else:
        print(
            f"{'PASS' if ok else 'FAIL'} labassist --help: median {median:.3f} s, max {max(measured):.3f} s "
            f"of {len(measured)} (limit {LIMIT_SECONDS} s)"
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
