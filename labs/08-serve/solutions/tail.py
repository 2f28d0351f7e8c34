"""A percentile, and a latency that hides nothing.

python labs/08-serve/tail.py           shows it
python labs/08-serve/tail.py --check   prints what the check reads
"""

# ruff: noqa: ARG001 - what waits for your lines is not used yet

from __future__ import annotations

import json
import sys


def percentile(values: list[float], percent: float) -> float:
    """Return the value below which so many percent lie, between two neighbours by how far the place is from each."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    share = place - low
    return ordered[low] + share * (ordered[high] - ordered[low])


def latencies(due: list[float], sent: list[float], done: list[float]) -> list[float]:
    """Return what each request's user waited. A request was due, was sent (later, where the client was held up), done."""
    return [end - start for start, end in zip(due, done, strict=True)]


def stall() -> tuple[list[float], list[float], list[float]]:
    """Return ten requests that were due every second, of a server that stood still for five seconds at the third."""
    due = [float(at) for at in range(10)]
    sent, done, free = [], [], 0.0
    for at in due:
        start = max(at, free)
        free = start + (5.0 if at == 2 else 0.25)
        sent.append(start)
        done.append(free)
    return due, sent, done


def main() -> None:
    waited = latencies(*stall())
    told = {
        "percentile": percentile([1.0, 2.0, 3.0, 5.0], 50),
        "p95": percentile([0.0, 10.0], 95),
        "waited": waited,
    }
    if "--check" in sys.argv:
        print(json.dumps(told))
    else:
        print(f"waited: {waited}")
        print(f"P50 {percentile(waited, 50):.2f} s, P95 {percentile(waited, 95):.2f} s")


if __name__ == "__main__":
    main()
