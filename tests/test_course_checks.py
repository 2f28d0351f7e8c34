"""A check is a process of its own: it may hang, crash or answer nonsense, and nothing else is hurt."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from course_lab import ID, TOML, folders, loaded, record, write

from labassist.course import checking
from labassist.course.checking import Answer, CheckFailed
from labassist.course.evidence import Evidence, Missing
from labassist.course.progress import _fitting
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

HEAD = "import os, subprocess, sys, time\nfrom labassist.course.model import Criterion\nfrom labassist.course.evidence import Evidence, Missing\n"


@pytest.fixture
def bare(tmp_path: Path) -> Workspace:
    workspace = folders(tmp_path)
    Ledger.open(workspace.ledger, create=True).close()
    return workspace


def ask(workspace: Workspace, body: str, seconds: str = "20") -> Answer:
    """Ask a `double` check with this body."""
    checks = HEAD + "\n\ndef double(found: Evidence) -> list[Criterion]:\n    " + body.replace("\n", "\n    ")
    write(workspace, checks_py=checks, lab_toml=TOML.replace("seconds = 20", f"seconds = {seconds}"))
    course, lab = loaded(workspace)
    return checking.ask(course, lab, lab.steps[4])


def gone(pid: int) -> bool:
    """Say whether a process has ended; one that nobody waited for yet counts as ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.fault
def test_a_check_that_prints_without_end_does_not_fill_the_disk(bare: Workspace) -> None:
    with pytest.raises(CheckFailed, match=r"crashed: OSError: .*File too large"):
        ask(bare, "while True:\n    os.write(1, b'spam' * 100_000)")


@pytest.mark.fault
def test_a_script_that_prints_without_end_is_named_with_its_line(bare: Workspace) -> None:
    script = bare.labs / ID / "half.py"
    script.parent.mkdir(parents=True)
    script.write_text("import os\nwhile True:\n    os.write(1, b'spam' * 100_000)\n")
    answer = ask(bare, "found.program(['half.py'])")
    assert re.search(r"half.py stopped: OSError: .*File too large at half.py:3", answer.missing), answer


