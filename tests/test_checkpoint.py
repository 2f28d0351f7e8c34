"""Checkpoints: everything comes back, a torn or altered one is always noticed, a kill hurts nothing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labassist.errors import CheckpointError, LabError

torch = pytest.importorskip("torch")

from labassist.record import checkpoint, tensors  # noqa: E402
from labassist.record.checkpoint import Saver, load, restore_rng  # noqa: E402
from labassist.record.inspect import inspect, tensor_digests  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def save(run_dir: Path, states: dict[str, Any], step: int = 3) -> tuple[Path, dict[str, Any]]:
    events: list[dict[str, Any]] = []
    saver = Saver(run_dir, "r1", events.append)
    saver.save(step, states, {})
    saver.wait()
    return run_dir / "checkpoints" / f"step-{step:08d}", events[0]


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and every bit."""
    if isinstance(a, torch.Tensor):
        same_kind = a.dtype == b.dtype and a.shape == b.shape
        return same_kind and a.contiguous().flatten().view(torch.uint8).equal(
            b.contiguous().flatten().view(torch.uint8)
        )
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return type(b) is float and struct.pack(">d", a) == struct.pack(">d", b)
    return type(a) is type(b) and a == b


def test_every_kind_of_value_comes_back(tmp_path):
    odd = struct.unpack(">d", bytes.fromhex("fff8dead0000beef"))[0]
    state = {
        "int keys": {0: "a", 1: {"exp_avg": torch.arange(6.0).view(2, 3)}, "0": "text", (1, None): True},
        "$tensor": "not a tensor",
        "tuple": (1, (2.5, [None, False]), ()),
        "floats": [0.1, -0.0, odd, math.inf, -math.inf, 5e-324],
        "bytes": b"\x00\xff",
        "big": 2**200,
        "empty": {},
        "text": "\u03b1 \ud83d\ude00 \x00".encode("utf-16", "surrogatepass").decode("utf-16"),
    }
    folder, _ = save(tmp_path, {"model": state})
    assert same(load(folder)["model"], state)


@pytest.mark.parametrize("dtype", sorted(tensors._DTYPES.values(), key=str), ids=str)
def test_every_dtype_and_shape_comes_back(tmp_path, dtype):
    torch.manual_seed(0)
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (24 * size,), dtype=torch.uint8)
    full = raw.view(dtype).view(2, 3, 4)
    state = {
        "full": full,
        "turned": full.transpose(0, 2),
        "scalar": full[1, 2, 3],
        "empty": full[:0],
        "part": full[1],
    }
    folder, event = save(tmp_path, {"model": state})
    assert same(load(folder)["model"], state)
    assert inspect(folder)["tensors"] == tensor_digests(folder)
    assert event["tensors"] == len(tensor_digests(folder))


def test_the_files_are_plain_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    state = {"a": torch.randn(3, 5), "b": torch.tensor(7), "c": torch.randn(2).bfloat16()}
    folder, _ = save(tmp_path, {"model": state})
    assert same(dict(sorted(safetensors.load_file(folder / "model.safetensors").items())), state)


def test_a_tensor_digest_is_what_the_page_says(tmp_path):
    folder, _ = save(tmp_path, {"model": {"w": torch.tensor([[1.0, 2.0, 3.0]]), "n": torch.tensor(5)}})
    found = inspect(folder)["tensors"]
    assert found["model/w"] == hashlib.sha256(b"F32|1,3|" + struct.pack("<3f", 1, 2, 3)).hexdigest()
    assert found["model/n"] == hashlib.sha256(b"I64||" + struct.pack("<q", 5)).hexdigest()


def test_shared_tensors_are_stored_once_and_stay_shared(tmp_path):
    table = torch.randn(4, 2)
    state = {"in.weight": table, "out.weight": table, "part": table[:2], "twin": table.clone()}
    folder, _ = save(tmp_path, {"model": state, "other": {"again": table}})
    loaded = load(folder)
    assert loaded["model"]["in.weight"] is loaded["model"]["out.weight"] is loaded["other"]["again"]
    assert loaded["model"]["twin"] is not loaded["model"]["in.weight"]
    assert same(loaded["model"], state)
    names = [name for name in tensor_digests(folder) if not name.startswith("rng/")]
    assert sorted(names) == ["model/in.weight", "model/part", "model/twin"]


def test_the_state_is_the_one_at_save_time(tmp_path):
    weight, moments = torch.zeros(100_000), {"step": 1}
    saver = Saver(tmp_path, "r1", list)
    saver.save(1, {"model": {"w": weight}, "optimizer": moments}, {})
    weight += 1
    moments["step"] = 2
    saver.wait()
    loaded = load(tmp_path / "checkpoints" / "step-00000001")
    assert loaded["model"]["w"].abs().max() == 0 and loaded["optimizer"] == {"step": 1}


