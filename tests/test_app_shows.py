"""What the app promises, by keys alone in a real terminal: a step that fails and then passes; compare, replay, audit."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from leash import Leash
from terminal import APP, Terminal, needs_tmux, terminal

from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

pytestmark = [pytest.mark.slow, needs_tmux]

SIZES = [(80, 24), (160, 50)]

TRAINED = 300.0
"""Seconds that a run, a check or a replay may take on a busy machine."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="lab"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def editor(folder: Path) -> Path:
    """Make an editor that makes the edit of the step `rate` and ends."""
    path = folder / "ed"
    path.write_text('#!/bin/sh\necho "$1" > "$0.line"\nsed -i \'s/^optim.lr = 2e-4/optim.lr = 1e-3/\' "$2"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", SIZES, ids=["80x24", "160x50"])
def test_from_first_start_to_a_check_that_fails_and_after_the_edit_passes(
    folder: Path, workspace: Workspace, size: tuple[int, int]
) -> None:
    leash = Leash(workspace.root)
    leash.free()
    env = {"EDITOR": str(editor(folder)), "VISUAL": "", **leash.env}
    with terminal(folder, workspace.root, APP, size=size, env=env) as shown:
        shown.wait("Welcome", "01 The first loop", "enter open")
        open_first_loop(shown)
        shown.wait("step 1 of ", "The loop in one file", "n read, next")
        shown.keys("n")
        shown.wait("step 2 of ", "Predict first", "a b c d guess")
        shown.keys("c")
        shown.wait("Your guess: c", "space run")
        shown.keys("Space")
        shown.wait("Check ✓", "✓ done", "measured: ✓ c", "n next", deadline=TRAINED)
        shown.keys("n")
        shown.wait("step 3 of ", "A borrowed learning rate", "space run", "e edit")
        leash.upto(58)
        shown.keys("Space")
        shown.wait("stop run", deadline=TRAINED)
        leash.free()
        screen = shown.wait("Check ✗", "✓ the rate climbs", "not yet", deadline=TRAINED)
        assert "expected" in screen
        assert "got" in screen
        assert "n next" not in screen
        shown.keys("h")
        shown.wait("hint 1 of 3")
        shown.keys("e")
        shown.wait("space runs what is in the file now")
        assert (folder / "ed.line").read_text().strip() == f"+{line_of(workspace, 'optim.lr = 1e-3')}"
        shown.keys("Space")
        shown.wait("✓ done", "n next", deadline=2 * TRAINED)
        shown.keys("n")
        shown.wait("step 4 of ", "Attention by hand")
        shown.keys("q")
        shown.wait("3/12", "next step 4 of 12", "q quit")
        shown.keys("q")
        shown.wait("shell>")
    with Ledger.open(workspace.ledger) as ledger:
        assert [run["config"]["optim.lr"] for run in ledger.runs.all()] == [1e-3, 2e-4, 1e-3]
        assert all(run["state"] == "finished" for run in ledger.runs.all())


def open_first_loop(shown: Terminal) -> None:
    """Open lab 01: by enter where it is the first one, else by its name."""
    shown.keys(":")
    shown.wait("All that can be done")
    shown.type("lab: 01")
    shown.wait("▸ lab: 01")
    shown.keys("Enter")


def line_of(workspace: Workspace, text: str) -> int:
    lines = (workspace.labs / "01-first-loop" / "train.toml").read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if line.startswith(text))


def train(workspace: Workspace, *more: str) -> str:
    """Record a tiny run and return its id."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "labassist",
            "run",
            "01-first-loop/train",
            "--profile",
            "tiny",
            "--json",
            *more,
        ],
        cwd=workspace.root,
        check=True,
        capture_output=True,
    )
    return str(json.loads(done.stdout)["id"])


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("size", SIZES, ids=["80x24", "160x50"])
def test_compare_replay_and_audit_a_flipped_byte(
    folder: Path, workspace: Workspace, size: tuple[int, int]
) -> None:
    leash = Leash(workspace.root)
    first, second = train(workspace), train(workspace, "--set", "optim.lr=0.002")
    with terminal(folder, workspace.root, APP, size=size, env=leash.env) as shown:
        shown.wait("2 runs")
        shown.keys("l")
        shown.wait("Ledger  2 runs", f"▸ {second[-6:]}")
        shown.keys("Space", "Down", "Space")
        shown.wait(f"marked {second[-6:]} {first[-6:]}", "d compare")
        shown.keys("d")
        shown.wait("they differ", "optim.lr  0.001 -> 0.002", "first difference at step 1")
        shown.wait(f"A {first[-6:]} loss", f"B {second[-6:]} loss")
        shown.keys("q")
        shown.wait(f"▸ {first[-6:]}*", "r replay")
        shown.keys("r")
        shown.wait("replaying")
        leash.free()
        shown.wait("✓ BITWISE", "compared 120 steps", deadline=TRAINED)
        shown.keys("a")
        shown.wait("✓ ok", "every byte that was promised is as it was", deadline=TRAINED)
        shown.keys("q")
        name = flip(workspace.ledger / "runs" / first / "checkpoints" / "step-00000120")
        shown.wait("r replay")
        shown.keys("a")
        screen = shown.wait("checkpoint-altered", f"tensor  {name}", deadline=TRAINED)
        assert "step-00000120/model.safetensors" in "".join(screen.split())  # it is folded at the edge
        shown.keys("q")
        shown.wait("BITWISE")
        shown.keys("q")
        shown.wait("q quit")


def flip(checkpoint: Path) -> str:
    """Flip one bit of one tensor of the model and return the tensor's name as the manifest has it."""
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8 : 8 + header])
    name = sorted(tensor for tensor in tensors if tensor != "__metadata__")[3]
    data[8 + header + tensors[name]["data_offsets"][0]] ^= 1
    path.write_bytes(data)
    return f"model/{name}"
