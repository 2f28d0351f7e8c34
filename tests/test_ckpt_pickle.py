"""Pickles are read without being run: the same values as pickle gives, and no code of the file executed."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from ckpt_layouts import FORMATS, hf
from hypothesis import given, settings
from hypothesis import strategies as st

from labassist.resume import torchfile
from labassist.resume.allow import trust
from labassist.resume.check import Report, check
from labassist.resume.pickled import Global, Tensor
from labassist.resume.safepickle import BadPickle, load

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(value=plain, protocol=st.integers(0, 5))
def test_plain_values_are_what_pickle_gives(value: Any, protocol: int) -> None:
    assert load(io.BytesIO(pickle.dumps(value, protocol)), set()) == value


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_one_error(data: bytes) -> None:
    with contextlib.suppress(BadPickle):
        load(io.BytesIO(data), set())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_pickle_is_a_value_or_one_error(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps({"a": [1, 2.5, ("x", b"y")], "b": collections.OrderedDict(z=1)}, 2))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadPickle):
        load(io.BytesIO(whole), set())


def test_shared_and_cyclic_values_come_back() -> None:
    shared: list[Any] = [1]
    value = {"a": shared, "b": shared}
    found = load(io.BytesIO(pickle.dumps(value)), set())
    assert found["a"] is found["b"]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    found = load(io.BytesIO(pickle.dumps(cyclic)), set())
    assert found[0] is found


def test_a_key_of_deeply_nested_tuples_is_not_hashed() -> None:
    key: Any = ()
    for _ in range(60):
        key = (key, key)  # its hash would take 2^60 steps
    data = io.BytesIO()
    pickle.dump([key], data)
    nested = data.getvalue()
    # The same key used in a dict: EMPTY_DICT, the key's opcodes, a value, SETITEM.
    body = pickle.dumps(key)[2:-1]
    assert load(io.BytesIO(nested), set())
    frame = body[9:] if body[:1] == b"\x95" else body
    found = load(io.BytesIO(b"\x80\x04}" + frame + b"K\x01s."), set())
    assert list(found.values()) == [1]


class Shell:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Evaluated(Shell):
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"__import__('os').system({self.command!r})",)


class Spawned(Shell):
    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.Popen, (["sh", "-c", self.command],)


def bearers(path: Path) -> list[Path]:
    """Return the files of a checkpoint that hold a pickle."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    suffixes = (".pt", ".pth", ".bin", ".pkl", ".ckpt", ".metadata")
    return [file for file in files if file.suffix in suffixes or file.name == ".metadata"]


def hostile(path: Path, payload: Any, kind: str) -> None:
    """Put a payload into a checkpoint's file beside what it held."""
    value = {"harmless": 1, "payload": payload}
    if kind == "bare":
        path.write_bytes(pickle.dumps(value))
    else:
        with path.open("wb") as file:
            torch.save(value, file, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["zip", "legacy", "bare"])
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("ours", "plain-safetensors")])
def test_a_hostile_pickle_is_reported_and_not_run(tmp_path: Path, name: str, kind: str) -> None:
    path = FORMATS[name](tmp_path / "x")
    files = bearers(path)
    assert files
    witness = tmp_path / "witness"
    for target in files:
        whole = target.read_bytes()
        for payload in (Spawned, Evaluated, Shell) if kind == "zip" else (Shell,):
            hostile(target, payload(f"touch {witness}"), kind)
            report = check(path)
            assert isinstance(report, Report)
            assert not witness.exists()
            found = [one for one in report.found.findings if one.code == "pickle-hostile"]
            assert found and found[0].severity == "error", target
            assert target.name == Path(found[0].path).name or path.is_file()
            assert report.verdict == "BROKEN"
        target.write_bytes(whole)
    hostile(target, Shell(f"touch {witness}"), kind)
    torch.load(target, weights_only=False) if kind != "bare" else pickle.loads(target.read_bytes())
    assert witness.exists()  # the payload does work where the file is loaded


