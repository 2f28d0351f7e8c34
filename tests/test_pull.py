"""`labassist pull` while the box is in use: what has ended comes, with what it made, and nothing gets lost unsaid.

The other machine is a shell of this one; test_home.py has the links and a real sshd.
"""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import farshell
import little
import pytest
from command import answer, labassist, wait_for_step

from labassist.workspace import new

pytestmark = [pytest.mark.ci, pytest.mark.fault]


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return new(tmp_path / "box").workspace.root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return new(tmp_path / "home").workspace.root


@pytest.fixture
def link(tmp_path: Path) -> dict[str, str]:
    """The way to the other machine."""
    return farshell.env(tmp_path)


def test_a_pull_of_a_box_that_trains_brings_what_has_ended(
    box: Path, home: Path, link: dict[str, str]
) -> None:
    done = answer("run", "--", "sh", "-c", "echo said", cwd=box)
    live = little.start(box)
    wait_for_step(box / "ledger" / "runs" / live["id"], 3)
    log = box / "ledger" / "runs" / done["id"] / "log.txt"
    writes = f"import time\nwhile 1: open({str(log)!r}, 'a').write('and on\\n'); time.sleep(0.0005)"
    stray = subprocess.Popen([sys.executable, "-c", writes])
    try:
        for new_ in ([done["id"]], []):
            found = answer("pull", f"box:{box}", cwd=home, env=link)
            assert found["new"] == new_ and len(found["notes"]) == 1
            assert f"run {live['id']} still runs" in found["notes"][0]
            assert answer("audit", cwd=home)["ok"] is True
    finally:
        stray.kill()
        stray.wait()
    labassist("stop", "--wait", live["id"], cwd=box)
    found = answer("pull", f"box:{box}", cwd=home, env=link)
    assert (found["new"], found["notes"]) == ([live["id"]], [])
    assert answer("audit", cwd=home)["ok"] is True
    for path in (home / ".labassist" / "cache" / "pull").rglob("*"):
        assert not path.lstat().st_mode & 0o077, path
    logs = [*home.glob("ledger/runs/*/log.txt")]
    assert logs and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in logs)


def test_what_runs_made_comes_along_and_what_stays_is_named(
    box: Path, home: Path, link: dict[str, str]
) -> None:
    makes = "mkdir -p made/in; echo 1 > out.txt; echo 2 > made/in/x; head -c 9000000 /dev/zero > big.out"
    outs = [word for name in ("out.txt", "made", "big.out", "labs/x") for word in ("--out", name)]
    run = answer("run", *outs, "--", "sh", "-c", f"{makes}; echo 3 > labs/x", cwd=box)["id"]
    (home / "out.txt").write_text("mine")
    found = answer("pull", f"box:{box}", "--outputs-up-to", "1", cwd=home, env=link)
    assert (home / "made" / "in" / "x").read_text() == "2\n" and (home / "out.txt").read_text() == "mine"
    inside, large, other, place = found["notes"]
    assert other == "out.txt is another file here and was left as it is"
    assert Path(place.split(" lies at ")[1].split(",")[0]).read_text() == "1\n"
    assert inside.startswith(f"labs/x of run {run}") and "an import puts nothing there" in inside
    assert large.startswith(f"big.out of run {run}, 8.6 MiB, stays there")
    assert f"scp -r box:{box}/big.out DIR" in large
    labassist("pull", f"box:{box}", cwd=home, env=link)
    assert (home / "big.out").stat().st_size == 9_000_000
    again = labassist("pull", f"box:{box}", cwd=home, env=link)
    assert "files that runs made" not in again.stderr
    (home / "made" / "in" / "x").unlink()
    (box / "made" / "in" / "x").write_text("changed since")
    found = answer("pull", f"box:{box}", cwd=home, env=link)
    assert any("made of run" in note and "no longer what the run made" in note for note in found["notes"])


@pytest.mark.slow
def test_a_box_where_nothing_has_ended_is_one_line(box: Path, home: Path, link: dict[str, str]) -> None:
    live = little.start(box)
    done = labassist("pull", f"box:{box}", cwd=home, env=link, status=2)
    assert "no run there has ended yet" in done.stderr and len(done.stderr.splitlines()) == 1
    labassist("stop", "--wait", live["id"], cwd=box)
