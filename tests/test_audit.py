"""Whatever was recorded and is changed later, by one bit, is named by the audit."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import answer, labassist, run_folder, train

from labassist.ledger.audit import audit
from labassist.ledger.audit_answer import Audit
from labassist.ledger.problems import Problem
from labassist.workspace import new

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with an uncommitted change, two runs, a note and a replay with its verdict."""
    root = new(tmp_path_factory.mktemp("audit") / "lab").workspace.root
    train(root)
    script = root / "labs" / "01-first-loop" / "train.py"
    script.write_text(script.read_text() + "\n# a change\n")
    (root / "labs" / "01-first-loop" / "extra.py").write_text("X = 1\n")
    train(root)
    labassist("note", "@last", "a note", cwd=root)
    answer("replay", "@last", cwd=root)
    return root


def test_a_whole_ledger_is_ok_and_what_is_not_covered_is_listed(lab: Path) -> None:
    found = answer("audit", cwd=lab)
    assert found["ok"] is True
    assert found["records"] == 3
    assert found["checked"]["checkpoints"] == 18
    assert found["checked"]["commits"] == 3
    assert all("README" in path or path.startswith("schema/") for path in found["not_covered"]), found[
        "not_covered"
    ]
    assert len(found["head"]) == 64


def test_three_hundred_flipped_bits_are_named(lab: Path) -> None:
    """Every file under the ledger gets its share; one that is listed as not covered need not be named."""
    ledger = lab / "ledger"
    uncovered = {path.split(" ")[0] for path in audit(ledger, lab).not_covered}
    files = [
        path
        for path in sorted(ledger.rglob("*"))
        if path.is_file() and path.stat().st_size and str(path.relative_to(ledger)) not in uncovered
    ]
    assert len(files) > 100
    chance = random.Random(7)
    unnamed = []
    for trial in range(300):
        path = files[trial] if trial < len(files) else chance.choice(files)
        mode = path.stat().st_mode
        data = path.read_bytes()
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        path.chmod(0o644)
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])
        try:
            found = audit(ledger, lab)
        finally:
            path.write_bytes(data)
            path.chmod(mode)
        name = str(path.relative_to(ledger))
        if name not in {problem.path for problem in found.problems}:
            unnamed.append((name, at, bit, [problem.code for problem in found.problems]))
    assert not unnamed
    assert audit(ledger, lab).ok


def test_what_is_gone_is_named(lab: Path, tmp_path: Path) -> None:
    run = answer("show", "@last", cwd=lab)
    folder = run_folder(lab, run)
    for victim, code in (
        (folder / "metrics-rank0.jsonl", "curve-missing"),
        (folder / "checkpoints" / "step-00000030", "checkpoint-missing"),
        (folder / "positions.jsonl", "positions-missing"),
        (lab / "ledger" / "objects" / run["code"]["patch"], "object-missing"),
    ):
        shutil.move(victim, tmp_path / "away")
        done = labassist("audit", run["id"], cwd=lab, status=1)
        shutil.move(tmp_path / "away", victim)
        assert code in done.stdout
    assert answer("audit", run["id"], cwd=lab)["ok"] is True


def test_an_audit_while_another_process_appends_finds_nothing_wrong(lab: Path) -> None:
    copy = """
import sys
from pathlib import Path
from labassist.ledger.store import Ledger
with Ledger.open(Path(sys.argv[1])) as ledger:
    run = ledger.find("@last")["id"]
    for number in range(100_000):
        ledger.change("note", run, lambda document: {**document, "note": f"note {number}"})
        ledger.save_view()
"""
    writer = subprocess.Popen([sys.executable, "-c", copy, str(lab / "ledger")])
    try:
        before = audit(lab / "ledger", lab)
        found = [audit(lab / "ledger", lab) for _ in range(5)]
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
    assert found[-1].checked["journal entries"] > before.checked["journal entries"]
    assert [problem for one in found for problem in one.problems] == []


def test_a_journal_whose_tail_was_cut_is_named(lab: Path) -> None:
    path = lab / "ledger" / "journal.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]))
    try:
        done = labassist("audit", cwd=lab, status=1)
    finally:
        path.write_bytes(whole)
    cut = [line for line in done.stdout.splitlines() if "this run has an entry" in line]
    assert cut and all(
        line.startswith(f"  journal-cut: journal.jsonl line {len(lines) - 2}: run 2") for line in cut
    )
    assert answer("audit", cwd=lab)["ok"] is True


@pytest.mark.parametrize("how", ["edited", "deleted", "swapped"])
def test_a_line_of_the_journal_that_is_not_what_it_was_is_named(lab: Path, how: str) -> None:
    """The first line that no longer follows from the one before it."""
    path = lab / "ledger" / "journal.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    at = len(lines) // 2
    if how == "edited":
        lines[at] = lines[at].replace(b'"time":"2', b'"time":"1', 1)
    elif how == "deleted":
        del lines[at]
    else:
        lines[at : at + 2] = lines[at + 1], lines[at]
    assert b"".join(lines) != whole
    path.write_bytes(b"".join(lines))
    try:
        found = answer("audit", cwd=lab, status=1)
    finally:
        path.write_bytes(whole)
    first = min(
        (one for one in found["problems"] if one["path"] == "journal.jsonl"), key=lambda one: one["line"]
    )
    assert first["line"] == at + 1
    assert answer("audit", cwd=lab)["ok"] is True


def test_a_commit_that_is_gone_is_named(lab: Path) -> None:
    shutil.move(lab / ".git", lab / "gone")
    try:
        done = labassist("audit", cwd=lab, status=1)
    finally:
        shutil.move(lab / "gone", lab / ".git")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  commit-")]
    runs = [run["id"] for run in answer("runs", cwd=lab)["runs"]]
    assert ": : " not in line and runs[0] in line


def test_what_is_the_same_of_several_runs_is_one_line_that_names_them() -> None:
    lost = [Problem("commit-missing", "commit 21e10 is not here", f"r{number}") for number in range(5)]
    other = Problem("curve-missing", "is gone", "r1", "runs/r1/metrics-rank0.jsonl")
    found = Audit(problems=[*lost, other, Problem("head-missing", "cannot be read", path="head")])
    assert [line for line in found.text().splitlines() if line.startswith("  ")] == [
        "  commit-missing: 5 runs (r0, r1, r2 and 2 more): commit 21e10 is not here",
        "  curve-missing: runs/r1/metrics-rank0.jsonl: is gone",
        "  head-missing: head: cannot be read",
    ]
    assert len(found.document()["problems"]) == 7


def test_folders_of_other_trainers_are_one_line_for_a_person_and_a_line_each_for_a_machine() -> None:
    place = "runs/r/checkpoints/step-0000000{}.manifest.json"
    lines = [f"{place.format(step)} (its folder out/checkpoint-{step} is gone)" for step in (1, 2, 3)]
    lines += ["README.md", f"{place.format(4)} (run r2 wrote over its folder out/checkpoint-4)"]
    found = Audit(not_covered=lines)
    shown = [line for line in found.text().splitlines() if line.startswith("  ")]
    assert shown[0] == "  README.md" and len(shown) == 2
    assert "4 checkpoints in folders of their trainers: 3 deleted, 1 written over" in shown[1]
    assert found.document()["not_covered"] == lines
