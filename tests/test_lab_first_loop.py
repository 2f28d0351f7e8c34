"""Lab 01 as a learner meets it: exercises that wait, solutions that equal autograd, checks that can fail."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist

from labassist.course.checking import load_checks
from labassist.course.lab_file import read_lab
from labassist.course.model import Alter, Lab
from labassist.runs.jobs import load_job, resolve
from labassist.workspace import Workspace

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "labs" / "01-first-loop"
SOLUTIONS = {"attention": "attention.py", "gradient": "attention.py", "block": "block.py"}
"""Step -> the file that its solution stands in for."""
MODULES = ("attention", "block", "train", "corpus")
HAND = [
    (step.id, alter)
    for step in read_lab(FOLDER).steps
    if step.check
    for alter in step.check.alter
    if alter.file
]


@pytest.fixture(scope="module")
def lab() -> Lab:
    return read_lab(FOLDER)


@pytest.fixture
def hands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the lab's scripts, from which its modules are imported."""
    folder = tmp_path / "hands"
    folder.mkdir()
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, folder)
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder
    forget()


def forget() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def told(name: str) -> Any:
    """Return what an exercise prints with --check, as JSON carries it."""
    return json.loads(json.dumps(importlib.import_module(name).check()))


def solve(folder: Path, *solutions: str) -> None:
    for name in solutions:
        shutil.copy(
            FOLDER / "solutions" / name, folder / ("block.py" if name == "block.py" else "attention.py")
        )


class Told:
    """Gives a check what a script of the lab prints, run in this process."""

    def program(self, words: list[str]) -> Any:
        assert words[1:] == ["--check"]
        return told(words[0].removesuffix(".py"))


def criteria(step: str) -> dict[str, bool]:
    checks = load_checks(read_lab(FOLDER))
    return {one.name: one.ok for one in getattr(checks, step)(Told())}


def test_the_exercises_as_given_wait_and_fail_without_a_crash(hands: Path) -> None:
    found = told("attention")
    assert found["written"] == {"attention": False, "attention_backward": False}
    assert found["forward"] is None and found["leak"] is None and found["d_key"] is None
    assert told("block") == {"missing": "attention in attention.py is not written yet"}
    for step in SOLUTIONS:
        assert not any(criteria(step).values())


def test_each_step_passes_with_its_own_solution_and_not_before(hands: Path) -> None:
    for step, solution in (("attention", "attention.py"), ("gradient", "gradient.py"), ("block", "block.py")):
        forget()
        assert not any(criteria(step).values()), step
        solve(hands, solution)
        forget()
        found = criteria(step)
        assert found and all(found.values()), step


def test_the_gradients_by_hand_equal_autograd_to_rounding(hands: Path) -> None:
    solve(hands, "gradient.py", "block.py")
    by_hand, block = told("attention"), told("block")
    errors = [by_hand[name] for name in ("forward", "d_query", "d_key", "d_value")]
    errors += [block["forward"], block["dx"], *block["weights"].values()]
    assert len(block["weights"]) == 6
    assert by_hand["leak"] == 0 and max(errors) < 1e-14


@pytest.mark.parametrize(("step", "alter"), HAND, ids=[f"{step}-{at}" for at, (step, _) in enumerate(HAND)])
def test_a_wrong_line_is_seen(hands: Path, step: str, alter: Alter) -> None:
    solve(hands, "attention.py" if step == "attention" else "gradient.py", "block.py")
    path = hands / alter.file
    path.write_text(path.read_text().replace(alter.find, alter.put))
    assert criteria(step)[alter.criterion] is False


