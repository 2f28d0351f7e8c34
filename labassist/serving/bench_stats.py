"""The statistics of a serving benchmark: percentiles, their intervals, rates, and what makes them doubtful.

Names and definitions are those of vLLM's own benchmark (`vllm bench serve`, vllm/benchmarks/serve.py of 0.32), where
they are equal: TTFT, TPOT = (E2EL - TTFT) / (tokens - 1), ITL, E2EL, request and output throughput over the time from
the first request to the last answer, and percentiles by linear interpolation as numpy's. One thing is not: with
arrivals at a rate, its latencies begin when a request was sent, and ours when it was scheduled.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from labassist.serving.bench_client import Sample

PERCENTS = (50, 95, 99)
RESAMPLES = 2000
ENOUGH = 200
"""Answers below which little can be said of P99: two of 200 lie above it."""
MOST_FAILED = 0.01
"""Share of failed requests above which a measurement has failed: a P99 of those that are left hides as many."""
WINDOWS = 20
"""Equal parts of the time, whose rates give the interval of tokens a second."""
LONG = 5
"""Times a whole answer that arrivals have to last before it shows that a server keeps up with them."""
KEPT = 0.9
"""Of the rate at which requests were due: below this a server has not kept up."""
SLOWER, STANDARD_ERRORS = 1.3, 3.0
"""How much longer the last third takes than the first, and by how many standard errors, where a queue grows."""
CLIENT_CORE, CLIENT_LATE = 0.7, 0.1
"""Of a core, and of the median first token: above these the client may be what is measured."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by linear interpolation between the two nearest values (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def percentile_interval(values: Sequence[float], percent: float, seed: int = 0) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of a percentile.

    No resample is made: its k-th and next smallest values are those of the sorted sample at the k-th and next of n
    uniform numbers, which are Beta distributed (Efron 1979 names it for the median). So 10,000 values cost no more
    than ten.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 1:
        return ordered[0], ordered[0]
    place = (n - 1) * percent / 100
    low = math.floor(place)
    share = place - low
    draw = random.Random(seed)
    found = []
    for _ in range(RESAMPLES):
        u = draw.betavariate(low + 1, n - low)
        value = ordered[min(int(u * n), n - 1)]
        if share:
            v = u + (1 - u) * draw.betavariate(1, n - low - 1)
            value += (ordered[min(int(v * n), n - 1)] - value) * share
        found.append(value)
    return _middle(found)


