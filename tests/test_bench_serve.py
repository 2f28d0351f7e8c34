"""The serving benchmark: its statistics, its loops, what it says of servers that misbehave, its record."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import command
import pytest

from labassist.errors import InputError
from labassist.serving import bench, bench_client, bench_load, bench_prompts, bench_stats, bench_text
from labassist.serving.bench_client import Sample

Answer = Callable[[BaseHTTPRequestHandler, int], None]


def event(handler: BaseHTTPRequestHandler, told: Any) -> None:
    text = told if isinstance(told, str) else json.dumps(told)
    data = f"data: {text}\n\n".encode()
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    handler.wfile.flush()


def begin(handler: BaseHTTPRequestHandler, kind: str = "text/event-stream") -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def tokens(handler: BaseHTTPRequestHandler, count: int = 4, usage: bool = True) -> None:
    """A whole answer."""
    begin(handler)
    event(handler, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for _ in range(count):
        event(handler, part("a "))
    event(handler, part("", finish_reason="length"))
    if usage:
        event(handler, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": count}})
    event(handler, "[DONE]")
    handler.wfile.write(b"0\r\n\r\n")


@contextmanager
def serving(answer: Answer = lambda handler, number: tokens(handler)) -> Iterator[str]:
    """A server of this interface that answers as told; `number` counts its requests from 0."""
    seen = iter(range(10**6))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = json.dumps({"data": [{"id": "little", "max_model_len": 512}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = next(seen)
            answer(self, number)

        def log_message(self, *_words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def drive(url: str, count: int, *, most: int = 1, rate: float = 0.0, seconds: float = 10.0) -> list[Sample]:
    where = bench_client.target(url)
    prompts = bench_prompts.own(count, 1, 40)
    bodies = [bench_prompts.body(one, where, "little", 4, ignore_eos=False) for one in prompts]
    load = bench_load.Load(where, bodies, most, rate, seconds, seed=3)
    return sorted(bench_load.drive(load, lambda: False), key=lambda one: one.index)


def sample(index: int, ttft: float, e2el: float, count: int = 5) -> Sample:
    """A request that was scheduled at its index, with evenly spaced tokens."""
    times = [index + ttft + (e2el - ttft) * at / (count - 1) for at in range(count)]
    return Sample(index, index, index, times, index + e2el, 10, count, True)


def said(workspace: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return command.labassist(*words, cwd=workspace.root, status=None)


CLIENT = {"core": 0.0, "late_ms": 0.0}

# ---------------------------------------------------------------------------- statistics


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


# ---------------------------------------------------------------------------- the loops


def test_arrivals_are_poisson() -> None:
    times = bench_load.poisson(4000, 5.0, seed=1)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.07)
    assert times == bench_load.poisson(4000, 5.0, seed=1) != bench_load.poisson(4000, 5.0, seed=2)


def test_a_closed_loop_has_so_many_in_flight_and_no_more() -> None:
    now, most = [0], [0]
    lock = threading.Lock()

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
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


# ---------------------------------------------------------------------------- answers and failures


def test_times_and_counts_of_an_answer() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        begin(handler)
        time.sleep(0.1)
        event(handler, part("a"))
        time.sleep(0.2)
        event(handler, part("b", finish_reason="stop"))
        event(handler, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
        event(handler, "[DONE]")
        handler.wfile.write(b"0\r\n\r\n")

    with serving(answer) as url:
        (one,) = drive(url, 1)
    assert one.error == "" and one.counted
    assert (one.tokens_in, one.tokens_out) == (9, 3)
    assert 0.1 <= one.ttft < one.e2el and one.e2el >= 0.3
    assert one.tpot == pytest.approx((one.e2el - one.ttft) / 2)
    assert len(one.itl) == 1 and one.itl[0] >= 0.15


def test_without_usage_the_parts_are_counted() -> None:
    with serving(lambda handler, number: tokens(handler, 6, usage=False)) as url:
        (one,) = drive(url, 1)
    assert not one.counted and one.tokens_out == 6 and one.tokens_in == 0


def test_completions_are_asked_where_the_url_says_so() -> None:
    asked: list[dict[str, Any]] = []

    def answer(handler: Any, number: int) -> None:
        asked.append({**handler.body, "path": handler.path})
        begin(handler)
        event(handler, {"choices": [{"index": 0, "text": "a"}]})
        event(handler, {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        event(handler, "[DONE]")
        handler.wfile.write(b"0\r\n\r\n")

    with serving(answer) as url:
        (one,) = drive(f"{url}/v1/completions", 1)
        (chat,) = drive(url, 1)
    assert one.error == chat.error == "" or chat.error == "", (one, chat)
    assert asked[0]["path"] == "/v1/completions" and isinstance(asked[0]["prompt"], str)
    assert asked[1]["path"] == "/v1/chat/completions" and asked[1]["messages"][0]["role"] == "user"
    assert asked[0]["stream"] is True and asked[0]["stream_options"] == {"include_usage": True}


def failing(kind: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.close_connection = True
        if kind == "http":
            data = b'{"error": {"message": "the engine is dead"}}'
            handler.send_response(500)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
        elif kind == "not-a-stream":
            begin(handler, "text/html")
            data = b"<h1>hello</h1>"
            handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n")
        elif kind == "cut":
            begin(handler)
            event(handler, part("a"))
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif kind == "timeout":
            begin(handler)
            for _ in range(30):
                time.sleep(0.05)
                event(handler, part("a"))
        elif kind == "server":
            begin(handler)
            event(handler, part("a"))
            event(handler, {"error": {"message": "out of memory"}})
            handler.wfile.write(b"0\r\n\r\n")
        elif kind == "empty":
            begin(handler)
            event(handler, "[DONE]")
            handler.wfile.write(b"0\r\n\r\n")

    return answer


SAID = {
    "http": "HTTP 500: the engine is dead",
    "not-a-stream": "it answered with text/html: <h1>hello</h1>",
    "cut": "the stream ended in the middle",
    "timeout": "no whole answer within 0.4 s",
    "server": "out of memory",
    "empty": "the stream ended without a token",
}


@pytest.mark.fault
@pytest.mark.parametrize("kind", SAID)
def test_each_kind_of_failure_has_its_name(kind: str) -> None:
    with serving(failing(kind)) as url:
        found = drive(url, 3, most=2, seconds=0.4)
    assert [one.error for one in found] == [kind] * 3
    assert found[0].detail == SAID[kind]


@pytest.mark.fault
def test_a_stream_that_ends_cleanly_in_the_middle_is_cut() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        begin(handler)
        event(handler, part("a"))
        handler.wfile.write(b"0\r\n\r\n")

    with serving(answer) as url:
        (one,) = drive(url, 1)
    assert one.error == "cut"


@pytest.mark.fault
def test_an_answer_of_another_model_is_no_answer_of_the_run() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        begin(handler)
        event(handler, {**part("a", finish_reason="stop"), "model": "big" if number else "little"})
        event(handler, "[DONE]")
        handler.wfile.write(b"0\r\n\r\n")

    with serving(answer) as url:
        where = dataclasses.replace(bench_client.target(url), alone="little")
        found = [Sample(0, 0.0), Sample(1, 0.0)]
        body = bench_prompts.body(bench_prompts.own(1, 1, 40)[0], where, "little", 4, ignore_eos=False)
        for one in found:
            bench_client.ask(where, where.connection(5), body, one, time.perf_counter(), 5)
    assert [one.error for one in found] == ["", "other"] and "big answered" in found[1].detail


@pytest.mark.fault
def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = drive(f"http://127.0.0.1:{port}", 2)
    assert [one.error for one in found] == ["refused", "refused"]
    with pytest.raises(InputError, match="nobody listens there"):
        bench_client.models(bench_client.target(f"http://127.0.0.1:{port}"))


@pytest.mark.fault
def test_a_connection_that_the_server_closed_between_two_requests_is_no_failure() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        tokens(handler)
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    with serving(answer) as url:
        found = drive(url, 5)
    assert not [one.detail for one in found if one.error]


def test_the_failed_ones_are_counted_by_kind_and_not_among_the_latencies() -> None:
    failed = Sample(3, 3.0, 3.0, ended=3.1, error="http", detail="HTTP 500")
    good = [sample(at, 0.1, 0.5) for at in range(3)]
    row = bench_stats.summarise([*good, failed], rate=0, asked=4, client=CLIENT, seed=1)
    assert row["errors"] == {"http": 1} and row["completed"] == 3 and row["requests"] == 4
    assert row["e2el_ms"]["p99"]["value"] == pytest.approx(500)


# ---------------------------------------------------------------------------- what is given


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1/chat/completions"),
        ("127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1/chat/completions"),
        ("https://a.example/api/v1", "https://a.example:443/api/v1/chat/completions"),
        ("http://h:1/v1/completions", "http://h:1/v1/completions"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/chat/completions"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert bench_client.target(url).url == shown


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:99999", "http://me:secret@host:1"])
def test_a_bad_url_is_one_line_without_its_password(url: str) -> None:
    with pytest.raises(InputError) as told:
        bench_client.target(url)
    assert "secret" not in str(told.value)


def test_own_prompts_are_seeded_varied_and_begin_apart() -> None:
    prompts = [one[0]["content"] for one in bench_prompts.own(300, 5, 240)]
    lengths = [len(text.split()) - 6 for text in prompts]
    assert min(lengths) >= 12 and max(lengths) <= 240 and len(set(lengths)) > 80
    assert len({text[:6] for text in prompts}) == 300
    assert prompts == [one[0]["content"] for one in bench_prompts.own(300, 5, 240)]
    assert bench_prompts.longest(0, 64) == 240 and bench_prompts.longest(200, 64) == 56
    with pytest.raises(InputError, match="no room for a prompt"):
        bench_prompts.longest(100, 64)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    rows = [
        {"instruction": "one", "output": "x"},
        {"prompt": "two"},
        {"messages": [{"role": "user", "content": "three"}, {"role": "assistant", "content": "x"}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert sorted(one[-1]["content"] for one in bench_prompts.of_file(path, 1)) == ["one", "three", "two"]
    text = tmp_path / "lines.txt"
    text.write_text("a\n\nb\n")
    assert len(bench_prompts.of_file(text, 1)) == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"prompt": "a"}\n{"answer": "b"}\n', ":2: holds no prompt"),
        ('{"prompt": "a"\n', ":1: is no JSON"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=told):
        bench_prompts.of_file(path, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--requests", "0"],
        ["--concurrency", "4,x"],
        ["--concurrency", "9999"],
        ["--rate", "-1"],
        ["--rate", "2", "--concurrency", "2"],
        ["--timeout", "0"],
        ["--warmup", "-1"],
    ],
)
def test_options_that_mean_nothing(words: list[str]) -> None:
    with pytest.raises(InputError):
        bench.loads(bench.options().parse_args(words))


def test_the_command_line_has_the_options_of_the_module() -> None:
    from labassist.cli.main import parse

    ours = vars(bench.options().parse_args([]))
    theirs = vars(parse(["bench-serve", "http://h"]))
    assert ours == {name: theirs[name] for name in ours}


def test_the_key_comes_from_the_environment_alone(monkeypatch: Any) -> None:
    for name in bench_client.KEYS:
        monkeypatch.delenv(name, raising=False)
    assert "Authorization" not in bench_client.headers()
    monkeypatch.setenv("OPENAI_API_KEY", "abc")
    assert bench_client.headers()["Authorization"] == "Bearer abc"


# ---------------------------------------------------------------------------- the recorded run


def test_a_measurement_is_a_recorded_run(workspace: Any, tmp_path: Path) -> None:
    with serving() as url:
        done = said(
            workspace, "bench-serve", url, "--requests", "12", "--concurrency", "1,3", "--csv",
            str(tmp_path / "requests.csv"), "--json",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [load["concurrency"] for load in result["loads"]] == [1, 3]
    assert [load["completed"] for load in result["loads"]] == [12, 12]
    assert all(load["tokens_out"] == 48 and load["counted"] == "usage" for load in result["loads"])
    shown = said(workspace, "show", "@last", "--json")
    run = json.loads(shown.stdout)
    assert (run["id"], run["job"], run["state"]) == (result["run"], "serving/bench", "finished")
    assert run["config"]["concurrency"] == "1,3" and run["config"]["model"] == "little"
    assert run["step"] == run["total_steps"] == 24 and run["last"]["failed"] == 0
    row = result["loads"][1]
    assert run["last"]["e2el_p95"] == pytest.approx(row["e2el_ms"]["p95"]["value"], abs=1e-3)
    assert run["last"]["tokens_per_s_low"] <= run["last"]["tokens_per_s"] <= run["last"]["tokens_per_s_high"]
    assert len(run["outputs"]) == 1 and run["outputs"][0]["sha256"]
    lines = (tmp_path / "requests.csv").read_text().splitlines()
    assert len(lines) == 25 and lines[0].startswith("step,") and "ttft_ms" in lines[0]
    first = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert (first["request"], first["error"], first["tokens_out"]) == ("0", "0", "4")
    assert any("P99" in line for line in run["warnings"])
    assert said(workspace, "audit").returncode == 0
    again = said(workspace, "replay", "@last", "--json")
    assert again.returncode == 6 and json.loads(again.stdout)["verdict"] == "INCOMPARABLE"
    assert "never come out twice" in again.stdout


@pytest.mark.fault
def test_a_server_that_only_fails_is_an_answer_of_no(workspace: Any) -> None:
    with serving(failing("http")) as url:
        done = said(workspace, "bench-serve", url, "--requests", "5", "--warmup", "0")
    assert done.returncode == 1, done.stderr
    assert "5 failed (5 http)" in done.stdout and "http: HTTP 500: the engine is dead" in done.stdout
    assert "no request was answered" in done.stderr


@pytest.mark.fault
def test_a_server_that_goes_away_fails_the_measurement(workspace: Any) -> None:
    stops: list[Any] = []

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.close_connection = True
        if number < 2:
            tokens(handler)
        elif number == 2:
            threading.Thread(target=handler.server.shutdown).start()
            handler.server.socket.close()
            stops.append(number)

    with serving(answer) as url:
        words = ("--requests", "30", "--warmup", "0", "--concurrency", "1,2")
        done = said(workspace, "bench-serve", url, *words)
    assert stops and done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("1 at a time"))
    assert lines[at + 1].startswith("  FAILED: 28 of 30 requests failed (")
    assert "the numbers are of the 2 answered; the server went away: " in lines[at + 1]
    assert not any(line.startswith("2 at a time") for line in lines)
    run = json.loads(said(workspace, "show", "@last", "--json").stdout)
    assert run["state"] == "failed" and "28 of 30 requests failed" in run["reason"]
    assert any("the server went away" in line for line in run["warnings"])


@pytest.mark.fault
@pytest.mark.parametrize(("failed", "fails"), [(2, False), (3, True)])
def test_more_than_one_failure_of_a_hundred_fails_a_measurement(failed: int, fails: bool) -> None:
    bad = [Sample(at, at, at, ended=at + 0.1, error="http", detail="HTTP 500") for at in range(failed)]
    good = [sample(at, 0.1, 0.5) for at in range(failed, 200)]
    row = bench_stats.summarise([*bad, *good], rate=0, asked=200, client=CLIENT, seed=1)
    assert bool(row["failure"]) is fails


@pytest.mark.fault
def test_ctrl_c_prints_what_there_is(workspace: Any) -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        time.sleep(0.1)
        tokens(handler)

    with serving(answer) as url:
        words = [sys.executable, "-m", "labassist", "bench-serve", url, "--requests", "5000", "--warmup", "0"]
        process = subprocess.Popen(
            words,
            cwd=workspace.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step"):
                break
        process.send_signal(signal.SIGINT)
        out, _err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 5000 requests" in out and "first token" in out
    run = json.loads(said(workspace, "show", "@last", "--json").stdout)
    assert run["state"] == "stopped" and 0 < run["step"] < 5000


@pytest.mark.fault
def test_what_cannot_be_measured_starts_no_run(workspace: Any, tmp_path: Path) -> None:
    done = said(workspace, "bench-serve", "http://127.0.0.1:1")
    assert done.returncode == 2 and "nobody listens there" in done.stderr
    with serving() as url:
        done = said(workspace, "bench-serve", url, "--model", "other")
        assert done.returncode == 2 and "it serves little" in done.stderr
        done = said(workspace, "bench-serve", url, "--prompts", str(tmp_path / "none.txt"))
        assert done.returncode == 2 and "none.txt" in done.stderr
    assert json.loads(said(workspace, "runs", "--json").stdout)["runs"] == []


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
