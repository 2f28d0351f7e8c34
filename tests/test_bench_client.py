"""The serving benchmark's client: times and counts of an answer, and a name for each failure."""

from __future__ import annotations

import dataclasses
import socket
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from scripted_server import CLIENT, begin, drive, event, failing, part, sample, serving, tokens

from labassist.errors import InputError
from labassist.serving import bench_client, bench_prompts, bench_stats
from labassist.serving.bench_client import Sample


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
    assert len(one.itl) == 1 and one.itl[0] >= 0.05  # a busy client may be late for the first


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
        found = drive(url, 3, most=2, seconds=0.4 if kind == "timeout" else 10)
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


def test_the_key_comes_from_the_environment_alone(monkeypatch: Any) -> None:
    for name in bench_client.KEYS:
        monkeypatch.delenv(name, raising=False)
    assert "Authorization" not in bench_client.headers()
    monkeypatch.setenv("OPENAI_API_KEY", "abc")
    assert bench_client.headers()["Authorization"] == "Bearer abc"
