"""labassist itself is kept with a run, and comes back as it was."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import labassist
from labassist.errors import LedgerError, RestoreError
from labassist.ledger.objects import Objects
from labassist.ledger.package import capture_package, unpack_package


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects")


def test_the_package_comes_back_and_is_the_one_imported(objects: Objects, tmp_path: Path) -> None:
    sha = capture_package(objects)
    root = unpack_package(objects, sha, tmp_path / "there")
    code = "import labassist, labassist.ledger.records; print(labassist.__file__)"
    env = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == str(root / "labassist" / "__init__.py"), done.stderr
    here = Path(labassist.__file__).parent
    wanted = {
        path.relative_to(here): path.read_bytes()
        for path in here.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    got = {
        path.relative_to(root / "labassist"): path.read_bytes()
        for path in (root / "labassist").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert got == wanted


def test_equal_trees_make_one_object(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the times, the compiled files and the order on disk."""
    names = [f"{name}.py" for name in ("__init__", "b", "a", "c")]
    shas = set()
    for number, order in enumerate((names, names[::-1])):
        root = tmp_path / str(number) / "labassist"
        for name in order:
            (root / "sub").mkdir(parents=True, exist_ok=True)
            (root / "sub" / name).write_text(name)
            (root / name).write_text(name)
            os.utime(root / name, (number, number))
        (root / "__pycache__").mkdir()
        (root / "__pycache__" / f"a.{number}.pyc").write_text("x")
        monkeypatch.setattr(labassist, "__file__", str(root / "__init__.py"))
        shas.add(capture_package(objects))
    assert len(shas) == 1
    assert len(list(objects)) == 1
    (root / "a.py").write_text("another")
    assert capture_package(objects) not in shas


def tar_with(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


@pytest.mark.parametrize(
    "data",
    [
        tar_with((tarfile.TarInfo("../evil.py"), b"x")),
        tar_with((tarfile.TarInfo("labassist/../../evil.py"), b"x")),
        tar_with((tarfile.TarInfo("/evil.py"), b"x")),
        tar_with((link("labassist/a", "/etc"), b""), (tarfile.TarInfo("labassist/a/evil.py"), b"x")),
        tar_with((tarfile.TarInfo("other/evil.py"), b"x")),
        b"no tar at all" * 100,
        b"",
    ],
)
def test_what_is_no_package_of_ours_is_refused(objects: Objects, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RestoreError):
        unpack_package(objects, objects.put(data), tmp_path / "deep" / "there")
    assert not list(tmp_path.rglob("evil.py"))


def test_a_damaged_object_is_not_unpacked(objects: Objects, tmp_path: Path) -> None:
    sha = capture_package(objects)
    place = objects.path(sha)
    place.chmod(0o644)
    place.write_bytes(place.read_bytes().replace(b"import", b"impart", 1))
    with pytest.raises(LedgerError, match="damaged"):
        unpack_package(objects, sha, tmp_path / "there")


def test_unpacking_writes_over_nothing(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "labassist").mkdir()
    with pytest.raises(RestoreError, match="already"):
        unpack_package(objects, capture_package(objects), tmp_path)
