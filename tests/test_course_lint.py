"""`labs lint`: each promise of docs/writing-a-lab.md, broken once; and the template run for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from course_lab import CHECKS, FILES, ID, TOML, folders, record, write

from labassist import content
from labassist.cli.course import _parsed
from labassist.cli.main import main
from labassist.course import lint_run, spoil
from labassist.course.lint import lint
from labassist.course.lint_report import Report
from labassist.course.load import Course
from labassist.course.model import Alter
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace


@pytest.fixture
def bare(tmp_path: Path) -> Workspace:
    return folders(tmp_path)


def problems(workspace: Workspace, lab: str = ID) -> list[str]:
    (report,) = lint(workspace, [lab], _parsed, real=False, say=print)
    return [f"{one.place}: {one.message}" for one in report.problems]


def test_a_whole_lab_is_green(bare: Workspace) -> None:
    write(bare)
    assert problems(bare) == []


LONG = "# intro\n" + "line\n" * 20


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("steps/intro.md", "", LONG, "steps/intro.md:21: has 21 lines; a step's text has at most 20"),
        ("steps/intro.md", "", "x" * 81, "steps/intro.md:1: takes 81 columns; there are 80"),
        ("steps/intro.md", "", "  " + "x" * 77, "steps/intro.md:1: takes 79 columns; there are 78"),
        ("steps/intro.zh.md", "", "训" * 41, "steps/intro.zh.md:1: takes 82 columns; there are 80"),
        ("steps/intro.md", "", "[a](gone.md)", "steps/intro.md:1: the link gone.md leads to no file"),
        ("steps/intro.md", "", "[a](../../../ledger)", "the link ../../../ledger leads out of labs/"),
        ("steps/intro.md", "", "[a](bet.md#odds)", "names a heading that bet.md does not have"),
        ("steps/intro.md", "", "[a](https:/x)", "the link https:/x is no address"),
        ("steps/intro.md", "", "[a](ftp://x.org/y)", "has the scheme ftp"),
        ("steps/extra.md", "", "x", "steps/extra.md: belongs to no step"),
        ("steps/intro.md", "", "$ labassist rnu x", "`labassist rnu x`: labassist: unknown command 'rnu', did you mean run"),
        ("steps/intro.md", "", "say `labassist run 90-small/trian`", "no job 'trian' in this lab, did you mean train?"),
        ("steps/intro.md", "", "$ labassist run 90-small/train --profile tiney", "no profile 'tiney', did you mean tiny?"),
        ("steps/intro.md", "", "$ labassist run 90-small/train --set lr=1", "unknown key 'lr', did you mean optim.lr?"),
        ("steps/intro.md", "", "$ labassist run 90-small/train --set steps=x", "'x' is not a whole number"),
        ("steps/intro.md", "", "$ labassist runs --wher x", "unrecognized arguments: --wher"),
        ("steps/intro.md", "", "$ labassist check 90/fats", "no step 'fats', did you mean fast?"),
        ("steps/intro.md", "", "$ labassist note @last \"x", "cannot be read: No closing quotation"),
        ("lab.toml", "more", "see `labassist rnu`", "90-small/fast: `labassist rnu`"),
        ("lab.toml", 'run = { job = "train", profile = "tiny" }', 'run = { job = "train", profile = "tny" }', "no profile 'tny'"),
        ("lab.toml", "optim.lr=2.0", "optim.rl=2.0", "unknown key 'optim.rl', did you mean optim.lr?"),
        ("lab.toml", 'run = { job = "train", profile = "tiny" }', 'run = { job = "train", lint = { profile = "tny" } }', "no profile 'tny'"),
        ("lab.toml", 'run = { job = "train", profile = "tiny" }', 'run = { command = ["replai", "@last"] }', "unknown command 'replai'"),
        ("lab.toml", 'hints = ["run it"]\n', "", "90-small/plain: a step of kind run needs a hint"),
        ("lab.toml", 'find = "your turn"', 'find = "return"', ""),
        ("lab.toml", 'find = "your turn"', 'find = "e"', "times in double.py, not once"),
        ("lab.toml", 'find = "your turn"', 'find = "my turn"', "is found 0 times in double.py, not once"),
        ("lab.toml", 'edit = { file = "double.py"', 'edit = { file = "triple.py"', "edit.file 'triple.py' is not there"),
        ("lab.toml", 'solution = "double.py"', 'solution = "triple.py"', "solutions/triple.py is not there"),
        ("lab.toml", 'solution = "double.py"\n', "", "needs check.solution"),
        ("lab.toml", 'find = "* 2"', 'find = "* 9"', "alter.find '* 9' is not in solutions/double.py"),
        ("lab.toml", 'series = "loss", by', 'run = "bet", series = "loss", by', "alter.run 'bet': that step has no run"),
        ("lab.toml", 'criterion = "4 becomes 8"', 'criterion = "4 is 8"', "no alter makes the criterion '4 becomes 8' fail"),
        ("lab.toml", 'criterion = "4 becomes 8"', 'criterion = "4 is 8"', "names the criterion '4 is 8', which double does not"),
        ("checks.py", "def double(", "def treble(", "checks.py has no function double(found: Evidence)"),
        ("checks.py", "def double(", "def treble(", "treble is the check of no step"),
        ("checks.py", "def measured_bet(", "def measured_intro(", "measured_intro measures no step with a predict"),
        ("checks.py", "def double(", "def double(:", "checks.py:21: is no Python"),
    ],
)  # fmt: skip
def test_each_broken_promise_is_red(bare: Workspace, file: str, old: str, new: str, said: str) -> None:
    folder = write(bare)
    before = FILES.get(file, "")
    assert not old or before.count(old) == 1
    (folder / file).write_text(before.replace(old, new) if old else new)
    found = problems(bare)
    if not said:
        assert found == []
        return
    assert any(said in one for one in found), found


@pytest.mark.fault
def test_a_faulty_file_is_red_with_its_line(bare: Workspace) -> None:
    write(bare, lab_toml=TOML.replace("hours = 0.5", "hours = -1"))
    (one,) = problems(bare)
    assert one.startswith(f"labs/{ID}/lab.toml:5: hours must be")
    assert main(["--workspace", str(bare.root), "labs", "lint", "--static", ID]) == 1


def test_the_answer_is_one_json_document(bare: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    write(bare)
    assert main(["--workspace", str(bare.root), "--json", "labs", "lint", ID]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "ok": True,
        "labs": [{"lab": ID, "ok": True, "kept": False, "problems": [], "altered": []}],
    }


def test_the_template_is_a_whole_lab(bare: Workspace) -> None:
    shutil.copytree(content.root() / "templates" / "new-lab", bare.labs / "20-mine")
    assert problems(bare, "20-mine") == []


def test_names_of_criteria_are_found_through_helpers(bare: Workspace) -> None:
    checks = CHECKS.replace(
        'return [Criterion("4 becomes 8"',
        'return shared(got)\n\n\ndef shared(got):\n    return [Criterion("4 becomes 8"',
    )
    write(bare, checks_py=checks)
    assert problems(bare) == []
    write(bare, checks_py=checks.replace('Criterion("4 becomes 8"', 'Criterion("of it, " + str(got)'))
    assert problems(bare) == ["90-small/double: an alter names"] or problems(bare) == []


# --- spoiling


@pytest.fixture
def recorded(bare: Workspace) -> tuple[Workspace, str]:
    write(bare)
    return bare, record(bare, [3.0, 2.0, 1.0])


def spoilt(recorded: tuple[Workspace, str], alter: Alter) -> tuple[Workspace, str]:
    workspace, run = recorded
    copy = spoil.copy(workspace, workspace.root.parent / f"{workspace.root.name}-copy")
    return copy, spoil.spoil(copy, copy.labs / ID, alter, [run])


def test_a_series_is_spoilt_in_the_copy_only(recorded: tuple[Workspace, str]) -> None:
    workspace, run = recorded
    copy, what = spoilt(recorded, Alter("x", series="loss", by=10.0))
    assert what == "series loss x 10"
    for place, last in ((workspace, 1.0), (copy, 10.0)):
        rows = (place.ledger / "runs" / run / "metrics-rank0.jsonl").read_text().splitlines()
        assert json.loads(rows[-1]) == {"step": 3, "t": 0.3, "loss": last}
        with Ledger.open(place.ledger) as ledger:
            assert (ledger.run(run) or {})["last"]["loss"] == last
            assert ledger.journal.verify() == []


def test_config_field_and_file_are_spoilt(recorded: tuple[Workspace, str]) -> None:
    workspace, run = recorded
    copy, _ = spoilt(recorded, Alter("x", config="optim.lr", to=5.0))
    spoil.spoil(copy, copy.labs / ID, Alter("x", field="machine.host", to="other"), [run])
    spoil.spoil(copy, copy.labs / ID, Alter("x", file="double.py", find="return x", put="return 0"), [run])
    with Ledger.open(copy.ledger) as ledger:
        document = ledger.run(run) or {}
        assert (document["config"]["optim.lr"], document["machine"]["host"]) == (5.0, "other")
    assert "return 0" in (copy.labs / ID / "double.py").read_text()
    assert "return x" in (workspace.labs / ID / "double.py").read_text()
    with Ledger.open(workspace.ledger) as ledger:
        assert (ledger.run(run) or {})["config"]["optim.lr"] == 0.1


@pytest.mark.parametrize(
    "alter",
    [
        Alter("x", series="val_loss", by=2.0),
        Alter("x", config="gone", to=1),
        Alter("x", field="gone", to=1),
        Alter("x", verdict="DIVERGED"),
        Alter("x", tensor="model/w"),
        Alter("x", file="double.py", find="gone"),
    ],
)
def test_what_is_not_there_cannot_be_spoilt(recorded: tuple[Workspace, str], alter: Alter) -> None:
    from labassist.errors import InputError

    with pytest.raises(InputError):
        spoilt(recorded, alter)


# --- for real


def real(workspace: Workspace, lab: str, said: list[str]) -> Report:
    (report,) = lint(workspace, [lab], _parsed, real=True, say=said.append)
    return report


@pytest.mark.slow
def test_the_template_runs_passes_and_fails_when_it_must(bare: Workspace) -> None:
    folder = bare.labs / "20-mine"
    shutil.copytree(content.root() / "templates" / "new-lab", folder)
    said: list[str] = []
    report = real(bare, "20-mine", said)
    assert report.ok, report.problems
    assert {one.step for one in report.altered} == {"error", "fit", "rate", "replay", "compare"}
    assert all(one.criterion in one.failed for one in report.altered)
    assert "$ labassist replay @last" in said

    said.clear()
    again = real(bare, "20-mine", said)
    assert again.ok and again.kept and said == [] and again.altered == report.altered, "kept by digest"
    text = folder / "steps" / "start.md"
    text.write_text(text.read_text() + "\nMore.\n")
    before = lint_run.content_digest(Course.load(bare).lab("20-mine"))
    text.write_text(text.read_text() + "\nAnd more.\n")
    assert lint_run.content_digest(Course.load(bare).lab("20-mine")) != before


CANNOT_FAIL = CHECKS.replace("got == 8", "True")
FAILS_TOO = CHECKS.replace(
    'return [Criterion("4 becomes 8", got == 8, "8", str(got), "double.py")]',
    'return [Criterion("4 becomes 8", got == 8, "8", str(got), "double.py"), Criterion("it is even", got % 8 == 0, "", "", "")]',
)
EDIT_ONLY = TOML[: TOML.index("[[steps]]")] + TOML[TOML.index('[[steps]]\nid = "double"') :]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"checks_py": CANNOT_FAIL}, ["passes before anything was edited", "'4 becomes 8' still passes with"]),
        ({"lab_toml": EDIT_ONLY.replace('put = "* 3"', 'put = "* gone"')}, ["nothing is measured: double.py stopped: NameError"]),
        ({"checks_py": CHECKS.replace("got == 8", "got == 9")}, ["4 becomes 8: expected 8, got 8"]),
    ],
)  # fmt: skip
def test_an_exercise_must_fail_as_given_pass_solved_and_fail_spoilt(
    bare: Workspace, changed: dict[str, str], said: Sequence[str]
) -> None:
    folder = write(bare, **{"lab_toml": EDIT_ONLY, **changed})
    for name in ("intro", "bet", "plain", "fast"):
        for path in (folder / "steps").glob(f"{name}*"):
            path.unlink()
    checks = folder / "checks.py"
    text = checks.read_text()
    head, tail = text[: text.index("\n\ndef fast")], text[text.index("\n\ndef double") :]
    checks.write_text(head + tail)
    report = real(bare, ID, [])
    assert bool(report.problems) == bool(said), report.problems
    for one in said:
        assert any(one in problem.message for problem in report.problems), report.problems


@pytest.mark.slow
def test_a_second_criterion_that_fails_too_is_named(bare: Workspace) -> None:
    toml = EDIT_ONLY.replace(
        "alter = [",
        'alter = [{ criterion = "it is even", file = "double.py", find = "return x", put = "return 1 + x" }, ',
    )
    folder = write(bare, lab_toml=toml)
    for name in ("intro", "bet", "plain", "fast"):
        for path in (folder / "steps").glob(f"{name}*"):
            path.unlink()
    checks = FAILS_TOO[: FAILS_TOO.index("\n\ndef fast")] + FAILS_TOO[FAILS_TOO.index("\n\ndef double") :]
    (folder / "checks.py").write_text(checks)
    report = real(bare, ID, [])
    assert any("'it is even' fails too with double.py" in one.message for one in report.problems), (
        report.problems
    )


@pytest.mark.slow
def test_two_steps_may_share_a_solution(bare: Workspace) -> None:
    again = EDIT_ONLY[EDIT_ONLY.index("[[steps]]") :].replace('id = "double"', 'id = "again"')
    folder = write(bare, lab_toml=EDIT_ONLY + again)
    for name in ("intro", "bet", "plain", "fast"):
        for path in (folder / "steps").glob(f"{name}*"):
            path.unlink()
    (folder / "steps" / "again.md").write_text("# again\n")
    double = CHECKS[CHECKS.index("\n\ndef double") :]
    head = CHECKS[: CHECKS.index("\n\ndef fast")]
    (folder / "checks.py").write_text(head + double + double.replace("def double(", "def again("))
    report = real(bare, ID, [])
    assert report.ok, report.problems
