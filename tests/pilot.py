"""What the tests of the app's screens share: ledgers written by hand, and the app played through Textual's pilot."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot

from labassist.app.app import LabApp
from labassist.ledger.environment import machine
from labassist.ledger.store import Ledger
from labassist.runs import life
from labassist.workspace import Workspace

SIZES = [(80, 24), (160, 50), (60, 15)]


def document(number: int, **more: Any) -> dict[str, Any]:
    """A finished run of the first lab's job."""
    here = machine()
    return {
        "id": f"20260101-0000{number:02d}-abc{number:03d}",
        "job": "01-first-loop/train",
        "kind": "job",
        "state": "finished",
        "mode": "exact",
        "seed": 1337,
        "created": "2026-01-01T00:00:00.000Z",
        "ended": "2026-01-01T00:01:00.000Z",
        "argv": ["python", "labs/01-first-loop/train.py"],
        "cwd": ".",
        "machine": {"id": here.id, "host": here.host},
        "code": {"vcs": "git", "commit": "c0ffee" * 6 + "c0ff", "digest": "0" * 64},
        "schema": 1,
        "profile": "tiny",
        "config": {"optim.lr": 10.0**-number, "clip": 1.0},
        "step": 40,
        "total_steps": 40,
        "exit": 0,
        "seconds": 60.0,
        "last": {"loss": 2.5},
        **more,
    }


class Written:
    """A workspace whose ledger a test fills; what it locks stays locked until the end of the test."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.locks: list[int] = []

    def run(self, number: int, losses: list[float] | None = None, log: str = "", **more: Any) -> str:
        """Write a run with a curve and a log."""
        row = document(number, **more)
        with Ledger.open(self.workspace.ledger, create=True) as ledger:
            folder = ledger.run_folder(row["id"])
            folder.mkdir(parents=True)
            (folder / "alive").touch()
            if row["state"] == "running":
                row["machine"]["inode"] = (folder / "alive").stat().st_ino
                del row["ended"], row["exit"]
            self.append(row["id"], 1, losses or [])
            (folder / "log.txt").write_text(log)
            ledger.write("start", row)
        return str(row["id"])

    def append(self, run: str, first: int, losses: list[float]) -> None:
        """Write more of a curve."""
        with (self.workspace.ledger / "runs" / run / "metrics-rank0.jsonl").open("a") as file:
            for step, loss in enumerate(losses, first):
                file.write(
                    json.dumps({"step": step, "t": step / 10, "loss": loss, "grad_norm": 0.5, "lr": 0.001})
                    + "\n"
                )

    def live(self, number: int, losses: list[float], **more: Any) -> str:
        """Write a run that lives: its two locks are held by this process."""
        run = self.run(number, losses, state="running", **more)
        folder = self.workspace.ledger / "runs" / run
        for name in ("alive", "supervised"):
            lock = life.take(folder / name)
            assert lock is not None
            self.locks.append(lock)
        return run


@pytest.fixture(name="written")
def written_ledger(workspace: Workspace) -> Iterator[Written]:
    """A workspace to fill."""
    made = Written(workspace)
    yield made
    for lock in made.locks:
        os.close(lock)


Script = Callable[[Pilot[int], LabApp], Awaitable[None]]


def play(
    workspace: Workspace, script: Script, size: tuple[int, int] = (80, 24), *, plain: bool = False
) -> None:
    """Run the app headless and let the script press its keys."""

    async def main() -> None:
        app = LabApp(workspace, plain=plain)
        async with app.run_test(size=size) as pilot:
            await script(pilot, app)

    asyncio.run(main())


def shown(app: LabApp) -> str:
    """Return the screen as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def until_gone(pilot: Pilot[int], app: LabApp, text: str, deadline: float = 30.0) -> None:
    """Wait until the screen does not show a text any more."""
    end = time.monotonic() + deadline
    while text in (screen := shown(app)):
        assert time.monotonic() < end, f"{text!r} did not go away:\n{screen}"
        await pilot.pause(0.05)


async def until(pilot: Pilot[int], app: LabApp, *texts: str, deadline: float = 30.0) -> str:
    """Wait until the screen shows every text, and return it."""
    end = time.monotonic() + deadline
    while True:
        screen = shown(app)
        if all(text in screen for text in texts):
            return screen
        assert time.monotonic() < end, f"{texts} did not appear:\n{screen}"
        await pilot.pause(0.05)
