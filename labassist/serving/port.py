"""Addresses: is a port free, who has it, and how it is reached from elsewhere."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
from collections.abc import Sequence

from labassist.errors import InputError
from labassist.ledger.store import Ledger
from labassist.runs import life
from labassist.serving import JOB
from labassist.serving.place import READY

KEY = "VLLM_API_KEY"
"""Environment variable with the key that a server asks of its clients; vLLM reads it by itself."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - an address to recognise


def chosen(host: str, port: int, ledger: Ledger) -> int:
    """Return the port to serve on: `port` where it is free, a free one for 0.

    A port of a living run of this ledger is taken, though a server that loads does not listen yet. Raises InputError
    where it is taken (by whom, as far as that can be told), or where this machine has no such address.
    """
    if not 0 <= port <= 65535:
        raise InputError("is no port", where=f"--port {port}", mend="give 1024 to 65535, or 0 for a free one")
    ours = _ours(ledger)
    if port in ours:
        raise _taken(port, f" by {ours[port]}")
    while (number := _bindable(host, port)) in ours:
        continue
    return number


def _bindable(host: str, port: int) -> int:
    """Return the port that could be bound just now. Raises InputError where none can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                held = " and ".join(name for _pid, name in sorted((listeners(host, port) or {}).items()))
                raise _taken(port, f" by {held}" if held else "") from None
            what = "no such address on this machine" if isinstance(error, socket.gaierror) else error.strerror
            raise InputError(
                f"cannot be served on: {what}", where=f"{host}:{port}", mend="give --host 127.0.0.1"
            ) from None
        return int(probe.getsockname()[1])


def _taken(port: int, by_whom: str) -> InputError:
    return InputError(
        f"port {port} is taken{by_whom}",
        where=f"--port {port}",
        mend="stop that one, or give --port 0 for a free port",
    )


def _ours(ledger: Ledger) -> dict[int, str]:
    """Return the ports of this ledger's living servers, each with whose it is, in words."""
    return {
        int(document["config"]["port"]): f"run {document['id']}, a server of {document['config']['name']}"
        for document in ledger.running()
        if document["job"] == JOB and life.held(ledger.run_folder(document["id"]) / "alive")
    }


def listeners(host: str, port: int) -> dict[int, str] | None:
    """Return who listens where a server on this address would, as pid -> its name in words.

    The pid is 0 for a process that is not ours to see. None where this system does not say (macOS).
    """
    import psutil

    near = {str(one[4][0]) for one in socket.getaddrinfo(host, port)}
    wild = bool(near & set(WILDCARDS))
    try:
        there = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    found = {}
    for one in there:
        if one.status != psutil.CONN_LISTEN or not one.laddr or one.laddr.port != port:
            continue
        if not wild and one.laddr.ip not in near and one.laddr.ip not in WILDCARDS:
            continue
        name = "a process of somebody else"
        if one.pid:
            with contextlib.suppress(psutil.Error):
                name = f"process {one.pid} ({psutil.Process(one.pid).name()})"
        found[one.pid or 0] = name
    return found


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def need_key(host: str) -> str:
    """Return the warning that an open address deserves, empty for a loopback. Raises InputError where it has no key."""
    if is_loopback(host):
        return ""
    if not os.environ.get(KEY):
        raise InputError(
            "whoever reaches this machine could use the model, and no key is set",
            where=f"--host {host}",
            mend=f"export {KEY}=... (a long random text), or leave --host out and reach it through ssh -L",
        )
    return (
        f"{host} is open to whoever reaches this machine; the key in {KEY} is asked for, and goes over the network "
        "unencrypted: ssh -L is safer"
    )


def url(host: str, port: int) -> str:
    """Return the address of the API, as a client on this machine uses it."""
    near = WILDCARDS.get(host, host)
    return f"http://[{near}]:{port}/v1" if ":" in near else f"http://{near}:{port}/v1"


def served_by(ledger: Ledger, address: tuple[str, int]) -> str:
    """Return the run of this ledger that serves an address now; empty where none does.

    Raises InputError where one is going to, and is still loading.
    """
    host, port = address
    for document in reversed(ledger.running()):
        config = document.get("config", {})
        if document["job"] != JOB or config.get("port") != port:
            continue
        near = WILDCARDS.get(config["host"], config["host"])
        if host == near or (is_loopback(host) and is_loopback(near)):
            run = str(document["id"])
            if ready(ledger, run) is None and life.held(ledger.run_folder(run) / "alive"):
                raise loading(run)
            return run
    return ""


def loading(run: str) -> InputError:
    """Return what is said of a server that does not answer yet."""
    return InputError(
        "this server is still loading", where=f"run {run}", mend=f"watch it: labassist logs {run} -f"
    )


def ready(ledger: Ledger, run: str) -> dict[str, object] | None:
    """Return what a server wrote when it was ready; None before that."""
    try:
        told = json.loads((ledger.run_folder(run) / READY).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def expect(ledger: Ledger, run: str, there: Sequence[str], where: str) -> None:
    """Raise InputError where what answers at an address serves other models than its run does."""
    served = (ready(ledger, run) or {}).get("models")
    if isinstance(served, list) and not set(served) & set(there):
        raise InputError(
            f"{', '.join(there) or 'nothing'} is served there, and run {run} serves {', '.join(served)}: another "
            "server is at its address",
            where=where,
            mend="see who listens there: ss -ltnp",
        )