def test_a_solution_changes_only_what_was_asked_for() -> None:
    for name, original in (
        ("attention.py", "attention.py"),
        ("gradient.py", "attention.py"),
        ("block.py",) * 2,
    ):
        given, solved = (
            (folder / file).read_text().splitlines()
            for folder, file in ((FOLDER, original), (FOLDER / "solutions", name))
        )
        gone = [line[2:] for line in difflib.ndiff(given, solved) if line.startswith("- ")]
        for line in gone:
            placeholder = line.endswith(("= NOT_WRITTEN", "= through"))
            assert placeholder or not line.strip() or line.lstrip().startswith(("#", '"""')), line
    given, solved = ((FOLDER / place / "train.toml").read_text().splitlines() for place in ("", "solutions"))
    assert [pair for pair in zip(given, solved, strict=True) if pair[0] != pair[1]] == [
        ("optim.lr = 2e-4", "optim.lr = 1e-3")
    ]


def test_the_borrowed_profile_is_tiny_but_for_its_rate() -> None:
    job = load_job(Workspace(ROOT), "01-first-loop/train")
    tiny, borrowed = (resolve(job, name, None, []).flat for name in ("tiny", "borrowed"))
    assert {key for key in tiny if tiny[key] != borrowed[key]} == {"optim.lr", "optim.min_lr"}


def test_the_linter_finds_nothing_by_reading(workspace: Workspace) -> None:
    found = answer("labs", "lint", "--static", "01-first-loop", cwd=workspace.root)
    assert found["ok"], found


def test_the_lab_is_a_mix_and_every_run_is_short(lab: Lab) -> None:
    kinds = [step.kind for step in lab.steps]
    assert 9 <= len(kinds) <= 12 and {"read", "run", "edit"} <= set(kinds)
    assert sum(step.predict is not None for step in lab.steps) >= 4
    for step in lab.steps:
        assert step.kind == "read" or len(step.hints) == 3, step.id
        if step.run and not step.run.command:
            assert step.run.profile in ("tiny", "borrowed")


@pytest.mark.slow
def test_a_first_run_is_measured_against_its_own_alphabet(workspace: Workspace) -> None:
    """The first checked step by the command line: locked without a guess, then measured."""
    root = workspace.root
    labassist("lab", "01/loop", "--done", cwd=root)
    assert answer("lab", "01/first-loss", cwd=root)["steps"][1]["standing"] == "locked"
    labassist("lab", "01/first-loss", "--predict", "b", cwd=root)
    labassist("run", "01-first-loop/train", "--profile", "tiny", cwd=root)
    step = answer("check", "01/first-loss", cwd=root)["steps"][0]
    assert step["standing"] == "done" and step["measured"]["option"] == "c"
    assert step["check"]["criteria"][0]["expected"].startswith("ln ")


@pytest.mark.slow
def test_the_borrowed_rate_fails_and_passes_after_the_edit(workspace: Workspace) -> None:
    root = workspace.root
    run = ("run", "01-first-loop/train", "--profile", "borrowed")
    labassist(*run, cwd=root)
    (before,) = answer("check", "01/rate", cwd=root, status=1)["steps"]
    assert [one["ok"] for one in before["check"]["criteria"]] == [True, False]
    path = root / before["edit"]["file"]
    lines = path.read_text().splitlines(keepends=True)
    at = before["edit"]["line"] - 1
    assert lines[at] == "optim.lr = 2e-4\n"
    lines[at] = "optim.lr = 1e-3\n"
    path.write_text("".join(lines))
    (edited,) = answer("check", "01/rate", cwd=root, status=1)["steps"]
    assert "no run of" in edited["check"]["missing"]
    labassist(*run, cwd=root)
    (after,) = answer("check", "01/rate", cwd=root)["steps"]
    assert after["standing"] == "done"


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_whole_lab_can_be_done_and_each_check_can_fail(workspace: Workspace) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "labassist", "--json", "labs", "lint", "--run", "01-first-loop"],
        cwd=workspace.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert found["ok"], found["labs"][0]["problems"]
    alters = sum(
        len(step.get("check", {}).get("alter", []))
        for step in tomllib.loads((FOLDER / "lab.toml").read_text())["steps"]
    )
    assert len(found["labs"][0]["altered"]) == alters
