"""Runs come home over a real sshd: pull and leave go on where a lost link left them, and prove what arrived."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import little
import pytest
from command import answer, labassist, wait_for_step, wait_until
from test_ssh import Server

from labassist.workspace import new

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.ci]

CUT = 3_000_000
LINK = """#!/bin/sh
# An ssh whose link is lost after some bytes, in the direction and as often as a file says. The machine that it leads to
# tells another id than this one's.
echo "$@" >> {folder}/said
case "$*" in *boot_id*)
  told=$({ssh} "$@") || exit
  echo "$told" | sed 's/^boot .*/boot another/; s/ - overlay / - ext4 /'
  exit;;
esac
case "$(cat {folder}/cut 2>/dev/null)$*" in
  down*tail*.txt*) {ssh} "$@" | head -c {cut}; rm {folder}/cut; exit 255;;
  up*cat*) head -c {cut} | {ssh} "$@"; rm {folder}/cut; exit 255;;
esac
exec {ssh} "$@"
"""


class Link:
    """The way to the machine `127.0.0.1`, which is this one behind sshd."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        options = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/known -o BatchMode=yes"
        ssh = f"ssh -F none -i {folder}/client -p {server.port} {options}"
        script = folder / "link.sh"
        script.write_text(LINK.format(folder=folder, ssh=ssh, cut=CUT))
        script.chmod(0o755)
        self.env = {"LABASSIST_SSH": str(script)}

    def cut(self, direction: str) -> None:
        """Lose the next link that carries a large file `down` or `up`."""
        (self.folder / "cut").write_text(direction)

    @property
    def said(self) -> str:
        """Every command line so far."""
        return (self.folder / "said").read_text()


@pytest.fixture
def link() -> Iterator[Link]:
    folder = Path(tempfile.mkdtemp(prefix="ssh"))
    server = Server(folder)
    yield Link(folder, server)
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """The rented machine's workspace: a lineage, and a run with a log too large to come in one piece."""
    root = new(tmp_path / "box").workspace.root
    little.lineage(root)
    talk = "import random; random.seed(1); print(random.randbytes(5_000_000).hex())"
    answer("run", "--", "python", "-c", talk, cwd=root)
    return root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return new(tmp_path / "home").workspace.root


def test_pull_brings_runs_that_replay_and_brings_nothing_twice(box: Path, home: Path, link: Link) -> None:
    place = f"127.0.0.1:{box}"
    found = answer("pull", place, cwd=home, env=link.env)
    assert len(found["new"]) == 3 and found["checkpoints"] == 2 and found["notes"] == []
    assert answer("audit", cwd=home)["ok"] is True
    assert answer("replay", found["new"][1], cwd=home)["verdict"] == "BITWISE"
    again = labassist("pull", place, "--json", cwd=home, env=link.env)
    assert " 0 to bring" in again.stderr and json.loads(again.stdout)["new"] == []
    labassist("note", found["new"][0], "later", cwd=box)
    more = little.record(box, 10, 5)
    third = answer("pull", place, "--checkpoints", "all", cwd=home, env=link.env)
    assert (third["newer"], third["new"]) == ([found["new"][0]], [more["id"]])
    assert third["checkpoints"] == 6 - 2 + 2
    assert answer("audit", cwd=home)["ok"] is True


def test_a_pull_whose_link_is_lost_goes_on_where_it_was(box: Path, home: Path, link: Link) -> None:
    link.cut("down")
    done = labassist("pull", f"127.0.0.1:{box}", cwd=home, env=link.env, status=2)
    assert "run it again: what came over is kept" in done.stderr
    assert little.lines(home) == []
    found = answer("pull", f"127.0.0.1:{box}", cwd=home, env=link.env)
    assert len(found["new"]) == 3
    assert f"tail -c +{CUT + 1}" in link.said
    assert answer("audit", cwd=home)["ok"] is True


