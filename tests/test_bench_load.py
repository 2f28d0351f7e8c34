"""The serving benchmark's loops: who is asked when, and what a stall or a late client does to a latency."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from scripted_server import drive, serving, tokens

from labassist.serving import bench_load


def test_arrivals_are_poisson() -> None:
    times = bench_load.poisson(4000, 5.0, seed=1)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.07)
    assert times == bench_load.poisson(4000, 5.0, seed=1) != bench_load.poisson(4000, 5.0, seed=2)


def test_a_closed_loop_has_so_many_in_flight_and_no_more() -> None:
    now, most = [0], [0]
    lock = threading.Lock()
    together = threading.Barrier(5)

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if number < 5:
            together.wait(10)  # the first five are here at once, or it breaks
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        tokens(handler)

    with serving(answer) as url:
        found = drive(url, 30, most=5)
    assert [one.index for one in found] == list(range(30))
    assert not [one.detail for one in found if one.error]
    assert most[0] == 5


@pytest.mark.fault
def test_a_stall_is_met_by_all_that_were_due_in_it() -> None:
    """Coordinated omission: one worker, which stands still for 0.6 s at its eleventh request.

    Counted from when a request was sent, one of forty is slow; counted from when it was due, so are those behind it.
    """
    one_at_a_time = threading.Lock()

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        with one_at_a_time:
            if number == 10:
                time.sleep(0.6)
            tokens(handler)

    with serving(answer) as url:
        closed = drive(url, 40, most=1)
        with_rate = None
    with serving(answer) as url:
        with_rate = drive(url, 40, rate=40.0)
    assert not [one.detail for one in [*closed, *with_rate] if one.error]
    slow_closed = sum(one.e2el > 0.3 for one in closed)
    slow_open = sum(one.e2el > 0.3 for one in with_rate)
    assert slow_closed == 1, [one.e2el for one in closed]
    assert slow_open >= 8, [one.e2el for one in with_rate]


@pytest.mark.fault
def test_latency_counts_from_the_scheduled_arrival_where_the_client_is_late(monkeypatch: Any) -> None:
    """With one connection at most, requests wait here: their wait is theirs."""
    monkeypatch.setattr(bench_load, "MOST_AT_ONCE", 1)

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        time.sleep(0.05)
        tokens(handler)

    with serving(answer) as url:
        found = drive(url, 20, rate=200.0)
    last = found[-1]
    assert last.started - last.scheduled > 0.3
    assert last.e2el > last.started - last.scheduled + 0.05
    assert [one.scheduled for one in found] == bench_load.poisson(20, 200.0, 3)
