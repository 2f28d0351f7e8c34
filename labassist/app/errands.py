"""Commands that screens ask for, each a process beside the app: its answer comes as a message."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from textual.message import Message

from labassist.app.command import command, complaint
from labassist.app.messages import Answered


class Errands:
    """Runs at most one command a key; asking again under a key gives the older one up."""

    def __init__(self, workspace: Path, post: Callable[[Message], object]) -> None:
        self._workspace = workspace
        self._post = post
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def ask(self, key: str, *words: str) -> None:
        """Start `labassist WORDS --json`; it answers with `Answered` unless it is dropped before."""
        self.drop(key)
        try:
            # Files, not pipes: a command that outlives the app must not fail at its next word.
            out, talk = tempfile.TemporaryFile(), tempfile.TemporaryFile()
            process = subprocess.Popen(
                command(self._workspace, *words),
                cwd=self._workspace,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=talk,
                start_new_session=True,
            )
        except OSError as error:
            self._post(Answered(key, None, f"labassist {words[0]}: {error.strerror or error}"))
            return
        with self._lock:
            self._running[key] = process
        waiting = (key, process, out, talk)
        threading.Thread(target=self._wait, args=waiting, name=f"labassist-{key}", daemon=True).start()

    def drop(self, key: str) -> bool:
        """Give a command up, with all that it started. True when it was still running."""
        with self._lock:
            process = self._running.pop(key, None)
        if process is None:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return True

    def busy(self, key: str) -> bool:
        """Say whether a command goes on under this key."""
        return key in self._running

    def _wait(self, key: str, process: subprocess.Popen[bytes], out: IO[bytes], talk: IO[bytes]) -> None:
        status = process.wait()
        with self._lock, out, talk:
            if self._running.get(key) is not process:
                return  # given up
            del self._running[key]
            out.seek(0)
            talk.seek(0)
            answer, said = out.read(), talk.read().decode("utf-8", "replace")
        try:
            self._post(Answered(key, json.loads(answer)))
        except ValueError:
            self._post(Answered(key, None, complaint(said, status)))
