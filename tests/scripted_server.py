"""A server whose answers a test writes, piece by piece, and the benchmark's client against it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from labassist.serving import bench_client, bench_load, bench_prompts
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


CLIENT = {"core": 0.0, "late_ms": 0.0}


def failing(kind: str) -> Answer:
    """Fail as `kind` says, and close the connection."""

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
