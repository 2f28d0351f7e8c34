"""One streamed request to an OpenAI-compatible server, and when each part of its answer came.

The standard library's client in threads: it is there without a dependency, and its own cost is measured in each run.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from labassist.errors import InputError
from labassist.serving.client import KEYS
from labassist.serving.port import KEY

ERRORS = ("refused", "connect", "timeout", "http", "cut", "not-a-stream", "server", "empty", "other")
"""Kinds of failed requests: nobody listens; no way to the host; too slow; an HTTP status; the stream ended in the
middle; an answer that is no stream of events; an error told in the stream; a stream without a token; an answer of another model than the one of the run."""

CHAT, COMPLETIONS = "chat", "completions"
PROBE_SECONDS = 10.0
DONE = b"[DONE]"
_SHOWN = 200


class Failed(Exception):
    """A request failed: `kind` is one of ERRORS."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    url: str
    """As shown and recorded: without a name or password."""
    secure: bool
    host: str
    port: int
    path: str
    """Of the endpoint, as `/v1/chat/completions`."""
    root: str
    """What the paths of the interface begin with, as `/v1`."""
    alone: str = ""
    """The only model that may answer; empty where any may."""

    @property
    def api(self) -> str:
        """`chat` or `completions`."""
        return CHAT if self.path.endswith("/chat/completions") else COMPLETIONS

    def connection(self, seconds: float) -> http.client.HTTPConnection:
        """Return a connection that is not open yet."""
        if self.secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=seconds, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds)


@dataclass
class Sample:
    """One request. Times are seconds since the load began; of a failed one only `error` and the times so far hold."""

    index: int
    scheduled: float
    """When it was meant to start: latencies count from here, so that a late start cannot hide."""
    started: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    """When each part of the answer came that holds text."""
    ended: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    counted: bool = False
    """The server said how many tokens there were; else each part counts as one, and the prompt is not known."""
    error: str = ""
    detail: str = ""

    @property
    def ttft(self) -> float:
        """Time to the first token, from the scheduled start."""
        return self.arrivals[0] - self.scheduled

    @property
    def e2el(self) -> float:
        """Time to the last token, from the scheduled start."""
        return self.arrivals[-1] - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Mean time a token after the first one; None where there is no second one."""
        return (self.e2el - self.ttft) / (self.tokens_out - 1) if self.tokens_out > 1 else None

    @property
    def itl(self) -> list[float]:
        """Times between parts of the answer."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


def target(url: str) -> Target:
    """Return where a URL points: a server's root, its `/v1`, or an endpoint. Raises InputError on anything else."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port:
        raise InputError("is no URL of a server", where=url, mend="give one as http://127.0.0.1:8000")
    if parts.username or parts.password:
        raise InputError(
            "a URL with a name or password in it would be recorded",
            where=f"{parts.scheme}://…@{parts.hostname}",
            mend=f"give the key in the environment: {KEY}",
        )
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions"):
        if path.endswith(ending):
            root = path.removesuffix(ending)
            break
    else:
        root = path if path.endswith("/v1") else f"{path}/v1"
        path = f"{root}/chat/completions"
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = f"{parts.scheme}://{host}:{port}{path}"
    return Target(shown, parts.scheme == "https", parts.hostname, port, path, root)


def headers() -> dict[str, str]:
    """Return the headers of a request, the key among them where the environment has one."""
    found = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if key := next((os.environ[name] for name in KEYS if os.environ.get(name)), ""):
        found["Authorization"] = f"Bearer {key}"
    return found


def models(where: Target) -> list[dict[str, Any]]:
    """Return what a server says that it serves. Raises InputError where it cannot be asked."""
    connection = where.connection(PROBE_SECONDS)
    try:
        with telling(PROBE_SECONDS):
            connection.request("GET", f"{where.root}/models", headers=headers())
            response = connection.getresponse()
            body = response.read(1 << 20)
            if response.status != http.client.OK:
                raise Failed("http", _status(response.status, body))
            try:
                return [one for one in json.loads(body)["data"] if isinstance(one.get("id"), str)]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise Failed("not-a-stream", "its list of models is not of this interface") from None
    except Failed as error:
        mends = {
            "refused": "is it up? labassist serve MODEL starts one",
            "http": f"a key goes into {KEY}; the URL ends before /v1 or with it",
        }
        raise InputError(
            f"this server cannot be measured: {error.detail}",
            where=where.url,
            mend=mends.get(error.kind, "check the URL"),
        ) from None
    finally:
        connection.close()


class telling:  # noqa: N801 - it reads as the word that it is, like contextlib.suppress
    """Turn whatever a connection can raise into Failed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        match error:
            case TimeoutError():
                raise Failed("timeout", f"no whole answer within {self._seconds:g} s") from None
            case ConnectionRefusedError():
                raise Failed("refused", "nobody listens there") from None
            case http.client.RemoteDisconnected() | ConnectionResetError() | BrokenPipeError():
                raise Failed("cut", "the connection was closed in the middle") from None
            case http.client.IncompleteRead():
                raise Failed("cut", "the stream ended in the middle") from None
            case http.client.HTTPException():
                raise Failed("not-a-stream", f"no HTTP: {type(error).__name__}") from None
            case socket.gaierror() | OSError():
                raise Failed("connect", str(error.strerror or error)) from None
            case _:
                return


