"""Ask a server and keep what it answered, where it is a server that this workspace records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.ledger import answers
from labassist.ledger.store import Ledger
from labassist.record.protocol import utc_now
from labassist.serving import JOB, port
from labassist.serving.client import Answer, Cut, Server

Each = Callable[[str], None]


@dataclass
class Talk:
    """A conversation with one model. `messages` grows with each answer that came to its end."""

    server: Server
    model: str
    sampling: dict[str, Any]
    run: str = ""
    """The recorded run that serves it; empty: somebody else's server, or not to be kept."""
    folder: Path | None = None
    """That run's folder."""
    kept: int = 0
    """Answers that were kept with it, whole or cut."""
    alone: bool = False
    """Another model must not answer: it is known which server this address belongs to."""
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, message: str, each: Each) -> Answer:
        """Ask and keep the answer. Raises InputError where none begins, Cut where it does not end; that is kept too."""
        asked = [*self.messages, {"role": "user", "content": message}]
        began = utc_now()
        try:
            request = {"model": self.model, "messages": asked, **self.sampling}
            answer = self.server.chat(request, each, alone=self.alone)
        except Cut as error:
            if error.answer is not None:
                self._keep(began, asked, error.answer)
            raise
        self._keep(began, asked, answer)
        if answer.finish_reason != "interrupted":
            self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        return answer

    def _keep(self, time: str, asked: list[dict[str, str]], answer: Answer) -> None:
        if self.folder is None:
            return
        kept = {
            "time": time,
            "model": answer.model,
            "messages": asked,
            "answer": answer.text,
            "sampling": self.sampling,
            "finish_reason": answer.finish_reason,
            "usage": answer.usage,
            "seconds": answer.seconds,
            "first_token_s": answer.first_token_s,
        }
        answers.append(self.folder, kept)
        self.kept += 1


def sendable(text: str, where: str) -> str:
    """Return a text that a server can be sent. Raises InputError where it was not written in UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # bytes that the interpreter could not read stand in it as surrogates
        raise not_text(where) from None
    return text


def not_text(where: str) -> InputError:
    """Return what is said of bytes that are no text."""
    return InputError("is no UTF-8 text", where=where, mend="convert it: iconv -t utf-8")


def address(ledger: Ledger | None, asked: str) -> tuple[str, str]:
    """Return the address that an URL or a run means, and the run of this ledger that serves it.

    Raises InputError for a run that is no server, is still loading or has ended.
    """
    looks = "://" in asked or ":" in asked or "/" in asked or asked == "localhost" or "." in asked
    if looks:
        server = Server(asked)
        return asked, port.served_by(ledger, (server.host, server.port)) if ledger else ""
    if ledger is None:
        raise InputError("there is no workspace here", where=asked, mend="give an URL, or --workspace DIR")
    document = ledger.find(asked)
    where = f"run {document['id']}"
    if document["job"] != JOB:
        raise InputError(
            f"is a run of {document['job']}, not a server",
            where=where,
            mend="start one: labassist serve MODEL",
        )
    if document["state"] != "running":
        raise InputError(
            f"this server has ended ({document['state']})",
            where=where,
            mend="start it again: labassist serve MODEL",
        )
    if port.ready(ledger, document["id"]) is None:
        raise port.loading(str(document["id"]))
    return str(document["config"]["url"]), str(document["id"])


def open_talk(
    ledger: Ledger | None,
    asked: str,
    *,
    model: str,
    system: str,
    sampling: dict[str, Any],
    record: bool,
    timeout: float,
) -> Talk:
    """Return a conversation with the server that is meant. Raises InputError where it cannot be had."""
    url, run = address(ledger, asked)
    server = Server(url, timeout)
    if not model or run:
        there = server.models()
        if not there:
            raise InputError("serves no model", where=server.url, mend="name one with --model")
        if run and ledger is not None:
            port.expect(ledger, run, there, server.url)
        model = model or there[0]
    talk = Talk(server, model, sampling, alone=bool(run))
    if run and record and ledger is not None and not ledger.readonly:
        talk.run, talk.folder = run, ledger.run_folder(run)
    if system:
        talk.messages.append({"role": "system", "content": system})
    return talk