def mean_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of a mean."""
    draw = random.Random(seed)
    return _middle([statistics.fmean(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)])


def _middle(found: list[float]) -> tuple[float, float]:
    found.sort()
    return found[int(0.025 * len(found))], found[int(0.975 * len(found)) - 1]


def milliseconds(seconds: Sequence[float], seed: int) -> dict[str, Any]:
    """Return mean and percentiles with intervals, in ms; empty where there is nothing."""
    if not seconds:
        return {}
    values = [1000 * one for one in seconds]
    found: dict[str, Any] = {"mean": statistics.fmean(values)}
    for percent in PERCENTS:
        low, high = percentile_interval(values, percent, seed)
        found[f"p{percent}"] = {"value": percentile(values, percent), "low": low, "high": high}
    return found


def told(values: Sequence[Any], percent: float) -> bool:
    """Say whether a sample tells a percentile at all: one value in it is expected to lie above."""
    return len(values) * (100 - percent) >= 100


def bounded(values: Sequence[Any], percent: float) -> bool:
    """Say whether a sample can bound a percentile on both sides with 95%.

    Its largest value is below the percentile with probability p^n, and its smallest above it with (1-p)^n: where either
    is more than 2.5% no order statistic is a bound (6 values for P50, 72 for P95, 368 for P99).
    """
    share = max(percent, 100 - percent) / 100
    return bool(share ** len(values) <= 0.025)


def cells(seconds: Sequence[float], seed: int) -> dict[str, Any]:
    """Return what `milliseconds` does, with None for a bound that the sample is too small for, and `few` for a value."""
    found = milliseconds(seconds, seed)
    for percent in PERCENTS if found else ():
        cell = found[f"p{percent}"]
        cell["few"] = not told(seconds, percent)
        if not bounded(seconds, percent):
            cell["low"] = cell["high"] = None
    return found


def rates(samples: Sequence[Sample], duration: float) -> list[float]:
    """Return the output tokens a second of each of WINDOWS equal parts of the time; their mean is that of the whole."""
    each = [0.0] * WINDOWS
    for one in samples:
        for at in one.arrivals:
            each[min(WINDOWS - 1, int(at / duration * WINDOWS))] += one.tokens_out / len(one.arrivals)
    return [tokens / (duration / WINDOWS) for tokens in each]


def summarise(
    samples: Sequence[Sample], *, rate: float, asked: int, client: dict[str, float], seed: int
) -> dict[str, Any]:
    """Return the row of one load: what came out and, in `warnings`, what makes it doubtful.

    `rate` is that of an open loop, 0 in a closed one; `asked` how many requests there were to be; `client` what it
    cost to measure: `core`, the share of one core, and `late_ms`, the P99 of starting later than scheduled.
    """
    good = [one for one in samples if not one.error]
    # As vLLM counts: from the first request to the end of the last answer.
    duration = max((one.ended for one in samples), default=0.0)
    tokens = sum(one.tokens_out for one in good)
    row: dict[str, Any] = {
        "requests": len(samples),
        "completed": len(good),
        "errors": dict(sorted(Counter(one.error for one in samples if one.error).items())),
        "duration_s": duration,
        "tokens_in": sum(one.tokens_in for one in good),
        "tokens_out": tokens,
        "counted": "usage" if good and all(one.counted for one in good) else "parts",
        "request_throughput": len(good) / duration if duration else 0.0,
        "output_throughput": {},
        "ttft_ms": cells([one.ttft for one in good], seed),
        "tpot_ms": cells([one.tpot for one in good if one.tpot is not None], seed),
        "itl_ms": cells([gap for one in good for gap in one.itl], seed),
        "e2el_ms": cells([one.e2el for one in good], seed),
        "client": client,
    }
    if good and duration:
        # Of fewer answers most parts of the time hold only pieces of the same one.
        enough = bounded(good, 50)
        low, high = mean_interval(rates(good, duration), seed) if enough else (None, None)
        row["output_throughput"] = {"value": tokens / duration, "low": low, "high": high}
    row["failure"] = failure(row)
    row["warnings"] = warnings(good, row, asked)
    due = [one.scheduled for one in samples]
    if rate and good and (line := falls_behind(good, due, rate, row["request_throughput"])):
        row["warnings"].insert(0, line)
    return row


def failure(row: dict[str, Any]) -> str:
    """Return in a line that too many requests failed for a row to be a measurement; empty where they did not."""
    failed = sum(row["errors"].values())
    if failed <= MOST_FAILED * row["requests"]:
        return ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in row["errors"].items())
    left = f"the numbers are of the {row['completed']} answered" if row["completed"] else "none was answered"
    return f"{failed} of {row['requests']} requests failed ({kinds}); {left}"


def warnings(good: Sequence[Sample], row: dict[str, Any], asked: int) -> list[str]:
    """Return in lines what makes a row doubtful."""
    found = []
    if row["requests"] < asked:
        found.append(f"stopped after {row['requests']} of {asked} requests")
    if not good:
        return [*found, "no request was answered"]
    if len(good) < ENOUGH:
        words = "1 answer says" if len(good) == 1 else f"{len(good)} answers say"
        found.append(f"{words} little of P99: from {ENOUGH} on, two lie above it")
    if row["counted"] != "usage":
        found.append(
            "this server does not say how many tokens it used: each part of a stream is counted as one token, "
            "and tokens of prompts are not known"
        )
    before = sum(one.ttft for one in good) / sum(one.e2el for one in good)
    if before > 0.5:
        found.append(
            f"{before:.0%} of the time passes before the first token (prompts are long, or requests wait): "
            "tokens a second tell little of how fast it writes"
        )
    client = row["client"]
    if client["core"] > CLIENT_CORE or client["late_ms"] > CLIENT_LATE * row["ttft_ms"]["p50"]["value"]:
        found.append(
            f"the client itself took {client['core']:.0%} of a core and started its requests up to "
            f"{client['late_ms']:.1f} ms late: it may be what is measured here; run it on another machine"
        )
    return found


def falls_behind(good: Sequence[Sample], due: Sequence[float], rate: float, done: float) -> str:
    """Say that a server does not keep up with arrivals at a rate, or that this cannot be seen; `due` is when the requests were, all of them.

    Either it gave first tokens, or ends, at less than KEPT of the rate at which requests were due, or its later
    requests took longer than its first. The time that a request takes which does not wait is taken out of the
    duration: a server that keeps up ends that much after the last arrival.
    """
    ordered = sorted(good, key=lambda one: one.scheduled)
    third = len(ordered) // 3
    if third < 3 or not max(due):
        return ""
    asked = len(due) / max(due)
    starts = max(one.arrivals[0] for one in good) - min(one.ttft for one in good)
    ends = max(one.arrivals[-1] for one in good) - min(one.e2el for one in good)
    first, last = ([one.e2el for one in part] for part in (ordered[:third], ordered[-third:]))
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / third)
    a, b = statistics.fmean(first), statistics.fmean(last)
    if len(due) / max(starts, ends) < KEPT * asked:
        why = f"the last was due after {max(due):.1f} s and the last answer came {ends - max(due):.1f} s late"
        if starts > ends:
            why = f"the last was due after {max(due):.1f} s and the last answer began {starts - max(due):.1f} s late"
    elif b > SLOWER * a and b - a > STANDARD_ERRORS * error:
        why = f"the last third took {b:.2f} s against {a:.2f} s of the first"
    elif max(due) < LONG * (typical := percentile([one.e2el for one in good], 50)):
        return (
            f"whether it keeps up with {rate:g} requests/s cannot be seen (it answered {done:.2f}/s): they came for "
            f"{max(due):.1f} s, and an answer takes {typical:.1f} s; give --requests {math.ceil(LONG * typical * rate)} "
            "or more"
        )
    else:
        return ""
    return (
        f"it cannot keep up with {rate:g} requests/s: it answered {done:.2f}/s, and {why}; these latencies would grow "
        "as long as one measures (were they only this uneven, more --requests would show it)"
    )