def ask(
    where: Target,
    connection: http.client.HTTPConnection,
    body: bytes,
    sample: Sample,
    began: float,
    seconds: float,
) -> None:
    """Send one request and fill in its sample. Never raises on what a server or a network does: `error` says it.

    `began` is the load's start by time.perf_counter; a request that has no end `seconds` after it was sent is given up.
    A connection that was kept open and has been closed by the server since is opened once more.
    """
    sample.started = time.perf_counter() - began
    deadline = time.perf_counter() + seconds
    try:
        with telling(seconds):
            fresh = connection.sock is None
            try:
                response = _send(where, connection, body, deadline)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if fresh:
                    raise
                connection.close()
                response = _send(where, connection, body, deadline)
            if response.status != http.client.OK:
                raise Failed("http", _status(response.status, response.read(1 << 16)))
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                start = response.read(_SHOWN).decode("utf-8", "replace")
                raise Failed("not-a-stream", f"it answered with {kind}: {' '.join(start.split())}")
            _read(response, connection, sample, began, deadline, where.alone)
    except Failed as failed:
        sample.error, sample.detail = failed.kind, failed.detail
        connection.close()
    sample.ended = time.perf_counter() - began


def _send(
    where: Target, connection: http.client.HTTPConnection, body: bytes, deadline: float
) -> http.client.HTTPResponse:
    connection.timeout = max(0.001, deadline - time.perf_counter())
    if connection.sock is None:
        connection.connect()
        # A request's head and body are two writes: the second must not wait for the first to be acknowledged.
        with contextlib.suppress(OSError):
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # type: ignore[attr-defined]
    connection.sock.settimeout(connection.timeout)
    connection.request("POST", where.path, body, headers())
    return connection.getresponse()


def _read(
    response: http.client.HTTPResponse,
    connection: http.client.HTTPConnection,
    sample: Sample,
    began: float,
    deadline: float,
    alone: str,
) -> None:
    """Read the events of a stream to its end. Raises Failed."""
    first = finished = False
    silent: list[float] = []
    sock = connection.sock  # a response that ends its connection takes the socket away from it
    while True:
        left = deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        if sock is not None and sock.fileno() >= 0:
            sock.settimeout(left)
        line = response.readline()
        if not line:
            break
        if not line.startswith(b"data:"):
            continue
        now = time.perf_counter() - began
        told = line[5:].strip()
        if told == DONE:
            finished = True
            response.read()  # the end of the chunked body: the connection can then be used again
            break
        event = _event(told)
        if alone and (model := event.get("model") or alone) != alone:
            raise Failed(
                "other", f"{model} answered, and {alone} was asked: another server is at this address"
            )
        choices = event.get("choices") or []
        if choices:
            if _has_text(choices[0]):
                sample.arrivals.append(now)
            else:
                silent.append(now)
            finished = finished or bool(choices[0].get("finish_reason"))
        first = first or bool(choices)
        if usage := event.get("usage"):
            sample.tokens_in = int(usage.get("prompt_tokens") or 0)
            sample.tokens_out = int(usage.get("completion_tokens") or 0)
            sample.counted = "completion_tokens" in usage
    if not finished:
        raise Failed("cut", "the stream ended in the middle")
    if not sample.arrivals:
        # Tokens without text (an end at once, special tokens) are an answer too, where the server counts them.
        if not (sample.counted and sample.tokens_out and silent):
            raise Failed("empty", "the stream ended without a token")
        sample.arrivals = silent
    if not sample.counted:
        sample.tokens_out = len(sample.arrivals)


def _event(told: bytes) -> dict[str, Any]:
    try:
        event = json.loads(told)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        start = told[:_SHOWN].decode("utf-8", "replace")
        raise Failed("not-a-stream", f"an event is no JSON object: {start}")
    if error := event.get("error"):
        message = error.get("message") if isinstance(error, dict) else error
        raise Failed("server", " ".join(str(message).split())[:_SHOWN])
    return event


def _has_text(choice: dict[str, Any]) -> bool:
    """Say whether a part of an answer holds any: text, what a reasoning model thinks, or the call of a tool."""
    part = choice.get("delta") or choice
    return any(part.get(key) for key in ("content", "text", "reasoning_content", "reasoning", "tool_calls"))


def _status(status: int, body: bytes) -> str:
    """Return an HTTP status with what the server says of it."""
    text = body.decode("utf-8", "replace")
    try:
        error = json.loads(text)
        told = error.get("error", error)
        text = str(told.get("message", text) if isinstance(told, dict) else told)
    except (ValueError, AttributeError):
        pass
    return f"HTTP {status}: {' '.join(text.split())[:_SHOWN]}".rstrip(": ")
