"""The object store, and the canonical encoding."""

from __future__ import annotations

import hashlib
import math
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labassist.errors import LedgerError
from labassist.ledger import canonical
from labassist.ledger.objects import Objects


def test_objects_are_named_by_their_content_and_kept_once(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    assert list(objects) == []
    data = b"one\0two" * 1000
    sha = objects.put(data)
    assert sha == hashlib.sha256(data).hexdigest() and objects.get(sha) == data
    before = objects.path(sha).stat()
    assert objects.put(data) == sha and objects.path(sha).stat().st_ino == before.st_ino
    assert before.st_mode & 0o777 == 0o444
    source = tmp_path / "source"
    source.write_bytes(data)
    assert objects.put_file(source) == sha
    source.write_bytes(os.urandom(3 * 1024 * 1024))
    large = objects.put_file(source)
    assert objects.get(large) == source.read_bytes()
    assert list(objects) == sorted([sha, large]) == sorted(path.name for path in objects.folder.iterdir())
    assert objects.has(sha) and not objects.has("0" * 64) and not objects.has("g" + sha[1:])


def test_json_objects_have_one_name_whatever_the_order(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    sha = objects.put_json({"b": [1.5, None], "a": "ü"})
    assert objects.put_json({"a": "ü", "b": [1.5, None]}) == sha
    assert objects.get(sha) == '{"a":"ü","b":[1.5,null]}'.encode()
    assert objects.get_json(sha) == {"a": "ü", "b": [1.5, None]}
    with pytest.raises(LedgerError, match="is not JSON"):
        objects.get_json(objects.put(b"{"))


def test_a_damaged_or_missing_object_is_named_and_a_put_mends_it(tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    sha = objects.put(b"true")
    objects.path(sha).chmod(0o644)
    objects.path(sha).write_bytes(b"fals")
    with pytest.raises(LedgerError, match=f"object {sha} is damaged"):
        objects.get(sha)
    assert objects.put(b"true") == sha and objects.get(sha) == b"true"
    objects.path(sha).unlink()
    with pytest.raises(LedgerError, match=f"object {sha} cannot be read"):
        objects.get(sha)
    for bad in ("../x", "", sha.upper(), sha + "0"):
        with pytest.raises(LedgerError):
            objects.path(bad)
    with pytest.raises(LedgerError, match="cannot be read"):
        objects.put_file(tmp_path / "nothing")


@pytest.mark.fault
def test_there_is_never_half_an_object(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            objects.put(b"x" * 200_000)
        except LedgerError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(objects.folder.iterdir()) == []


@given(st.floats())
def test_numbers_keep_their_bits(x: float) -> None:
    encoded = canonical.encode_number(x)
    again = canonical.decode_number(encoded)
    assert struct.pack("<d", again) == struct.pack("<d", x)
    assert isinstance(encoded, str) != math.isfinite(x)


@given(st.integers(1, 2**52 - 1), st.booleans())
def test_every_nan_keeps_its_payload(payload: int, negative: bool) -> None:
    bits = (negative << 63) | (0x7FF << 52) | payload
    encoded = canonical.encode_number(struct.unpack("<d", struct.pack("<Q", bits))[0])
    assert encoded == f"nan:{bits:016x}"
    assert struct.unpack("<Q", struct.pack("<d", canonical.decode_number(encoded)))[0] == bits


@pytest.mark.parametrize(
    "bad",
    [
        "nan",
        "nan:",
        "Infinity",
        "nan:7ff8",
        "nan:3ff0000000000000",
        "7ff8000000000000",
        "nan:7FF8000000000000",
    ],
)
def test_what_is_no_number_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        canonical.decode_number(bad)
    for other in (None, True, [1]):
        with pytest.raises(ValueError, match="is not a number"):
            canonical.decode_number(other)  # type: ignore[arg-type]


def test_canonical_json_has_one_form() -> None:
    assert (
        canonical.dumps({"b": 1, "a": [True, None, 1e-05, "é"]})
        == b'{"a":[true,null,1e-05,"\xc3\xa9"],"b":1}'
    )
    for bad in (float("nan"), float("-inf"), "\ud800"):
        with pytest.raises(ValueError):
            canonical.dumps({"x": bad})


def test_the_canonical_encoding_needs_the_standard_library_only() -> None:
    code = (
        "import sys, labassist.ledger.canonical\n"
        "outside = {n.partition('.')[0] for n in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(n for n in outside if n in ('tinydb', 'msgspec', 'git', 'textual', 'psutil', 'torch')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
