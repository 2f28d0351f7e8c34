"""Start labassist's own commands as processes that outlive the app."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from labassist import own
from labassist.errors import LabError


class CommandFailed(LabError):
    """A command ended without an answer; the message is its own last line."""


def command(workspace: Path, *words: str) -> list[str]:
    """Return the argv of one labassist command on a workspace."""
    # The options come first: `words` may end with a command of its own, after `--`.
    return own.start("labassist.cli.main", "--json", "--workspace", str(workspace), *words)


def ask(workspace: Path, *words: str) -> Any:
    """Run a short command to its end and return its JSON. Raises CommandFailed with its complaint.

    It runs in its own session: an app that dies meanwhile does not take it along.
    """
    done = subprocess.run(
        command(workspace, *words),
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise CommandFailed(complaint(done.stderr, done.returncode)) from None


def complaint(stderr: str, status: int) -> str:
    """Return the last line a command said, without its own name."""
    said = own.last_line(stderr).removeprefix("labassist: ")
    return said or f"it ended with status {status}, without a word"


class Background:
    """A long command on its own: its answer and its talk go to files, so that nothing needs the app."""

    def __init__(self, workspace: Path, name: str, *words: str, cwd: Path | None = None) -> None:
        """Start `labassist WORDS --json`; its files begin with `name`. Raises OSError when the workspace takes none."""
        folder = workspace / ".labassist" / "background"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem = f"{name}-{os.getpid()}-{time.monotonic_ns():x}"
        self._answer = folder / f"{stem}.json"
        self._talk = folder / f"{stem}.log"
        # The end of a run's log may be in them, which is for its owner alone.
        with (
            open(self._answer, "wb", opener=_private) as out,
            open(self._talk, "wb", opener=_private) as talk,
        ):
            self._process = subprocess.Popen(
                command(workspace, *words),
                cwd=cwd or workspace,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=talk,
                start_new_session=True,
            )

    def poll(self) -> tuple[bool, dict[str, Any] | None, str]:
        """Return whether it has ended, then its answer or the last line it said."""
        status = self._process.poll()
        with self._talk.open("rb") as file:
            file.seek(max(0, self._talk.stat().st_size - 4096))
            talk = file.read().decode("utf-8", "replace")
        if status is None:
            return False, None, complaint(talk, 0) if talk.strip() else "starting"
        try:
            answer: dict[str, Any] | None = json.loads(self._answer.read_bytes())
        except ValueError:
            answer = None
        said = complaint(talk, status)
        for path in (self._answer, self._talk):
            path.unlink(missing_ok=True)
        return True, answer, said


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Replay(Background):
    """`labassist replay RUN`."""

    def __init__(self, workspace: Path, run: str) -> None:
        """Start it. Raises OSError when the workspace takes no files."""
        super().__init__(workspace, run, "replay", run)
        self.run = run
