"""`labassist leave` looks where it goes before it stops anything, says what is safe there, and what is not taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import farshell
import little
import pytest
from command import answer, labassist, wait_closed, wait_for_step

from labassist.errors import LedgerError
from labassist.ledger.store import Ledger
from labassist.machine.mounts import Mount
from labassist.runs import destination, leave
from labassist.runs.remote import Remote
from labassist.workspace import Workspace, new

pytestmark = [pytest.mark.ci]

MIB = 1 << 20
SHM = Path("/dev/shm")


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return new(tmp_path / "box").workspace.root


@pytest.fixture
def link(tmp_path: Path) -> dict[str, str]:
    return farshell.env(tmp_path)


@pytest.mark.fault
def test_a_destination_that_cannot_be_ends_no_training(
    box: Path, link: dict[str, str], tmp_path: Path
) -> None:
    run = little.start(box)["id"]
    wait_for_step(box / "ledger" / "runs" / run, 3)
    (tmp_path / "file").write_text("")
    for target, says in (
        (f"{tmp_path}/no/such", "No such file or directory; nothing was stopped"),
        (f"{tmp_path}/file", "File exists; nothing was stopped"),
        (f"{tmp_path}/no/such/x.tar", "No such file or directory; nothing was stopped"),
        (f"far:{tmp_path}/no/such", "No such file or directory; nothing was stopped"),
        ("dead:labs/", "Connection timed out; nothing was stopped; see that `ssh dead` works, then"),
    ):
        done = labassist("leave", target, cwd=box, env=link, status=2)
        assert says in done.stderr and len(done.stderr.splitlines()) == 1
    with Ledger.open(box / "ledger") as ledger:
        with pytest.raises(LedgerError, match="at its destination; nothing was stopped"):
            leave._check_room(Workspace(box), ledger, "last", destination.Destination(free=1000))
        assert (ledger.run(run) or {})["state"] == "running"
    left = answer("leave", f"far:{tmp_path}/made/", cwd=box, env=link)
    assert left["stopped"] == [run] and (left["safe"], left["unsafe"]) == (True, "")
    (bundle,) = (tmp_path / "made").iterdir()
    assert bundle.stat().st_mode & 0o777 == 0o600


@pytest.mark.fault
def test_a_run_whose_workspace_was_moved_is_asked_to_stop_with_a_warning(box: Path, tmp_path: Path) -> None:
    run = little.start(box, every=100_000)["id"]
    wait_for_step(box / "ledger" / "runs" / run, 3)
    moved = box.rename(tmp_path / "moved")
    said = labassist("stop", run, cwd=moved).stderr
    assert f"warning: it began when this workspace was at {box}, where it looks for the request" in said
    moved.rename(box)  # its supervisor has waited, and sees what was asked
    closed = wait_closed(box, {"id": run})
    assert closed["state"] == "stopped" and closed["reason"] == "asked to stop"


@pytest.mark.skipif(not SHM.is_dir(), reason="no tmpfs here")
def test_a_place_that_goes_away_is_not_called_safe(
    tmp_path: Path, link: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in link.items():
        monkeypatch.setenv(name, value)
    shm = SHM / f"leave-{tmp_path.name}"
    try:
        for target, says in (
            (tmp_path / "kept", "on the disk of this workspace"),
            (shm, "memory: a reboot empties it"),
            (Remote("far", f"{shm}"), "memory: a reboot empties it"),
            (Remote("near", f"{tmp_path}"), "near is this same machine"),
            (Remote("near", f"{tmp_path}/x.tar"), "near is this same machine"),
        ):
            assert says in destination.look(tmp_path, target).unsafe
        assert shm.is_dir() and (tmp_path / "kept").is_dir()
        for kind, says in (
            ("ext4", "another disk of this same machine"),
            ("nfs4", ""),
            ("overlay", "container"),
        ):
            there = Mount(SHM, kind, "x")
            monkeypatch.setattr(destination, "mount_of", lambda _folder, there=there: there)
            found = destination.look(tmp_path, shm).unsafe
            assert says in found and bool(says) == bool(found)
    finally:
        shutil.rmtree(shm)


def test_what_is_not_safe_is_called_safe_nowhere() -> None:
    left = leave.Left("/mnt/x.tar", runs=2, verified=True, unsafe="gone with it")
    assert "NOT SAFE to go: gone with it" in left.text() and "safe" not in left.text()
    left.unsafe = ""
    assert "safe: 2 runs" in left.text() and "it is safe to go" in left.text()


def test_the_line_for_home_names_the_bundle_where_it_lies() -> None:
    for bundle, word in (
        ("home-box:labs/my x.tar", "'~/labs/my x.tar'"),
        ("home-box:/srv/x.tar", "/srv/x.tar"),
        ("/mnt/usb:1/x.tar", "/mnt/usb:1/x.tar"),
    ):
        text = leave.Left(bundle, runs=1, checkpoints=1).text()
        assert text.endswith(f"\nat home, in a workspace: labassist import {word}")
        assert ": 1 run, 1 checkpoint, their code" in text


def test_what_is_said_to_be_lost_is_lost_and_a_replay_elsewhere_knows_what_it_lacks(
    box: Path, link: dict[str, str], tmp_path: Path
) -> None:
    (box / "big.bin").write_bytes(bytes(17 * MIB))
    makes = "head -c 18000000 /dev/zero > big.out"
    for words in (
        ("--out", "big.out", "--", "sh", "-c", makes),
        ("--out", "n", "--", "sh", "-c", "wc -c big.bin > n"),
    ):
        run = answer("run", *words, cwd=box)["id"]
    target = f"far:{tmp_path}/kept"
    left = answer("leave", target, cwd=box, env=link)
    assert left["lost"] == [
        "big.bin, 17.0 MiB (recorded by its hash only) (take such files along with --with-files)"
    ]
    home = new(tmp_path / "home").workspace.root
    first = tmp_path / "kept" / Path(left["bundle"]).name
    (note,) = answer("import", str(first), cwd=home)["notes"]
    assert note.startswith("a replay here will lack big.bin (17.0 MiB, known by its hash only)")
    assert f"looked for at {home}/big.bin" in note
    part = str(tmp_path / "part.tar")
    notes = answer("export", run, "--to", "bundle", "-o", part, cwd=box)["notes"]
    assert f"big.bin, 17.0 MiB, is not in it, and a replay of run {run} may need it" in "".join(notes)
    left = answer("leave", target, "--with-files", cwd=box, env=link)
    assert left["lost"] == [] and first.name in left["notes"][0]
    second = tmp_path / "kept" / Path(left["bundle"]).name
    other = new(tmp_path / "other").workspace.root
    assert answer("import", str(second), cwd=other)["notes"] == []
    assert answer("replay", run, cwd=other)["verdict"] == "BITWISE"
