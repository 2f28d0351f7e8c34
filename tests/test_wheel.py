"""The built wheel stands alone: it carries the labs, and makes workspaces without a checkout near it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import transcript
from transcript import TRANSCRIPT

from labassist import content
from labassist.cli.main import build_parser
from labassist.workspace import job_files

pytestmark = pytest.mark.ci


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


def leaves(parser: argparse.ArgumentParser, name: str = "") -> set[str]:
    """Return every command that the parser has, as its words."""
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found = {name.strip()} if (name and not all(sub.required for sub in subs)) or not subs else set()
    return found.union(*(leaves(one, f"{name} {word}") for sub in subs for word, one in sub.choices.items()))


def test_every_command_has_a_line_in_the_transcript() -> None:
    lines = transcript.typed() | {"new"}
    untyped = {
        name
        for name in leaves(build_parser())
        if not any(f"{line} ".startswith(f"{name} ") for line in lines)
    }
    assert not untyped, "tests/transcript.py says how a line is written"
    assert "" in lines  # the app


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sh"
    link.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    link.chmod(0o755)
    (tmp_path / "kept").mkdir()
    start = "import sys; from labassist.cli.main import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(installed), "LABASSIST_SSH": str(link), "HF_HUB_OFFLINE": "1"}
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
    known: dict[str, str] = {"LAB": str(tmp_path / "lab"), "DEAD": dead}
    said: list[str] = []

    def typed(words: list[str], cwd: Path, status: int) -> str:
        words = [re.sub("RUN|LAB|DEAD", lambda match: known[match[0]], word) for word in words]
        done = subprocess.run(
            [sys.executable, "-c", start, *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        said.append(f"$ labassist {' '.join(words)}\n{done.stdout}{done.stderr}")
        assert done.returncode == status, f"status {done.returncode}, not {status}\n" + "\n".join(said[-3:])
        for bad in ("Traceback", "internal error", "unknown command"):
            assert bad not in done.stderr, said[-1]
        return done.stdout

    typed(["new", "lab"], tmp_path, 0)
    typed(["new", "second"], tmp_path, 0)
    lab = tmp_path / "lab"
    for status, line in TRANSCRIPT:
        typed(transcript.words(line), lab, status)
        if "RUN" not in known and "the first" in line:
            known["RUN"] = json.loads(typed(["--json", "runs"], lab, 0))["runs"][0]["id"]
    assert not list(lab.glob("**/.env")) and (tmp_path / "run.html").stat().st_size > 10_000
