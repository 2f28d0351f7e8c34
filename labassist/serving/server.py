"""The process that a serving run is: it records what is served, starts vLLM, and says how that went.

    python -m labassist.serving.server -- PYTHON -m vllm.entrypoints.openai.api_server …

`labassist serve` has the run's supervisor start this. It stays beside the server for two reasons: readiness and the
cause of a death stand in the run whoever watches, and nothing of a server outlives it, whichever of its processes was
killed: a forgotten engine would keep a card's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from labassist.errors import LabError
from labassist.finetune import lineage, models
from labassist.finetune.merge import WEIGHTS
from labassist.record.durable import replace_file
from labassist.record.inspect import workspace_of
from labassist.record.protocol import Order, read_order, utc_now
from labassist.serving import causes, port
from labassist.serving.place import READY

POLL_S = 0.5
ANSWER_S = 5.0
"""Seconds that a server has to take a connection, and to say how it is."""
LEFT_S = 15.0
"""Seconds that what is left of a dead server has before it is killed."""

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve until stopped; 0 where that was asked for."""
    command = sys.argv[sys.argv.index("--") + 1 :]
    order = read_order()
    _die_with_parent()
    try:
        _inputs(order)
    except LabError as error:
        print(f"labassist: {error}", file=sys.stderr)
        return error.status
    return _Server(order, command).run()


def _inputs(order: Order) -> None:
    """Record the model and the adapters, each with what it came from."""
    assert order.folder is not None
    root = workspace_of(order.folder)
    config = order.config
    model = models.prepare(config["model"], root, say=_say)
    origin = {key: value for key, value in lineage.read(model.folder).items() if key != "checked"}
    origin |= {"merge": config["merge"]} if config.get("merge") else {}
    manifest = model.manifest.relative_to(root) if model.manifest.is_relative_to(root) else model.manifest
    order.input("model", manifest, {**model.facts(), **origin})
    for name, folder in config.get("adapters", {}).items():
        kept = lineage.read(root / folder)
        origin = {"run": kept.get("run", ""), "step": kept.get("step", 0), "data": kept.get("data", {})}
        order.input(f"adapter {name}", Path(folder) / WEIGHTS, origin)


def _say(line: str) -> None:
    print(f"labassist: {line}", flush=True)


class _Server:
    """One vLLM server, watched from its start to its end."""

    def __init__(self, order: Order, command: list[str]) -> None:
        assert order.folder is not None
        self._order = order
        self._folder = order.folder
        self._config = order.config
        self._asked = False
        self._misfortune = ""
        """Why we ended it ourselves."""
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)
        self._began = time.monotonic()
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment(self._config.get("env", {})),
            preexec_fn=_die_with_parent,
        )
        if self._asked:
            self._child.terminate()

    def _ask(self, _number: int, _frame: object) -> None:
        self._asked = True
        if hasattr(self, "_child"):
            self._child.terminate()

    def run(self) -> int:
        """Wait for readiness and for the end; return the status."""
        threading.Thread(target=self._await_ready, daemon=True).start()
        status = self._child.wait()
        end_group()
        if self._asked:
            return 0
        # vLLM says 0 too when its engine was killed and it gave up: nobody asked for that end.
        ready = (self._folder / READY).exists()
        cause = self._misfortune or causes.find(_log(self._folder), status, self._config)
        how = "was ended" if self._misfortune else "died"
        line = f"the server {how} while it {'served' if ready else 'was loading'}: {cause}"
        with contextlib.suppress(LabError):  # a full disk: the log says it too
            self._order.warn(line)
            self._order.write_event("finish", {"step": 0, "why": line, "curve": {}}, durable=True)
        return 128 - status if status < 0 else status or 1

    def _await_ready(self) -> None:
        """Write READY as soon as the server answers on /health, and it is ours that does.

        vLLM shares its port with whoever asks for that too (SO_REUSEPORT): requests would go to either. Where another
        process listens there, this server is ended.
        """
        host, number = self._config["probe"], int(self._config["port"])
        while self._child.poll() is None:
            there = port.listeners(self._config["host"], number) if listens(host, number) else {}
            others = [name for pid, name in sorted((there or {}).items()) if pid not in group()]
            if others and self._child.poll() is None:
                self._misfortune = f"port {number} is taken by {others[0]}; stop that one, or give --port 0"
                self._child.terminate()
                return
            if there != {} and answers(host, number):
                seconds = round(time.monotonic() - self._began, 1)
                told = {
                    "url": self._config["url"],
                    "models": [self._config["name"], *self._config.get("adapters", {})],
                    "ready": utc_now(),
                    "seconds": seconds,
                }
                try:
                    replace_file(self._folder / READY, json.dumps(told, indent=1).encode() + b"\n")
                except OSError as error:
                    _say(f"it answers, and that cannot be written down: {error.strerror}")
                else:
                    _say(f"ready after {seconds:g} s: {self._config['url']}")
                    return
            time.sleep(POLL_S)


def listens(host: str, number: int) -> bool:
    """Say whether anybody takes a connection there."""
    with contextlib.suppress(OSError), socket.create_connection((host, number), ANSWER_S):
        return True
    return False


def answers(host: str, number: int) -> bool:
    """Say whether a server on this host and port calls itself healthy."""
    connection = http.client.HTTPConnection(host, number, timeout=ANSWER_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def environment(settings: dict[str, Any]) -> dict[str, str]:
    """Return the environment of a vLLM server: ours, without what belongs to labassist's own interpreter."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LABASSIST_RUN_DIR", "OMP_DYNAMIC", "MKL_DYNAMIC")
    kept = {key: value for key, value in os.environ.items() if key not in ours}
    return {**kept, **{key: str(value) for key, value in settings.items()}}


def _die_with_parent() -> None:
    """Ask Linux for a SIGTERM when our parent dies; elsewhere there is no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def group() -> list[int]:
    """Return the living processes of our process group but ourselves: the server and its engine."""
    import psutil

    own, found = os.getpgid(0), []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if pid != os.getpid() and os.getpgid(pid) == own:
                found += [pid] if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else []
    return found


def end_group() -> None:
    """End what is left of our process group: an engine whose server was killed does not notice by itself."""
    deadline = time.monotonic() + LEFT_S
    number = signal.SIGTERM
    while pids := group():
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(POLL_S)


def _log(folder: Path) -> list[str]:
    from labassist.runs.logs import tail

    return tail(folder / "log.txt", 400)


if __name__ == "__main__":
    sys.exit(main())