def test_states_that_do_not_apply_are_named(tmp_path):
    folder, _ = save(tmp_path, {"model": {}, "scaler": None})
    assert inspect(folder)["states"] == {"model": "present", "scaler": "not_applicable", "rng": "present"}
    assert load(folder)["scaler"] is None


def test_what_cannot_be_kept_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="optimizer/groups/0/hook: a object"):
        save(tmp_path, {"optimizer": {"groups": [{"hook": object()}]}})
    with pytest.raises(CheckpointError, match=r"model/w: a torch\.sparse_coo tensor"):
        save(tmp_path, {"model": {"w": torch.eye(2).to_sparse()}})


def test_rng_comes_back_for_python_numpy_and_torch(tmp_path):
    numpy = pytest.importorskip("numpy")
    random.gauss(0, 1)  # leaves a half-used pair in the state
    numpy.random.standard_normal()
    folder, event = save(tmp_path, {"model": {}})

    def draw() -> list[float]:
        return [random.gauss(0, 1), float(numpy.random.standard_normal()), float(torch.randn(()))]

    expected = draw()
    assert draw() != expected
    rng = load(folder)["rng"]
    assert event["rng"] == checkpoint.rng_digest(rng)
    restore_rng(rng)
    assert draw() == expected
    assert checkpoint.rng_digest({"ranks": [checkpoint.capture_rng()]}) != event["rng"]


def test_another_number_of_ranks_is_refused(tmp_path, monkeypatch):
    folder, _ = save(tmp_path, {"model": {}})
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(CheckpointError, match="RNG of 1 ranks, this is rank 1"):
        restore_rng(load(folder)["rng"])


def test_inspect_needs_no_torch(tmp_path):
    folder, _ = save(tmp_path, {"model": {"w": torch.ones(3)}})
    code = f"""
import sys
from labassist.record.inspect import inspect, tensor_digests
assert inspect({str(folder)!r})["tensors"] == tensor_digests({str(folder)!r})
print([m for m in ("torch", "numpy", "safetensors") if m in sys.modules])
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    state = {"model": {"w": torch.arange(5.0), "b": torch.zeros(2)}, "optimizer": {"lr": 0.1}}
    return save(tmp_path_factory.mktemp("run"), state)[0]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.fault
@pytest.mark.parametrize("at", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("harm", ["flip", "cut", "zero"])
def test_any_altered_byte_or_cut_is_reported(whole, tmp_path, harm, at):
    for name in files(whole):
        copy = tmp_path / name / whole.name
        shutil.copytree(whole, copy)
        data = bytearray((copy / name).read_bytes())
        place = min(int(at * len(data)), len(data) - 1)
        if harm == "flip":
            data[place] ^= 1 << (place % 8)
        elif harm == "cut":
            del data[place:]
        elif not any(data[place:]):
            continue  # zeros already
        else:
            data[place:] = bytes(len(data) - place)
        (copy / name).write_bytes(data)
        for read in (inspect, load):
            with pytest.raises(CheckpointError) as caught:
                read(copy)
            assert str(copy) in str(caught.value) and caught.value.mend


@pytest.mark.fault
def test_a_flipped_weight_is_named_and_a_missing_file_too(whole, tmp_path):
    copy = tmp_path / whole.name
    shutil.copytree(whole, copy)
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    last = max(
        json.loads(data[8 : 8 + data[0] + 256 * data[1]]).items(), key=lambda item: item[1]["data_offsets"]
    )[0]
    with pytest.raises(CheckpointError, match=f"the tensor model/{last} was altered"):
        inspect(copy)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot read"):
        inspect(copy)


def test_a_newer_version_is_refused(whole, tmp_path):
    copy = tmp_path / whole.name
    shutil.copytree(whole, copy)
    text = json.dumps({**json.loads((copy / "manifest.json").read_text()), "version": 2})
    (copy / "manifest.json").write_text(text)
    (copy / "COMMIT").write_text(hashlib.sha256(text.encode()).hexdigest())
    with pytest.raises(CheckpointError, match="labassist version 2"):
        inspect(copy)


@pytest.mark.fault
def test_a_kill_during_a_save_leaves_the_one_before_whole(tmp_path):
    # One process, so that torch is loaded once; each of its children dies at another fsync of the save.
    code = """
