"""The two ways to load a server: so many at a time, or arrivals at a rate whatever the server does.

In a closed loop a slow server is asked less often, so that its worst moments are met by few requests. An open loop
keeps its timetable, and counts each latency from the scheduled arrival: what a stall makes the others wait is seen
(coordinated omission, as G. Tene calls what a closed loop leaves out).
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from labassist.serving import bench_client
from labassist.serving.bench_client import Sample, Target

MOST_AT_ONCE = 512
"""Requests in flight at most; later ones wait here, and their wait counts."""
_POLL = 0.1


@dataclass(frozen=True)
class Load:
    """What is sent: `bodies` in order, one request each."""

    where: Target
    bodies: Sequence[bytes]
    concurrency: int
    """Of a closed loop."""
    rate: float
    """Arrivals a second of an open loop; 0: a closed one."""
    seconds: float
    """After which a request is given up."""
    seed: int


def poisson(count: int, rate: float, seed: int) -> list[float]:
    """Return the times of `count` arrivals at a rate, the first at 0: times in between are exponential."""
    draw = random.Random(seed)
    times, at = [], 0.0
    for _ in range(count):
        times.append(at)
        at += draw.expovariate(rate)
    return times


def drive(load: Load, stopped: Callable[[], bool]) -> Iterator[Sample]:
    """Send the load and give each request when it has ended, in that order.

    When `stopped` says so, no more is sent, and what is in flight is left alone: it is not given.
    """
    done: queue.SimpleQueue[Sample] = queue.SimpleQueue()
    halt = threading.Event()
    began = time.perf_counter()
    if load.rate:
        threading.Thread(target=_timetable, args=(load, began, done, halt), daemon=True).start()
    else:
        turns: Iterator[int] = iter(range(len(load.bodies)))
        lock = threading.Lock()

        def take() -> Sample | None:
            with lock:
                index = next(turns, None)
            return None if index is None or halt.is_set() else Sample(index, time.perf_counter() - began)

        for _ in range(min(load.concurrency, len(load.bodies))):
            threading.Thread(target=_work, args=(load, began, take, done), daemon=True).start()
    try:
        for _ in load.bodies:
            while True:
                if stopped():
                    return
                try:
                    yield done.get(timeout=_POLL)
                    break
                except queue.Empty:
                    continue
    finally:
        halt.set()


def _work(
    load: Load, began: float, take: Callable[[], Sample | None], done: queue.SimpleQueue[Sample]
) -> None:
    """Ask one after the other over one connection."""
    connection = load.where.connection(load.seconds)
    while (sample := take()) is not None:
        bench_client.ask(load.where, connection, load.bodies[sample.index], sample, began, load.seconds)
        done.put(sample)
    connection.close()


def _timetable(load: Load, began: float, done: queue.SimpleQueue[Sample], halt: threading.Event) -> None:
    """Hand out requests when they are due, to a worker that is free or, while there may be more, to a new one."""
    due: queue.SimpleQueue[Sample | None] = queue.SimpleQueue()
    free = threading.Semaphore(0)
    workers = 0

    def take() -> Sample | None:
        free.release()
        return due.get()

    for index, at in enumerate(poisson(len(load.bodies), load.rate, load.seed)):
        wait = began + at - time.perf_counter()
        if halt.wait(wait) if wait > 0 else halt.is_set():
            break
        due.put(Sample(index, at))
        if not free.acquire(blocking=False) and workers < MOST_AT_ONCE:
            workers += 1
            threading.Thread(target=_work, args=(load, began, take, done), daemon=True).start()
            free.acquire()
    for _ in range(workers):
        due.put(None)
