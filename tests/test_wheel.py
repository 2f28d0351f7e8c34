"""The built wheel stands alone: it carries the labs, and makes workspaces without a checkout near it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from labassist import content
from labassist.cli.main import build_parser
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


QUICK = ("--profile", "tiny", "--set", "steps=60", "--set", "every.checkpoint=10", "--set", "every.eval=30")
JOB = "01-first-loop/train"
SLOWLY = ("-c", "import time; [print(n, flush=True) or time.sleep(0.05) for n in range(2000)]")

TRANSCRIPT: list[tuple[int, str | tuple[str, ...]]] = [
    (0, "doctor"),
    (0, "labs"),
    (0, "labs --map"),
    (0, "labs lint --static"),
    (0, "lab 01"),
    (2, "lab 99"),
    (0, "lab 01/loop --done"),
    (0, ("run", JOB, *QUICK, "--note", "the first", "--price", "0.5", "--max-hours", "1")),
    (0, ("run", JOB, *QUICK, "--seed", "7", "--on-end", "true")),
    (0, "runs --sort last.loss"),
    (0, "show @last"),
    (0, "note @last another_seed"),
    (0, "curve @last"),
    (0, "curve @last loss lr --csv -"),
    (0, "diff @-2 @last"),
    (0, "replay @last"),
    (0, ("run", "--detach", "--", "python", *SLOWLY)),
    (0, "attach"),
    (0, "stop @last"),
    (0, "logs -f @last"),
    (2, "resume @last"),
    (0, ("run", JOB, *QUICK, "--detach", "--set", "steps=4000")),
    (0, "stop @last"),
    (0, "logs -f @last"),
    (0, ("resume", "@last", "--set", "steps=4000", "--detach")),
    (0, "stop @last"),
    (0, "logs -f @last"),
    (1, "check 01"),
    (0, "hint 01/attention"),
    (0, "audit"),
    (0, "audit --anchor -o ../anchor.txt"),
    (0, "audit --anchor ../anchor.txt"),
    (0, "fsck"),
    (0, "prune --keep-last 1 --dry-run"),
    (0, "ckpt check ledger/runs/RUN/checkpoints/step-00000060"),
    (0, ("ckpt", "prove", JOB, *QUICK, "--at", "20", "--kill")),
    (0, ("ckpt", "ablate", JOB, *QUICK, "--at", "20", "--drop", "rng")),
    (0, "plan memory --model qwen2.5-7b --method qlora --seq 2048 --batch 2 --card 24GB"),
    (1, "plan memory --model qwen2.5-7b --method full --seq 2048 --batch 2 --card 24GB"),
    (0, "plan time --model qwen2.5-7b --seq 2048 --batch 2 --card 4090 --tokens 10M"),
    (0, "plan cost --hours 6-16 --card 4090 --people-hours 132"),
    (1, "plan power --card 4090 --gpus 2 --psu 1200 --hours 10"),
    (
        0,
        "plan decide --examples 1200 --sample 100 --errors 4 --prompt-score 0.61 --target-score 0.8 "
        "--eval-size 200 --people-hours 40 --budget-hours 132",
    ),
    (0, "plan claims"),
    (0, "data lint labs/07-qlora/tickets.jsonl"),
    (2, "merge outputs/none"),
    (0, "export RUN --to bundle -o ../run.tar"),
    (0, "export RUN --to html -o ../run.html"),
    (0, "export --all --to csv -o ../tables"),
    (0, "export RUN --to ro-crate -o ../crate"),
    (2, "export RUN --to script"),
    (0, "--workspace ../second import ../run.tar"),
    (0, "--workspace ../second pull here:LAB"),
    (0, "--workspace ../second replay RUN"),
    (1, "leave ../kept"),
    (0, "upgrade"),
]
"""What is typed in a workspace that `new` made, with the status of each line; RUN is the first run, LAB the workspace."""


def leaves(parser: argparse.ArgumentParser, name: str = "") -> set[str]:
    """Return every command that the parser has, as its words."""
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found = {name.strip()} if (name and not all(sub.required for sub in subs)) or not subs else set()
    return found.union(*(leaves(one, f"{name} {word}") for sub in subs for word, one in sub.choices.items()))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_from_the_wheel_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sh"
    link.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    link.chmod(0o755)
    (tmp_path / "kept").mkdir()
    start = "import sys; from labassist.cli.main import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(installed), "LABASSIST_SSH": str(link), "HF_HUB_OFFLINE": "1"}
    known: dict[str, str] = {"LAB": str(tmp_path / "lab")}
    transcript: list[str] = []

    def typed(words: list[str], cwd: Path, status: int) -> str:
        words = [re.sub("RUN|LAB", lambda match: known[match[0]], word) for word in words]
        done = subprocess.run(
            [sys.executable, "-c", start, *words],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        transcript.append(f"$ labassist {' '.join(words)}\n{done.stdout}{done.stderr}")
        assert done.returncode == status, f"status {done.returncode}, not {status}\n" + "\n".join(
            transcript[-3:]
        )
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr, transcript[-1]
        return done.stdout

    typed(["new", "lab"], tmp_path, 0)
    typed(["new", "second"], tmp_path, 0)
    lab = tmp_path / "lab"
    for status, line in TRANSCRIPT:
        typed(line.split() if isinstance(line, str) else list(line), lab, status)
        if "RUN" not in known and "the first" in line:
            known["RUN"] = json.loads(typed(["--json", "runs"], lab, 0))["runs"][0]["id"]
    used = {" ".join(line.split()) if isinstance(line, str) else " ".join(line) for _, line in TRANSCRIPT} | {
        "new"
    }
    used = {line.removeprefix("--workspace ../second ") for line in used}
    untyped = {
        name for name in leaves(build_parser()) if not any(f"{line} ".startswith(f"{name} ") for line in used)
    }
    assert not untyped
    assert not list(lab.glob("**/.env")) and (tmp_path / "run.html").stat().st_size > 10_000