@pytest.mark.fault
def test_a_hostile_part_of_a_distributed_checkpoint_is_reported_and_not_run(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    witness = tmp_path / "witness"
    states = {"w": torch.ones(2), "extra": Shell(f"touch {witness}")}
    dcp.save(states, checkpoint_id=tmp_path / "x", no_dist=True)
    report = check(tmp_path / "x")
    assert isinstance(report, Report)
    [found] = [one for one in report.found.findings if one.code == "pickle-hostile"]
    assert found.path == "__0_0.distcp"
    assert not witness.exists()


@pytest.mark.fault
def test_a_hostile_pickle_that_is_cut_is_still_reported(tmp_path: Path) -> None:
    path = hf(tmp_path / "x")
    whole = pickle.dumps([Shell("true"), list(range(100))])
    (path / "scheduler.pt").write_bytes(whole[:-40])
    report = check(path)
    assert isinstance(report, Report)
    codes = {one.code for one in report.found.findings}
    assert {"pickle-hostile", "file-torn"} <= codes


@pytest.mark.parametrize(
    ("module", "name", "word"),
    [
        ("torch._utils", "_rebuild_tensor_v2", "known"),
        ("torch", "BFloat16Storage", "known"),
        ("torch", "bfloat16", "known"),
        ("collections", "OrderedDict", "known"),
        ("numpy._core.multiarray", "_reconstruct", "known"),
        ("numpy.core.multiarray", "_reconstruct", "known"),
        ("numpy.dtypes", "UInt32DType", "known"),
        ("transformers.trainer_utils", "IntervalStrategy", "known"),
        ("posix", "system", "hostile"),
        ("builtins", "getattr", "hostile"),
        ("builtins", "eval", "hostile"),
        ("copyreg", "extension 7", "hostile"),
        ("torch.hub", "load", "hostile"),
        ("torch.utils.collect_env", "run", "hostile"),
        ("torch.storage", "_load_from_bytes", "foreign"),
        ("numpy.testing._private.utils", "runstring", "hostile"),
        ("transformers.utils", "logging.os.system", "hostile"),
        ("my_project.model", "Net", "foreign"),
    ],
)
def test_names_are_trusted_one_by_one(module: str, name: str, word: str) -> None:
    assert trust(Global(module, name)) == word


@pytest.mark.parametrize("new", [True, False])
def test_tensors_are_described_and_fetched_one_at_a_time(tmp_path: Path, new: bool) -> None:
    tensors = {
        "a": torch.arange(6, dtype=torch.float64).reshape(2, 3),
        "b": torch.tensor(2.5, dtype=torch.bfloat16),
        "c": torch.arange(10, dtype=torch.int32)[4:6],
        "p": torch.nn.Parameter(torch.ones(3, dtype=torch.float16)),
        "d": torch.tensor([True, False]),
    }
    path = tmp_path / "t.pt"
    torch.save(tensors, path, _use_new_zipfile_serialization=new)
    loaded = torchfile.read(path)
    described = {name: (tensor.dtype, tensor.shape) for name, tensor in loaded.value.items()}
    assert described == {
        "a": ("F64", (2, 3)),
        "b": ("BF16", ()),
        "c": ("I32", (2,)),
        "p": ("F16", (3,)),
        "d": ("BOOL", (2,)),
    }
    for name, tensor in tensors.items():
        raw = (
            tensor.detach().contiguous().view(torch.uint8)
            if tensor.dim()
            else tensor.reshape(1).view(torch.uint8)
        )
        assert loaded.data(loaded.value[name]) == bytes(raw.flatten().tolist())
    assert loaded.numbers([loaded.value["b"]]) == [2.5]
    assert isinstance(loaded.value["a"], Tensor)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", pickle.dumps([0] * 10))
        archive.writestr("bomb/data/0", b"\0" * 10_000_000)
    with pytest.raises(torchfile.Torn, match="compressed"):
        torchfile.read(path)
