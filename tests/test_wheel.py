"""The built wheel stands alone: it carries the labs, and makes workspaces without a checkout near it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from labassist import content
from labassist.workspace import job_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from that, as a release would."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(content.root())],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("labassist-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel as pip does, into a folder that stands first on the path."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(wheel)],
        check=True,
        capture_output=True,
    )
    return folder


def python(installed: Path, code: str, cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_wheel_carries_the_content_and_no_runs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"labassist/_content/labs/{path}" for path in job_files(content.root() / "labs")}
    assert expected <= names
    assert {"labassist/_content/ledger/README.md", "labassist/_content/templates/README.md"} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"labassist"}
    assert not [name for name in names if name.startswith("labassist/_content/ledger/runs")]


def test_content_root_is_inside_the_installed_package(installed: Path, tmp_path: Path) -> None:
    found = python(installed, "from labassist import content; print(content.root())", tmp_path)
    assert Path(found.strip()) == installed / "labassist" / "_content"


def test_new_from_the_wheel_is_new_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import sys; from labassist.cli.main import main; sys.exit(main(['new', 'lab', '--json']))"
    document = json.loads(python(installed, code, tmp_path))
    root = Path(document["workspace"])
    assert root == tmp_path / "lab"
    for path in job_files(content.root() / "labs"):
        assert (root / "labs" / path).read_bytes() == (content.root() / "labs" / path).read_bytes()


def test_without_content_it_says_so(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(
        installed / "labassist", tmp_path / "labassist", ignore=shutil.ignore_patterns("_content")
    )
    code = "from labassist.cli.main import main; raise SystemExit(main(['new', 'lab']))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "this labassist has no labs; install it again" in result.stderr