@pytest.mark.fault
def test_a_check_that_hangs_is_stopped_with_all_that_it_started(bare: Workspace, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    body = (
        f"child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(note)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)"
    )
    with pytest.raises(
        CheckFailed, match=f"the check of {ID}/double did not end within 3 s, and was stopped"
    ):
        ask(bare, body, "3")
    own, child = map(int, note.read_text().split())
    assert gone(own) and gone(child)


@pytest.mark.fault
def test_a_check_ends_when_the_command_that_asked_is_killed(bare: Workspace, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    body = f"open({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    checks = HEAD + "\n\ndef double(found: Evidence) -> list[Criterion]:\n    " + body.replace("\n", "\n    ")
    write(bare, checks_py=checks)
    words = [sys.executable, "-m", "labassist", "check", f"{ID}/double", "--workspace", str(bare.root)]
    asked = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (note.is_file() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    asked.kill()
    asked.wait()
    assert gone(int(note.read_text()))


@pytest.mark.fault
def test_a_check_leaves_nothing_running(bare: Workspace, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    body = (
        f"open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "return [Criterion('x', True, '', '', '')]"
    )
    assert ask(bare, body).ok
    assert gone(int(note.read_text()))


@pytest.mark.fault
def test_a_crash_is_one_line_with_its_place(bare: Workspace) -> None:
    with pytest.raises(CheckFailed) as caught:
        ask(bare, "values = {}\nreturn values['loss']")
    assert str(caught.value) == (
        f"checks.py:8: the check of {ID}/double crashed: KeyError: 'loss'; this is the lab's fault, not yours"
    )


@pytest.mark.fault
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os._exit(7)", "ended with status 7 and no answer"),
        ("os.kill(os.getpid(), 9)", "ended with status -9 and no answer"),
        ("sys.stderr.write('dying\\n'); sys.stderr.flush(); os._exit(1)", "no answer: dying"),
        ("return 'yes'", "must return a list of Criterion"),
        ("return []", "returned 0 criteria"),
        ("return [Criterion(str(n), True, '', '', '') for n in range(100)]", "returned 100 criteria"),
        ("def (", "SyntaxError"),
    ],
)
def test_no_answer_or_a_wrong_one_is_the_labs_fault(bare: Workspace, body: str, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        ask(bare, body)


@pytest.mark.fault
def test_what_a_check_prints_is_not_its_answer(bare: Workspace) -> None:
    answer = ask(
        bare,
        "print('{}')\nos.write(1, b'noise' * 100000)\nreturn [Criterion('x', 1 == 1, 3, 'y' * 9000, None)]",
    )
    (one,) = answer.criteria
    assert (one.name, one.ok, one.expected, one.source) == ("x", True, "3", "None")
    assert len(one.got) == checking.LONGEST


def test_a_check_may_say_what_is_missing(bare: Workspace) -> None:
    answer = ask(
        bare, "raise Missing('no run with clipping off yet', run='labassist run x/y --set clip=off')"
    )
    assert not answer.ok and answer.criteria == ()
    assert answer.missing == "no run with clipping off yet; run: labassist run x/y --set clip=off"


@pytest.mark.fault
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("x = 1 / 0\n", "double.py stopped: ZeroDivisionError: division by zero at double.py:1"),
        ("import helper\nhelper.gone()\n", "AttributeError: .*gone.* at double.py:2"),
        ("def f(:\n", "double.py stopped: SyntaxError: .* at double.py:1"),
        ("import sys\nsys.exit('not yet')\n", "double.py stopped: not yet"),
        ("print('hello')\n", "double.py printed no JSON; run: python labs/90-small/double.py"),
    ],
)
def test_a_program_that_fails_is_an_answer_not_a_crash(bare: Workspace, program: str, words: str) -> None:
    write(bare, double_py=program)
    course, lab = loaded(bare)
    answer = checking.ask(course, lab, lab.steps[4])
    assert not answer.ok and re.search(words, answer.missing), answer.missing


def test_a_file_that_is_not_there_says_where_it_comes_from(bare: Workspace) -> None:
    (write(bare) / "double.py").unlink()
    course, lab = loaded(bare)
    assert checking.ask(course, lab, lab.steps[4]).missing == f"labs/{ID}/double.py is not there"


def test_evidence_gives_runs_series_replays_and_checkpoints(bare: Workspace) -> None:
    write(bare)
    old = record(bare, [3.0, 2.0])
    new = record(bare, [3.0, 1.0])
    other = record(bare, [3.0, 1.0], profile="laptop")
    fast = record(bare, [9.0], **{"optim.lr": 2.0})
    course, lab = loaded(bare)
    with Ledger.open(bare.ledger) as ledger:
        found = Evidence(course, ledger, lab)
        assert [run["id"] for run in found.runs("train", "tiny")] == [fast, new, old]
        assert [run["id"] for run in found.runs("train", "tiny", **{"optim.lr": 0.1})] == [new, old]
        assert [run["id"] for run in found.runs(f"{ID}/train", profile="")] == [other]
        assert found.run("plain")["id"] == new, "not the one whose rate another step sets"
        assert found.run("fast")["id"] == fast
        without = record(bare, [3.0, 4.0])
        ledger.change("note", without, lambda one: {**one, "dropped": ["optimizer"]})
        assert found.runs("train", "tiny")[0]["id"] == without
        assert found.run("plain")["id"] == new, "not the one that left a state out on purpose"
        plain = next(step for step in lab.steps if step.id == "plain")
        assert next(iter(_fitting(course, ledger, lab, plain)))["id"] == new
        assert found.series(new, "loss") == [(1, 3.0), (2, 1.0)]
        with pytest.raises(Missing, match="recorded no series 'val_loss', but loss"):
            found.series(found.run("plain"), "val_loss")
        assert found.replays(new) == []
        replay = {**(ledger.run(new) or {}), "id": "20261130-000000-aaaaaa", "replay_of": new}
        ledger.write("start", {**replay, "verdict": {"verdict": "BITWISE"}})
        assert [run["verdict"]["verdict"] for run in found.replays(new)] == ["BITWISE"]
        with pytest.raises(Missing, match=f"run {new} has no checkpoint"):
            found.checkpoint(new)
        assert found.guess("bet") is None
        with pytest.raises(Missing, match="labs/90-small/nothing.py is not there"):
            found.path("nothing.py")
        assert {"checks", f"run {new}", f"curve {new}", f"replays {new}", "guess bet"} <= set(found.noted)


@pytest.mark.parametrize(
    ("state", "words"), [("running", "is still running"), ("failed", "failed: out of memory")]
)
def test_an_unfinished_run_is_named(bare: Workspace, state: str, words: str) -> None:
    write(bare)
    run = record(bare, [1.0], state=state)
    course, lab = loaded(bare)
    with Ledger.open(bare.ledger) as ledger:
        ledger.change("note", run, lambda one: {**one, "reason": "out of memory"})
        with pytest.raises(Missing, match=f"run {run} of {ID}/train .tiny. {words}"):
            Evidence(course, ledger, lab).run("plain")


def test_a_run_command_is_known_by_its_job_too(bare: Workspace) -> None:
    command = (
        f'run = {{ command = ["run", "{ID}/train", "--profile", "tiny", "--set", "steps=5", "--note", "x"] }}'
    )
    write(bare, lab_toml=TOML.replace('run = { job = "train", profile = "tiny" }', command))
    record(bare, [1.0], steps=6)
    run = record(bare, [1.0], steps=5)
    record(bare, [1.0], steps=7)
    course, lab = loaded(bare)
    with Ledger.open(bare.ledger) as ledger:
        assert Evidence(course, ledger, lab).run("plain")["id"] == run


def test_a_replay_of_a_run_that_is_not_the_labs_is_not_the_steps(bare: Workspace) -> None:
    step = 'run = { command = ["replay", "@last"] }'
    write(bare, lab_toml=TOML.replace('run = { job = "train", profile = "tiny" }', step))
    run = record(bare, [1.0])
    course, lab = loaded(bare)
    with Ledger.open(bare.ledger) as ledger:
        replay = {**(ledger.run(run) or {}), "replay_of": run, "verdict": {"verdict": "BITWISE"}}
        ledger.write("start", {**replay, "id": "20261130-000001-bbbbbb", "job": "mk.py"})
        with pytest.raises(Missing, match="no replay of a run of this lab has a verdict yet; run: labassist"):
            Evidence(course, ledger, lab).run("plain")
        ledger.write("start", {**replay, "id": "20261130-000000-aaaaaa"})
        assert Evidence(course, ledger, lab).run("plain")["job"] == f"{ID}/train"


def test_checks_import_no_torch(bare: Workspace) -> None:
    body = "return [Criterion('x', 'torch' not in sys.modules and 'numpy' not in sys.modules, '', '', '')]"
    assert ask(bare, body).ok
