"""`labassist doctor`: each thing it looks at, in the state in which it is in the way."""

from __future__ import annotations

import http.server
import locale
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist

from labassist.finetune import stack as torch_stack
from labassist.machine import checkup
from labassist.machine.checkup import Finding
from labassist.machine.mounts import mount_of
from labassist.runs import doctor
from labassist.workspace import Workspace

GPU = {"gpus": [{"name": "RTX 4090"}], "driver": "535.104", "cuda_driver": "12.2"}
DEVICE = {"name": "RTX 4090", "capability": [8, 9], "works": True}
QUIET = {"HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8", "LANG": "C.UTF-8"}


def about(findings: list[Finding], what: str) -> Finding:
    return next(one for one in findings if one.about == what)


def test_a_healthy_machine_is_zero_and_a_broken_one_is_one(workspace: Workspace, tmp_path: Path) -> None:
    told = answer("doctor", cwd=workspace.root, env=QUIET)
    assert told["ok"]
    seen = {one["about"]: one for one in told["findings"]}
    assert {"python", "torch", "bitsandbytes", "disk", "room", "locks", "git", "terminal", "hub"} <= set(seen)
    assert seen["room"]["level"] == "ok" and "01-first-loop/train" in seen["room"]["says"]
    assert seen["hub"]["says"].startswith("offline mode")
    # Without git, and with a torch that is none, outside any workspace.
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')\n"
    )
    broken = labassist(
        "doctor", cwd=tmp_path, status=1, env={**QUIET, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    ).stdout
    assert "BAD  torch        torch cannot be imported: libcudart.so.12: cannot open" in broken
    assert "BAD  git          there is no git program" in broken
    assert "apt-get install git" in broken
    assert "note workspace" in broken


def test_a_workspace_that_was_named_wrongly_is_said(tmp_path: Path) -> None:
    assert "no such folder" in labassist("--workspace", "nowhere", "doctor", cwd=tmp_path, status=2).stderr
    env = {"LABASSIST_WORKSPACE": "nowhere"}
    assert "no such folder" in labassist("doctor", cwd=tmp_path, status=2, env=env).stderr


@pytest.mark.parametrize(
    ("told", "hardware", "level", "says", "mend"),
    [
        ({"missing": True}, GPU, "problem", "is not installed", "labassist[loop]"),
        ({"error": "died with signal 11"}, GPU, "problem", "signal 11", "force-reinstall"),
        ({"torch": "2.9", "cuda": None}, {}, "ok", "trains on the CPU", ""),
        ({"torch": "2.9", "cuda": None}, GPU, "problem", "built for CPU, and there is RTX 4090", "CUDA 12.2"),
        ({"torch": "2.9", "cuda": "12.8"}, GPU, "problem", "driver 535.104 knows CUDA up to 12.2", "12.2 or older"),
        ({"torch": "2.9", "cuda": "12.1", "cuda_error": "no device"}, GPU, "problem", "no device", "nvidia-smi"),
        ({"torch": "2.9", "cuda": "12.8", "available": True, "devices": [DEVICE]}, GPU, "ok", "computes on RTX", ""),
        (
            {
                "torch": "2.9",
                "cuda": "12.8",
                "available": True,
                "arches": ["sm_80", "sm_90"],
                "devices": [{**DEVICE, "capability": [12, 0], "works": False, "error": "no kernel image"}],
            },
            GPU,
            "problem",
            "(compute capability 12.0): no kernel image",
            "sm_80 sm_90",
        ),
    ],
)  # fmt: skip
def test_torch_driver_and_card_must_fit(
    told: dict[str, Any],
    hardware: dict[str, Any],
    level: str,
    says: str,
    mend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = about(checkup.stack(told, hardware), "torch")
    assert (found.level, says in found.says, mend in found.mend) == (level, True, True), found


def test_a_hidden_gpu_is_told_from_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = about(checkup.stack({"torch": "2.9", "cuda": "12.1"}, GPU), "torch")
    assert found.level == "warning" and "hides RTX 4090" in found.says


def test_bitsandbytes_without_a_library_is_a_problem_only_with_a_gpu() -> None:
    told = {
        "torch": "2.9",
        "cuda": "12.1",
        "bitsandbytes": "0.49",
        "bitsandbytes_error": "has no library for CUDA 12.1",
    }
    for hardware, level in ((GPU, "problem"), ({}, "warning")):
        found = about(checkup.stack({**told, "available": bool(hardware)}, hardware), "bitsandbytes")
        assert found.level == level and "no library" in found.says


def test_a_torch_that_hangs_does_not_hang_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torch_stack.ask(timeout=0.5) == {"error": "torch did not answer within 0.5 s"}


MOUNTS = """\
22 1 0:21 / / rw,relatime - overlay overlay rw,lowerdir=/a
30 22 8:1 / /data\\040disk rw - ext4 /dev/sdb1 rw
31 22 0:30 / /dev/shm rw,nosuid - tmpfs shm rw
32 22 0:40 / /home rw - nfs4 server:/home rw
33 30 0:41 / /data\\040disk/hidden rw - ext4 /dev/sdc1 rw
34 33 0:42 / /data\\040disk/hidden rw - tmpfs none rw
"""


def test_a_disk_that_goes_with_the_rental_is_known() -> None:
    def kind(place: str) -> tuple[str, bool, bool]:
        mount = mount_of(Path(place), MOUNTS)
        assert mount is not None
        return mount.kind, bool(mount.dies), mount.remote

    assert kind("/root/lab") == ("overlay", True, False)
    assert kind("/data disk/lab") == ("ext4", False, False)
    assert kind("/data disk/hidden/lab") == ("tmpfs", True, False)
    assert kind("/home/me/lab") == ("nfs4", False, True)
    assert mount_of(Path("/x"), "") is None


def test_a_workspace_in_memory_is_warned_of(tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if mount_of(shm) is None or mount_of(shm).kind != "tmpfs":  # type: ignore[union-attr]
        pytest.skip("no tmpfs here")
    (found,) = doctor.disk(shm)
    assert found.level == "warning" and "memory" in found.says and "labassist leave" in found.mend


def test_checkpoints_that_will_not_fit_are_named(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=600 * 2**20))
    (found,) = doctor.room(workspace)
    assert found.level == "warning" and "LABASSIST_ARTIFACTS" in found.mend
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=2**50))
    (found,) = doctor.room(workspace)
    assert found.level == "ok"


