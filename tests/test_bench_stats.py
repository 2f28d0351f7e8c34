"""The serving benchmark's numbers: percentiles, intervals, rates, and what is doubtful or too few to say."""

from __future__ import annotations

import random
import re
import statistics
from typing import Any

import pytest
from scripted_server import CLIENT, sample

from labassist.serving import bench, bench_load, bench_stats, bench_text
from labassist.serving.bench_client import Sample


@pytest.mark.parametrize("percent", [0, 1, 50, 95, 99, 100])
@pytest.mark.parametrize("count", [1, 2, 5, 100, 201])
def test_a_percentile_is_that_of_numpy(percent: int, count: int) -> None:
    numpy = pytest.importorskip("numpy")
    draw = random.Random(count)
    values = [draw.expovariate(1) for _ in range(count)]
    assert bench_stats.percentile(values, percent) == pytest.approx(numpy.percentile(values, percent))


def test_known_percentiles() -> None:
    values = list(range(1, 101))
    assert bench_stats.percentile(values, 50) == 50.5
    assert bench_stats.percentile(values, 95) == pytest.approx(95.05)
    assert bench_stats.percentile(values, 99) == pytest.approx(99.01)


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_the_interval_is_that_of_a_resampled_bootstrap(percent: int) -> None:
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.default_rng(5)
    values = draw.lognormal(0, 0.5, 300)
    many = draw.choice(values, (20_000, 300))
    low, high = numpy.percentile(numpy.percentile(many, percent, axis=1), [2.5, 97.5])
    found = bench_stats.percentile_interval(list(values), percent, seed=1)
    spread = high - low
    assert found[0] == pytest.approx(low, abs=0.15 * spread)
    assert found[1] == pytest.approx(high, abs=0.15 * spread)


def test_an_interval_covers_the_truth_as_often_as_it_says(monkeypatch: Any) -> None:
    """P50 of an exponential is ln 2: of 300 samples about 95% of the intervals hold it."""
    monkeypatch.setattr(bench_stats, "RESAMPLES", 200)
    draw = random.Random(2)
    held = 0
    for seed in range(300):
        low, high = bench_stats.percentile_interval([draw.expovariate(1) for _ in range(80)], 50, seed)
        held += low <= 0.6931 <= high
    assert 0.90 <= held / 300 <= 0.985


def test_the_same_seed_gives_the_same_interval() -> None:
    values = [1.0, 2.0, 5.0, 9.0]
    assert bench_stats.percentile_interval(values, 95, 4) == bench_stats.percentile_interval(values, 95, 4)


def test_a_row_has_the_definitions_of_vllms_benchmark() -> None:
    samples = [sample(at, ttft=0.1, e2el=0.5, count=5) for at in range(10)]
    row = bench_stats.summarise(samples, rate=0, asked=10, client=CLIENT, seed=1)
    assert row["duration_s"] == pytest.approx(9.5)
    assert row["request_throughput"] == pytest.approx(10 / 9.5)
    assert row["output_throughput"]["value"] == pytest.approx(50 / 9.5)
    assert row["ttft_ms"]["p50"]["value"] == pytest.approx(100)
    assert row["tpot_ms"]["p95"]["value"] == pytest.approx(100)  # (0.5 - 0.1) / (5 - 1)
    assert row["itl_ms"]["mean"] == pytest.approx(100)
    assert row["e2el_ms"]["p99"]["value"] == pytest.approx(500)
    assert (row["tokens_in"], row["tokens_out"]) == (100, 50)


def test_the_windows_rates_have_the_mean_of_the_whole() -> None:
    draw = random.Random(7)
    samples = [sample(at, 0.1 * draw.random(), 0.2 + draw.random()) for at in range(30)]
    duration = max(one.ended for one in samples)
    each = bench_stats.rates(samples, duration)
    assert statistics.fmean(each) == pytest.approx(150 / duration)


@pytest.mark.parametrize(("count", "warned"), [(199, True), (200, False)])
def test_fewer_than_two_hundred_answers_are_warned_of(count: int, warned: bool) -> None:
    samples = [sample(at, 0.1, 0.5) for at in range(count)]
    row = bench_stats.summarise(samples, rate=0, asked=count, client=CLIENT, seed=1)
    assert any("P99" in line for line in row["warnings"]) is warned