import os, sys, torch
from pathlib import Path
from labassist.record import checkpoint
fsync, state = os.fsync, {"model": {"w": torch.ones(1000)}, "optimizer": {"m": torch.zeros(1000)}}
def child(at):
    calls = 0
    def dies(descriptor):
        nonlocal calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), 9)
        fsync(descriptor)
    saver = checkpoint.Saver(Path(sys.argv[1], str(at)), "r1", list)
    saver.save(1, state, {}); saver.wait()
    os.fsync = dies
    saver.save(2, state, {}); saver.wait()
    os._exit(0)
for at in range(1, 12):
    pid = os.fork()
    if pid == 0:
        child(at)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environ, capture_output=True, text=True, check=True
    )
    ends = [int(word) for word in done.stdout.split()]
    # model, optimizer, rng, state.json, manifest.json, COMMIT, the folder, and the folder above it.
    assert ends == [-9] * 8 + [0] * 3
    for at in range(1, 9):
        kept = tmp_path / str(at) / "checkpoints"
        assert load(kept / "step-00000001")["model"]["w"].sum() == 1000
        if at == 8:
            inspect(kept / "step-00000002")  # renamed already
            continue
        with pytest.raises(CheckpointError, match="never completed"):
            inspect(kept / "step-00000002.tmp")
        assert not (kept / "step-00000002").exists()


@pytest.mark.fault
def test_a_failed_save_is_raised_on_the_training_thread(tmp_path):
    saver = Saver(tmp_path, "r1", list)
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    saver.save(1, {"model": {}}, {})
    with pytest.raises(LabError, match="could not be written"):
        saver.save(2, {"model": {}}, {})


def test_a_folder_left_by_a_kill_is_harmless(tmp_path):
    left = tmp_path / "checkpoints" / "step-00000003.tmp"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    folder, _ = save(tmp_path, {"model": {"w": torch.ones(2)}})
    assert not left.exists() and same(load(folder)["model"], {"w": torch.ones(2)})


class Trainer:
    """A small model with dropout, its optimizer, schedule and shuffled data: all six states in use."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.generator = torch.Generator().manual_seed(2)
        self.x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))

    def states(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.schedule,
            "scaler": None,
            "data_position": {"generator": self.generator.get_state()},
        }

    def load(self, kept: dict[str, Any], leave_out: str = "") -> None:
        for name in ("model", "optimizer", "scheduler"):
            if name != leave_out:
                self.states()[name].load_state_dict(kept[name])
        if leave_out != "data_position":
            self.generator.set_state(kept["data_position"]["generator"])
        if leave_out != "rng":
            restore_rng(kept["rng"])

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            x = self.x[torch.randint(64, (8,), generator=self.generator)]
            loss = ((self.model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def test_save_load_continue_equals_never_stopped(tmp_path):
    straight = Trainer()
    straight.train(5)
    folder, _ = save(tmp_path, straight.states(), step=5)
    expected = straight.train(10)
    first_difference = {}
    for leave_out in ("", "model", "optimizer", "scheduler", "rng", "data_position"):
        resumed = Trainer()
        resumed.load(load(folder), leave_out)
        losses = resumed.train(10)
        differs = [at for at, (a, b) in enumerate(zip(expected, losses, strict=True)) if a != b]
        first_difference[leave_out] = differs[0] if differs else None
        if not leave_out:
            assert same(dict(resumed.model.state_dict()), dict(straight.model.state_dict()))
            moments = [trainer.optimizer.state_dict() for trainer in (resumed, straight)]
            assert same(*moments)
    # What decides the first resumed step shows there; what decides the update shows one step later.
    assert first_difference == {
        "": None, "model": 0, "rng": 0, "data_position": 0, "optimizer": 1, "scheduler": 2,
    }  # fmt: skip


def test_every_ranks_rng_is_kept(tmp_path):
    code = """
import sys, torch
from pathlib import Path
from torch import distributed
from labassist.record.checkpoint import Saver, load, restore_rng
from labassist.record.protocol import rank
distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=rank(), world_size=2)
torch.manual_seed(100 + rank())
saver = Saver(Path(sys.argv[1]), "r1", list)
saver.save(1, {"model": {"w": torch.ones(2)}}, {}); saver.wait()
expected = torch.rand(3)
distributed.barrier()
restore_rng(load(Path(sys.argv[1], "checkpoints", "step-00000001"))["rng"])
assert torch.equal(torch.rand(3), expected)
print(expected.tolist())
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    drawn = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert drawn[0] != drawn[1]
    manifest = inspect(tmp_path / "checkpoints" / "step-00000001")
    assert manifest["world_size"] == 2
    assert {"rng/ranks.0.torch", "rng/ranks.1.torch"} <= set(manifest["tensors"])
