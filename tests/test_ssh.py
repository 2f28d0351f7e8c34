"""Over a real SSH link that is lost: the run goes on, and the next connection shows it further on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import answer, run_folder, wait_closed, wait_until
from leash import Leash
from terminal import Terminal, needs_tmux, start_tiny, terminal

from labassist.ledger import curves
from labassist.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.fault, needs_tmux, pytest.mark.ci]

CLIENT_ALIVE_S = 2
"""Seconds of silence after which sshd gives a client up."""


class Server:
    """An sshd of our own on a loopback port, with keys made for this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        for name in ("host", "client"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
            )
        shutil.copy(folder / "client.pub", folder / "authorized")
        Path("/run/sshd").mkdir(exist_ok=True)
        (folder / "sshd.conf").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\nPidFile {folder}/sshd.pid\n"
            f"ClientAliveInterval 1\nClientAliveCountMax {CLIENT_ALIVE_S}\nPermitRootLogin yes\n"
        )
        program = shutil.which("sshd") or "/usr/sbin/sshd"
        subprocess.run([program, "-f", str(folder / "sshd.conf"), "-E", str(folder / "sshd.log")], check=True)
        wait_until((folder / "sshd.pid").exists, "sshd")

    def command(self, workspace: Path, leash: Leash) -> str:
        """Return the command line that opens the app over SSH, with what it starts on the leash."""
        keep = {"HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "PATH", "PYTHONPATH"}
        env = " ".join(f"{name}={os.environ[name]}" for name in sorted(keep) if name in os.environ)
        env += "".join(f" {name}={value}" for name, value in leash.env.items())
        there = f"cd {workspace} && {env} LANG=C.UTF-8 OMP_NUM_THREADS=1 {sys.executable} -m labassist"
        options = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={self.folder}/known -o BatchMode=yes"
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        return f"ssh -F none -i {self.folder}/client -p {self.port} {options} -tt {user}@127.0.0.1 '{there}'"

    def stop(self) -> None:
        os.kill(int((self.folder / "sshd.pid").read_text()), signal.SIGTERM)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="ssh"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    running = Server(folder)
    yield running
    running.stop()


def shown_step(screen: str) -> int:
    found = re.search(r" step ([\d,]+)", screen)
    assert found, screen
    return int(found[1].replace(",", ""))


def ssh_client(shown: Terminal) -> int:
    return shown.pid("ssh")


def check_against_file(shown: Terminal, run: Path) -> int:
    """Wait until one screen shows a step and the loss that the curve's file has at it; return the step.

    A screen is drawn in parts, over a link all the more: the step may be there before its loss.
    """
    step = 0

    def agree() -> bool:
        nonlocal step
        screen = shown.screen()
        found = re.search(r"loss[^\d]{1,12}(\d+\.(\d+))", screen)
        if found is None or " step " not in screen:
            return False
        step = shown_step(screen)
        value = curves.read_curve(run / "metrics-rank0.jsonl").series["loss"][step]
        return round(float(value), len(found[2])) == float(found[1])

    wait_until(agree, "a loss on the screen that is the file's", every=0.1)
    return step


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", ["killed", "frozen"])
def test_a_lost_link_loses_nothing(workspace: Workspace, folder: Path, server: Server, loss: str) -> None:
    leash = Leash(workspace.root)
    leash.upto(20)
    with terminal(folder, workspace.root, server.command(workspace.root, leash)) as first:
        first.wait("Welcome", "enter open")
        start_tiny(first)
        first.wait("running", "step 20/120")
        run = answer("show", "@last", cwd=workspace.root)
        assert check_against_file(first, run_folder(workspace.root, run)) == 20
        app = remote_app(workspace)
        client = ssh_client(first)
        os.kill(client, signal.SIGKILL if loss == "killed" else signal.SIGSTOP)
        leash.upto(70)
        if loss == "killed":
            wait_until(lambda: ended(app), "the end of the app behind the lost link")
        else:
            # sshd (9.2) counts ClientAlive only while nothing else happens, and the app writes twice a
            # second: past that time the old session may live on, and must not be in the way.
            time.sleep(2 * CLIENT_ALIVE_S)
        again(folder, server, leash, run)
        if loss == "frozen" and not ended(app):
            os.kill(client, signal.SIGKILL)
            wait_until(lambda: ended(app), "the end of the app behind the frozen link")


def again(folder: Path, server: Server, leash: Leash, run: dict[str, Any]) -> None:
    """Connect anew: the run is there, further on, and ends with a whole curve."""
    lab = leash.lab
    assert answer("show", run["id"], cwd=lab)["state"] == "running"
    (folder / "again").mkdir()
    with terminal(folder / "again", lab, server.command(lab, leash)) as second:
        second.wait("enter ", run["id"].rpartition("-")[2])
        second.keys("r")
        second.wait("running", "step 70/120")
        assert check_against_file(second, run_folder(lab, run)) == 70
        leash.free()
        closed = wait_closed(lab, run)
        second.wait("✓ finished", deadline=120)
    assert (closed["state"], closed["step"]) == ("finished", 120)
    curve = curves.read_curve(run_folder(lab, run) / "metrics-rank0.jsonl")
    assert list(curve.steps) == list(range(1, 121))
    assert "adopted" not in closed


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def remote_app(workspace: Workspace) -> int:
    """Return the pid of the app that sshd started in this workspace."""
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_app = words[1:3] == [b"-m", b"labassist"] and words[3:] == [b""]
            if entry.name.isdigit() and is_app and Path(os.readlink(entry / "cwd")) == workspace.root:
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError("no app runs in the workspace")