@pytest.fixture
def mirror() -> Iterator[tuple[str, list[int]]]:
    """A hub of our own, and the statuses that it answers with."""
    statuses: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[0] if self.path == "/api/models/gpt2" else 404)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", statuses
    server.shutdown()
    server.server_close()


def test_the_mirror_is_asked_and_its_refusal_said(
    mirror: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    place, statuses = mirror
    for status, level in ((200, "ok"), (403, "warning"), (502, "warning")):
        statuses[:] = [status]
        (found,) = checkup.hub({"HF_ENDPOINT": f"{place}/"})
        assert found.level == level and place in found.says
    (found,) = checkup.hub({"HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=2)
    assert found.level == "warning" and "cannot be reached" in found.says and "HF_ENDPOINT" in found.mend
    (found,) = checkup.hub({"HF_ENDPOINT": "ftp://x"})
    assert "is no address" in found.says


def test_a_terminal_that_cannot_draw_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "getpreferredencoding", lambda _set: "ANSI_X3.4-1968")
    says = [one.says for one in checkup.terminal({"TERM": "dumb"})]
    assert any("not UTF-8" in line for line in says) and any("TERM is dumb" in line for line in says)
    monkeypatch.undo()
    (found,) = checkup.terminal({"TERM": "xterm-256color"})
    assert found.level == "ok" and "256 colours" in found.says
    (found,) = checkup.terminal({"TERM": "xterm-256color", "NO_COLOR": "1"})
    assert "no colours" in found.says


def test_git_without_an_identity_is_warned_of(workspace: Workspace, isolated: Path) -> None:
    (isolated / ".gitconfig").write_text("[user]\n\tuseConfigOnly = true\n")
    (found,) = checkup.git(workspace.root)
    assert found.level == "warning" and "user.email" in found.mend


@pytest.mark.skipif(os.getuid() != 0, reason="a read-only mount needs root")
@pytest.mark.fault
def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", str(tmp_path)], check=True)
    try:
        (found,) = checkup.locks(tmp_path)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    assert found.level == "problem"
    (found,) = checkup.locks(tmp_path)
    assert found.level == "ok"