def test_what_is_doubtful_is_said() -> None:
    def warned(samples: list[Sample], word: str, **more: Any) -> bool:
        given = {"rate": 0.0, "asked": len(samples), "client": CLIENT, "seed": 1, **more}
        return any(word in line for line in bench_stats.summarise(samples, **given)["warnings"])

    quick = [sample(at, 0.1, 0.5) for at in range(200)]
    assert not bench_stats.summarise(quick, rate=0, asked=200, client=CLIENT, seed=1)["warnings"]
    assert warned([sample(at, 0.4, 0.5) for at in range(200)], "before the first token")
    assert warned(quick, "the client itself", client={"core": 0.9, "late_ms": 0.0})
    assert warned(quick, "the client itself", client={"core": 0.0, "late_ms": 50.0})
    assert warned(quick[:150], "stopped after 150 of 200", asked=200)
    uncounted = [sample(at, 0.1, 0.5) for at in range(200)]
    uncounted[3].counted = False
    assert warned(uncounted, "does not say how many tokens")
    growing = [sample(at, 0.1, 0.5 + at / 50) for at in range(200)]
    assert warned(growing, "cannot keep up", rate=2.0) and not warned(growing, "cannot keep up")
    assert not warned(quick, "cannot keep up", rate=2.0)


def timed(due: float, began: float, ended: float) -> Sample:
    """A request that was due, whose answer began and ended at these times."""
    times = [began + (ended - began) * at / 4 for at in range(5)]
    return Sample(0, due, due, times, ended, 10, 5, True)


@pytest.mark.parametrize(
    ("name", "rate", "told"),
    [
        ("one at a time, 4 a second", 6.0, "cannot keep up"),
        ("one at a time, 4 a second", 3.0, ""),
        ("a burst in one batch", 100.0, "cannot keep up"),
        ("all at once, each 4 s", 2.0, ""),
        ("all at once, each 4 s", 6.0, "cannot be seen"),
    ],
)
def test_a_server_that_does_not_keep_up_is_seen(name: str, rate: float, told: str) -> None:
    samples, free = [], 0.0
    for number, due in enumerate(bench_load.poisson(100, rate, seed=3)):
        if name.startswith("one"):
            free = max(free, due) + 0.25
            samples.append(timed(due, free - 0.2, free))
        elif name.startswith("a burst"):  # read one after the other, written side by side until the end
            samples.append(timed(due, due + 0.1 + 0.13 * number, 15.0))
        else:
            samples.append(timed(due, due + 0.3, due + 4.0))
    row = bench_stats.summarise(samples, rate=rate, asked=100, client=CLIENT, seed=1)
    for line in ("cannot keep up", "cannot be seen"):
        assert any(line in one for one in row["warnings"]) is (line == told), row["warnings"]


def test_the_table_says_what_was_measured() -> None:
    samples = [sample(at, 0.1, 0.5) for at in range(200)]
    row = bench_stats.summarise(samples, rate=2.0, asked=200, client=CLIENT, seed=1)
    result = {"url": "u", "model": "m", "max_tokens": 5, "prompts": "ours"}
    told = bench_text.text(
        {**result, "loads": [{"rate": 2.0, "concurrency": 0, "details": {}, **row}]}
    ).splitlines()
    assert told[3] == "2/s, open loop: 200 requests in 199.5 s, 0 failed"
    assert any(line.split()[:4] == ["first", "token", "(TTFT)", "100.0"] for line in told)


@pytest.mark.parametrize(
    ("count", "first"),
    [
        (1, ["-", "-", "-"]),
        (5, ["50.0 (-)", "-", "-"]),
        (6, ["50.0 (50.0-50.0)", "-", "-"]),
        (20, ["50.0 (50.0-50.0)", "50.0 (-)", "-"]),
        (100, ["50.0 (50.0-50.0)", "50.0 (50.0-50.0)", "50.0 (-)"]),
        (368, ["50.0 (50.0-50.0)"] * 3),
    ],
)
def test_no_percentile_and_no_interval_of_too_few(count: int, first: list[str]) -> None:
    row = bench_stats.summarise(
        [sample(at, 0.05, 0.5) for at in range(count)], rate=0, asked=count, client=CLIENT, seed=1
    )
    load = {"rate": 0, "concurrency": 1, "details": {}, **row}
    result = {"url": "u", "model": "m", "max_tokens": 5, "prompts": "ours", "loads": [load, load]}
    lines = bench_text.text(result).splitlines()
    line = next(line for line in lines if "(TTFT)" in line)
    assert re.split(r"\s{2,}", line.strip())[1:] == first
    one = count == 1
    assert any(f": {count} request{'' if one else 's'} in" in line for line in lines)
    assert any("1 answer says little" in line for line in lines) is one
    written = next(line for line in lines if line.strip().startswith("written"))
    assert ("(-) tokens/s" in written) is (count < 6)
    found = bench._row_values(row)
    assert ("ttft_p50_low" in found, "ttft_p99_high" in found) == (count >= 6, count >= 368)
