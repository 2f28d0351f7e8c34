"""Labs 00 and 05 as they are shipped: exercises that wait, solutions that meet what was measured, checks that can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist

from labassist.course.lab_file import read_lab
from labassist.planner import decide
from labassist.workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
SHOULD, MEMORY = ROOT / "labs" / "00-should-you-train", ROOT / "labs" / "05-memory"


def told(script: Path, *words: str, beside: Path | None = None) -> str:
    """Return what a script of a lab prints."""
    path = os.pathsep.join(map(str, filter(None, (beside, ROOT))))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, script, *words], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("folder", [SHOULD, MEMORY], ids=lambda folder: folder.name)
def test_the_lab_is_whole_and_reads_without_a_fault(folder: Path, workspace: Workspace) -> None:
    found = answer("labs", "lint", "--static", folder.name, cwd=workspace.root)
    assert found["ok"], found["labs"][0]["problems"]
    steps = read_lab(folder).steps
    assert steps[0].kind == "read"
    assert any(step.predict for step in steps)


def test_the_shipped_sheet_is_a_random_sample_that_nobody_marked() -> None:
    assert told(SHOULD / "messages.py", "60") == (SHOULD / "sheet.tsv").read_text(encoding="utf-8")


def test_the_sheets_solution_marks_exactly_what_was_made_wrong(tmp_path: Path) -> None:
    for name in ("messages.py", "rate.py"):
        (tmp_path / name).write_text((SHOULD / name).read_text(encoding="utf-8"), encoding="utf-8")
    for sheet, seen in ((SHOULD / "sheet.tsv", 0), (SHOULD / "solutions" / "sheet.tsv", 9)):
        (tmp_path / "sheet.tsv").write_text(sheet.read_text(encoding="utf-8"), encoding="utf-8")
        got = json.loads(told(tmp_path / "rate.py", "--check"))
        assert (got["wrong"], got["seen"]) == (9, seen)
        assert got["left"] == (60 if not seen else 0)
        assert got["kept"] == (got["right"] if seen else 0)


def test_thresholds_wait_for_two_sources() -> None:
    shipped, solved = (
        decide.thresholds(folder / "thresholds.toml") for folder in (SHOULD, SHOULD / "solutions")
    )
    assert [name for name, row in shipped.items() if not row["source"]] == ["examples", "hours"]
    assert all(row["source"] and row["value"] > 0 for row in solved.values())


def test_a_threshold_of_one_row_is_said_as_one(workspace: Workspace) -> None:
    checked = answer("check", "00/thresholds", cwd=workspace.root, status=1)
    rows, hours = checked["steps"][0]["check"]["criteria"]
    assert rows["expected"].startswith("at least 1 row,")
    assert hours["expected"].startswith("at least 1 time,")


def test_a_sheet_with_a_row_left_is_refused_in_one_line(workspace: Workspace) -> None:
    done = labassist("run", "00-should-you-train/rate", cwd=workspace.root, status=None)
    assert done.returncode != 0
    log = labassist("logs", "@last", cwd=workspace.root).stdout
    assert "not judged: 60 rows; write . or x in them" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("script", "key", "measured", "within"),
    [
        ("adapters.py", "adapters_7b", 10_092_544, 0.0),
        ("adapters.py", "adapters_05b", 35_192_832, 0.0),
        ("weights.py", "gib_7b", 5.178, 0.01),
        ("weights.py", "gib_05b", 0.426, 0.01),
    ],
)
def test_an_exercise_waits_and_its_solution_meets_the_measurement(
    script: str, key: str, measured: float, within: float
) -> None:
    waits: Any = json.loads(told(MEMORY / script, "--check"))[key]
    solved: Any = json.loads(told(MEMORY / "solutions" / script, "--check", beside=MEMORY))[key]
    assert waits < measured / 2
    assert abs(solved / measured - 1) <= within


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("folder", [SHOULD, MEMORY], ids=lambda folder: folder.name)
def test_the_whole_lab_can_be_done_and_each_check_can_fail(folder: Path, workspace: Workspace) -> None:
    if folder == MEMORY:
        for name in ("torch", "transformers", "peft"):
            pytest.importorskip(name)
    found = answer("labs", "lint", "--run", folder.name, cwd=workspace.root, deadline=1400)
    assert found["ok"], found["labs"][0]["problems"]
    alters = sum(len(step.check.alter) for step in read_lab(folder).steps if step.check)
    assert len(found["labs"][0]["altered"]) == alters > 0
