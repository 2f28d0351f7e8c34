"""Talk to a server that speaks OpenAI's chat API, as vLLM does: the standard library and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from labassist.errors import InputError
from labassist.serving.port import KEY

KEYS = (KEY, "OPENAI_API_KEY")
"""Environment variables with the key that is sent, the first that is set. It is never recorded."""

CONNECT_S = 10.0
LONGEST_ERROR = 300


class Cut(InputError):
    """The server went away in the middle of an answer, or fell silent."""

    status = 1
    answer: Answer | None = None
    """As far as it came."""


@dataclass
class Answer:
    """One answer, whole or as far as it came."""

    text: str = ""
    model: str = ""
    """As the server says, or as it was asked for where it does not."""
    finish_reason: str = ""
    """As the server has it (`stop`, `length`); `cut` or `interrupted` where it did not come to its end."""
    usage: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    first_token_s: float | None = None


class Server:
    """One server, by its address."""

    def __init__(self, url: str, timeout: float = 300.0) -> None:
        """Take an address such as `http://127.0.0.1:8000/v1`; scheme and `/v1` may be left out."""
        self._timeout = timeout
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.username:
            raise InputError("is no address", where=url, mend="give one as http://127.0.0.1:8000/v1")
        self._secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self._secure else 80)
        path = parts.path.removesuffix("/").removesuffix("/chat/completions")
        self._path = path or "/v1"
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"{parts.scheme}://{name}:{self.port}{self._path}"

    def models(self) -> list[str]:
        """Return the names of the models that are served. Raises InputError."""
        with self._asking("GET", "/models", None) as response:
            told = self._document(response)
        data = told.get("data")
        return [str(one["id"]) for one in data if "id" in one] if isinstance(data, list) else []

    def chat(self, request: dict[str, Any], each: Callable[[str], None], *, alone: bool = False) -> Answer:
        """Ask, calling `each` with every piece of the answer as it comes.

        `request` has `model`, `messages` and the sampling settings. Raises InputError where no answer begins, and Cut,
        whose `answer` is what came, where it does not end. Ctrl-c ends it too. With `alone`, only the model that was
        asked for may answer.
        """
        answer = Answer(model=str(request["model"]))
        began = time.monotonic()
        body = {**request, "stream": True, "stream_options": {"include_usage": True}}
        try:
            with self._asking("POST", "/chat/completions", body) as response:
                if response.status == 404:
                    raise self._no_model(str(request["model"]), response)
                if response.status != 200:
                    raise self._refused(response)
                self._read(response, answer, each, began, str(request["model"]) if alone else "")
        except KeyboardInterrupt:
            answer.finish_reason = "interrupted"
        except Cut as error:
            answer.finish_reason = "cut"
            error.answer = answer
            raise
        finally:
            answer.seconds = round(time.monotonic() - began, 3)
        return answer

    def _read(
        self,
        response: http.client.HTTPResponse,
        answer: Answer,
        each: Callable[[str], None],
        began: float,
        wanted: str,
    ) -> None:
        ended = False
        for data in self._events(response):
            if data == "[DONE]":
                ended = True
                break
            try:
                piece = json.loads(data)
            except ValueError:
                raise Cut("the server sent what is no JSON", where=self.url, mend="see its log") from None
            if "error" in piece:
                raise Cut(f"the server gave up: {_error(piece)}", where=self.url, mend="see its log")
            answer.model = str(piece.get("model") or answer.model)
            if wanted and answer.model != wanted:
                raise InputError(
                    f"{answer.model} answered, and {wanted} was asked: another server is at this address",
                    where=self.url,
                    mend="see who listens there: ss -ltnp",
                )
            answer.usage = _usage(piece.get("usage")) or answer.usage
            for choice in piece.get("choices", []):
                text = (choice.get("delta") or {}).get("content") or ""
                if text:
                    if answer.first_token_s is None:
                        answer.first_token_s = round(time.monotonic() - began, 3)
                    answer.text += text
                    each(text)
                answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        if not ended and not answer.finish_reason:
            raise self._gone("it closed the connection in the middle of an answer")

    def _events(self, response: http.client.HTTPResponse) -> Iterator[str]:
        """Yield the data of each server-sent event. Raises Cut where the stream breaks."""
        try:
            while line := response.readline():
                text = line.decode("utf-8", "replace").strip()
                if text.startswith("data:"):
                    yield text.removeprefix("data:").strip()
        except TimeoutError:
            raise Cut(
                f"nothing came for {self._timeout:g} s",
                where=self.url,
                mend="see the server's log, or give --timeout S",
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._gone(f"the connection broke in the middle of an answer ({_why(error)})") from None

    def _gone(self, what: str) -> Cut:
        return Cut(
            what, where=self.url, mend="see whether the server lives: labassist attach, labassist logs RUN"
        )

    @contextlib.contextmanager
    def _asking(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and give its response. Raises InputError where there is none."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=CONNECT_S)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        key = next((os.environ[name] for name in KEYS if os.environ.get(name)), "")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout)
            connection.request(method, self._path + path, json.dumps(body) if body else None, headers)
            response = connection.getresponse()
            if response.status == 401:
                raise InputError(
                    "asks for a key, and has "
                    + ("not accepted the one that was sent" if key else "got none"),
                    where=self.url,
                    mend=f"export {KEY}=..., as it was where the server was started",
                )
            yield response
        except ConnectionRefusedError:
            raise InputError(
                "nobody listens there",
                where=self.url,
                mend="start one: labassist serve MODEL; or bring it here: ssh -L PORT:127.0.0.1:PORT MACHINE",
            ) from None
        except socket.gaierror:
            raise InputError(
                "there is no machine of that name", where=self.url, mend="check the address"
            ) from None
        except TimeoutError:
            raise InputError(
                "does not answer in time", where=self.url, mend="see the server's log, or give --timeout S"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise InputError(
                f"the connection broke before an answer ({_why(error)})",
                where=self.url,
                mend="see whether it is the address of a server that speaks OpenAI's API, and whether it lives",
            ) from None
        finally:
            connection.close()

    def _document(self, response: http.client.HTTPResponse) -> dict[str, Any]:
        text = response.read(1 << 20)
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if response.status != 200 or not isinstance(told, dict):
            raise InputError(
                f"does not speak OpenAI's API (status {response.status})",
                where=self.url,
                mend="give the address that ends in /v1",
            )
        return told

    def _no_model(self, model: str, response: http.client.HTTPResponse) -> InputError:
        response.read(1 << 20)
        there = self.models()
        return InputError(
            f"serves no model {model!r}; there are: {', '.join(there) or 'none'}",
            where=self.url,
            mend="give one of them with --model",
        )

    def _refused(self, response: http.client.HTTPResponse) -> InputError:
        text = response.read(1 << 16)
        try:
            what = _error(json.loads(text))
        except ValueError:
            what = text.decode("utf-8", "replace")
        return InputError(
            f"status {response.status}: {' '.join(what.split())[:LONGEST_ERROR]}",
            where=self.url,
            mend="see the server's log" if response.status >= 500 else "change the request",
        )


def _usage(told: Any) -> dict[str, int]:
    kept = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {key: int(told[key]) for key in kept if key in told} if isinstance(told, dict) else {}


def _error(told: Any) -> str:
    error = told.get("error", told) if isinstance(told, dict) else told
    return str(error.get("message", error) if isinstance(error, dict) else error)[:LONGEST_ERROR]


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:120]