def test_a_bundle_is_pulled_too_and_nonsense_is_one_line(
    box: Path, home: Path, link: Link, tmp_path: Path
) -> None:
    answer("export", "--all", "--to", "bundle", "-o", str(tmp_path / "all.tar"), cwd=box)
    assert len(answer("pull", f"127.0.0.1:{tmp_path}/all.tar", cwd=home, env=link.env)["new"]) == 3
    for place, says in (
        (f"127.0.0.1:{tmp_path}/nowhere", "no workspace and no bundle lies there"),
        (str(box), "names no host"),
        ("no host:lab", "this is no host"),
    ):
        done = labassist("pull", place, cwd=home, env=link.env, status=2)
        assert says in done.stderr and "Traceback" not in done.stderr


def test_leave_on_a_live_run_ends_with_the_copy_verified(
    box: Path, home: Path, link: Link, tmp_path: Path
) -> None:
    run = little.start(box)
    wait_for_step(box / "ledger" / "runs" / run["id"], 120)
    target = tmp_path / "kept"
    left = answer("leave", f"127.0.0.1:{target}", cwd=box, env=link.env)
    assert (left["safe"], left["verified"], left["stopped"]) == (True, True, [run["id"]])
    assert any("little.py" in line for line in left["lost"])
    (bundle,) = target.iterdir()
    assert left["bundle"] == f"127.0.0.1:{bundle}" and left["bytes"] == bundle.stat().st_size
    shutil.rmtree(box)  # the box is gone
    answer("import", str(bundle), cwd=home)
    assert answer("audit", cwd=home)["ok"] is True
    closed = answer("show", run["id"], cwd=home)
    assert closed["state"] == "stopped" and little.steps_of(home, run["id"]) == [closed["step"]]
    resumed = next(one["id"] for one in answer("runs", cwd=home)["runs"] if "resumed_from" in one)
    assert answer("replay", resumed, cwd=home)["verdict"] == "BITWISE"


def test_pulling_the_plug_in_the_middle_loses_nothing(
    box: Path, home: Path, link: Link, tmp_path: Path
) -> None:
    target = f"127.0.0.1:{tmp_path}/kept/all.tar"
    link.cut("up")
    done = labassist("leave", target, cwd=box, env=link.env, status=2)
    assert "the link failed" in done.stderr and "safe" not in done.stdout
    part = tmp_path / "kept" / "all.tar.part"
    assert part.stat().st_size == CUT
    wreck = Path(shutil.copytree(box, tmp_path / "wreck", symlinks=True))
    left = answer("leave", target, cwd=box, env=link.env)
    assert left["safe"] is True and not part.exists()
    assert answer("audit", cwd=wreck)["ok"] is True
    answer("import", str(tmp_path / "kept" / "all.tar"), cwd=home)
    assert answer("audit", cwd=home)["ok"] is True


def test_leave_may_be_killed_at_any_moment(box: Path, link: Link, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "labassist", "leave", f"127.0.0.1:{tmp_path}/kept/all.tar"]
    for moment in ("asking run", "making the bundle", "copying to"):
        run = little.start(box)
        wait_for_step(box / "ledger" / "runs" / run["id"], 60)
        leaving = subprocess.Popen(
            words, cwd=box, env={**os.environ, **link.env}, stderr=subprocess.PIPE, text=True
        )
        assert leaving.stderr is not None
        wait_until(lambda leaving=leaving, moment=moment: moment in leaving.stderr.readline(), moment)
        leaving.send_signal(signal.SIGKILL)
        leaving.communicate()
    left = answer("leave", f"127.0.0.1:{tmp_path}/kept/all.tar", cwd=box, env=link.env)
    assert left["safe"] is True and left["runs"] == 6
    assert answer("audit", cwd=box)["ok"] is True
    home = new(tmp_path / "home").workspace.root
    assert len(answer("import", str(tmp_path / "kept" / "all.tar"), cwd=home)["new"]) == 6
    assert answer("audit", cwd=home)["ok"] is True
