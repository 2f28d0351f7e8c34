"""Guesses, done-marks, hints and verdicts are kept in the ledger; what follows from them is a learner's standing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from course_lab import ID, TOML, folders, loaded, record, write

from labassist.course import checking, progress
from labassist.course.model import Criterion, Measured, Step
from labassist.course.progress import LabStanding, StepStanding
from labassist.errors import InputError, LedgerError
from labassist.ledger.audit import audit
from labassist.ledger.records import Mark, to_document
from labassist.ledger.schema import course_schema
from labassist.ledger.store import Ledger


class Place:
    """A workspace with the small lab, its ledger open."""

    def __init__(self, root: Path) -> None:
        self.workspace = folders(root)
        self.folder = write(self.workspace)
        self.ledger = Ledger.open(self.workspace.ledger, create=True)
        self.load()

    def load(self) -> None:
        self.course, self.lab = loaded(self.workspace)

    def step(self, name: str) -> Step:
        return next(step for step in self.lab.steps if step.id == name)

    def lab_standing(self) -> LabStanding:
        return progress.standing(self.course, self.ledger)[ID]

    def stands(self, name: str) -> StepStanding:
        return next(one for one in self.lab_standing().steps if one.step.id == name)

    def guess(self, name: str, said: str) -> str:
        return progress.guess(self.course, self.ledger, self.lab, self.step(name), said)

    def check(self, name: str) -> checking.Answer:
        answer = checking.ask(self.course, self.lab, self.step(name))
        progress.keep(self.ledger, self.lab, self.step(name), answer)
        return answer


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.ledger.close()


def entries(place: Place) -> list[dict[str, Any]]:
    lines = (place.workspace.ledger / "journal.jsonl").read_text().splitlines()
    return [json.loads(line[65:]) for line in lines]


def test_a_newcomer_stands_at_the_first_step(place: Place) -> None:
    lab = place.lab_standing()
    assert [one.standing for one in lab.steps] == ["open", "open", "open", "locked", "open"]
    assert (lab.done, lab.next and lab.next.step.id, lab.hours, lab.money) == (0, "intro", 0.0, 0.0)


def test_reading_is_done_by_saying_so_once(place: Place) -> None:
    progress.done(place.ledger, place.lab, place.step("intro"))
    progress.done(place.ledger, place.lab, place.step("intro"))
    assert place.stands("intro").standing == "done"
    assert [(one["kind"], one["put"]["course"]["1"]["kind"]) for one in entries(place)] == [
        ("course", "done")
    ]
    with pytest.raises(InputError, match="not done by saying so.*--predict NUMBER"):
        progress.done(place.ledger, place.lab, place.step("bet"))


def test_a_guess_is_read_by_its_kind(place: Place) -> None:
    assert place.guess("bet", " 1.5 nats") == "1.5"
    assert place.guess("bet", "2") == "2", "until it is measured a guess may change"
    assert place.guess("bet", "12,5") == "12.5"
    assert place.guess("bet", "-0,125 nats") == "-0.125"
    for wrong in ("much", "nan", "inf", "", "1,250", "1,2,5", "1.250,5"):
        with pytest.raises(InputError, match="is no number"):
            place.guess("bet", wrong)
    assert place.guess("fast", "B") == "b"
    with pytest.raises(InputError, match=r"'c' is none of the answers; choose from a \(fall\), b \(rise\)"):
        place.guess("fast", "c")
    with pytest.raises(InputError, match="nothing to guess"):
        place.guess("intro", "a")
    assert place.stands("bet").standing == "done"
    assert (place.stands("fast").guess, place.stands("fast").standing) == ("b", "open")


@pytest.mark.parametrize("state", ["finished", "running"])
def test_a_guess_stands_once_its_run_shows_something(place: Place, state: str) -> None:
    place.guess("fast", "a")
    run = record(place.workspace, [3.0, 2.0], state=state, **{"optim.lr": 2.0})
    with place.ledger.journal.locked():  # the run is newer than the guess
        place.ledger.change("note", run, lambda one: {**one, "created": progress.now()})
    with pytest.raises(
        InputError, match=f"you guessed a, and that was measured since .run {run}.: a guess stands"
    ):
        place.guess("fast", "b")
    assert place.guess("fast", "a") == "a", "the same guess once more changes nothing"
    assert place.stands("fast").guess == "a"


def test_a_first_guess_may_come_after_a_run(place: Place) -> None:
    record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    assert place.stands("fast").standing == "locked"
    place.guess("fast", "a")
    place.guess("fast", "b")
    assert place.stands("fast").guess == "b"


def test_hints_are_progressive_and_counted(place: Place) -> None:
    taken = [progress.hint(place.ledger, place.lab, place.step("fast")) for _ in range(5)]
    assert taken == [(1, True), (2, True), (3, True), (3, True), (3, True)]
    assert place.stands("fast").hints == 3
    assert len(place.ledger.marks()) == 3, "after the last one nothing is counted"
    with pytest.raises(InputError, match="no hints"):
        progress.hint(place.ledger, place.lab, place.step("intro"))


def test_a_run_without_a_check_is_done_when_it_finished(place: Place) -> None:
    record(place.workspace, [1.0], state="failed")
    record(place.workspace, [1.0], profile="laptop")
    record(place.workspace, [1.0], **{"optim.lr": 2.0})
    assert place.stands("plain").standing == "open"
    run = record(place.workspace, [1.0])
    assert (place.stands("plain").standing, place.stands("plain").newest) == ("done", run)


def test_a_verdict_is_kept_until_what_it_read_changes(place: Place) -> None:
    place.guess("fast", "a")
    run = record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    answer = place.check("fast")
    criterion = Criterion("the loss falls", True, "below 3.0", "2.0", f"{run} step 2")
    assert (answer.ok, answer.criteria, answer.measured) == (
        True,
        (criterion,),
        Measured("from 3.0 to 2.0", "series loss", "a"),
    )
    now = place.stands("fast")
    assert (
        now.standing == "done" and now.verdict and not now.verdict.stale and now.measured == answer.measured
    )
    count = len(entries(place))
    place.check("fast")
    assert len(entries(place)) == count, "the same verdict about the same artefacts is not journalled again"

    curve = place.ledger.run_folder(run) / "metrics-rank0.jsonl"
    before = curve.read_text()
    curve.write_text(before.replace("2.0", "4.0"))
    now = place.stands("fast")
    assert now.standing == "done" and now.verdict and now.verdict.stale, (
        "stale, and not re-verified by looking"
    )
    assert not place.check("fast").ok
    now = place.stands("fast")
    assert now.standing == "failed" and now.verdict and not now.verdict.stale, "a failing re-check re-opens"
    curve.write_text(before)
    assert place.check("fast").ok and place.stands("fast").standing == "done"


def test_a_note_counts_only_for_a_check_that_reads_it(place: Place) -> None:
    checks = (place.folder / "checks.py").read_text()
    (place.folder / "checks.py").write_text(
        checks.replace("f\"{run['id']} step", "f\"{run.get('note')} step")
    )
    place.guess("fast", "a")
    run = record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    place.check("fast")
    place.ledger.change("note", run, lambda one: {**one, "note": "nice"})
    assert place.stands("fast").verdict.stale  # type: ignore[union-attr]
    assert place.check("fast").criteria[0].source == "nice step 2"
    assert not place.stands("fast").verdict.stale  # type: ignore[union-attr]


def test_a_note_is_not_a_change_but_a_newer_run_is(place: Place) -> None:
    place.guess("fast", "a")
    run = record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    place.check("fast")
    place.ledger.change("note", run, lambda one: {**one, "note": "nice"})
    verdict = place.stands("fast").verdict
    assert verdict and not verdict.stale
    record(place.workspace, [3.0, 9.0], **{"optim.lr": 2.0})
    verdict = place.stands("fast").verdict
    assert verdict and verdict.stale


def test_an_exercise_is_stale_when_a_file_that_it_imports_changed(place: Place) -> None:
    assert not place.check("double").ok
    assert place.stands("double").standing == "failed"
    path = place.folder / "double.py"
    path.write_text((place.folder / "solutions" / "double.py").read_text())
    assert place.check("double").ok and place.stands("double").standing == "done"
    (place.folder / "train.toml").write_text("steps = 1\n[optim]\nlr = 0.1\n[profiles.tiny]\n")
    assert not place.stands("double").verdict.stale  # type: ignore[union-attr]
    (place.folder / "helper.py").write_text("START = 3\n")
    assert place.stands("double").verdict.stale  # type: ignore[union-attr]


def test_what_is_missing_is_kept_only_where_it_reopens(place: Place) -> None:
    place.guess("fast", "a")
    answer = place.check("fast")
    assert not answer.ok and f"labassist run {ID}/train --profile tiny --set optim.lr=2.0" in answer.missing
    assert [mark.kind for mark in place.ledger.marks()] == ["guess"]
    assert place.stands("fast").standing == "open"


@pytest.mark.fault
def test_a_vanished_run_reopens_its_step_and_says_what_to_run(place: Place) -> None:
    place.guess("fast", "a")
    run = record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    place.check("fast")
    folder = place.ledger.run_folder(run)
    shutil.rmtree(folder)
    assert place.stands("fast").verdict.stale  # type: ignore[union-attr]
    answer = place.check("fast")
    assert f"the folder of run {run} is gone" in answer.missing and "run: labassist run" in answer.missing
    assert place.stands("fast").standing == "open"


def test_a_bet_is_measured_by_a_later_run(place: Place) -> None:
    place.guess("bet", "2")
    assert [step.id for step in progress.unanswered(place.lab, place.ledger.marks())] == ["bet"]
    place.check("bet")
    assert place.stands("bet").measured is None
    record(place.workspace, [3.0, 1.25])
    place.check("bet")
    measured = place.stands("bet").measured
    assert measured and measured.text == "1.25 nats"
    assert progress.unanswered(place.lab, place.ledger.marks()) == []
    with pytest.raises(InputError, match="a guess stands"):
        place.guess("bet", "1.25")


def test_time_is_what_lies_between_marks_without_the_breaks(place: Place) -> None:
    for minute in (0, 10, 25, 56, 60):
        time = f"2026-11-30T01:{minute:02d}:00.000Z" if minute < 60 else "2026-11-30T02:00:00.000Z"
        place.ledger.mark(lambda _, time=time: Mark(ID, "intro", "hint", time, hint=1))
    assert place.lab_standing().hours == pytest.approx((10 + 15 + 4) / 60)


def test_marks_are_in_the_schema_and_audited(place: Place, tmp_path: Path) -> None:
    schema = Path(__file__).parents[1] / "ledger" / "schema" / "course.json"
    assert schema.read_text() == course_schema(), "python -m labassist.ledger.schema ledger/schema"
    place.guess("fast", "a")
    record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    place.check("fast")
    for mark in place.ledger.marks():
        jsonschema.validate(to_document(mark), json.loads(schema.read_text()))
    place.ledger.save_view()
    place.ledger.close()
    with Ledger.open(place.workspace.ledger) as again:
        assert [mark.kind for mark in again.marks()] == ["guess", "check"]
        found = audit(place.workspace.ledger, place.workspace.root)
        assert found.checked["course marks"] == 2
        assert not [one for one in found.problems if one.path in ("journal.jsonl", "view.json", "head")]
        again.db.table("course").insert({"lab": ID, "step": "fast", "kind": "passed"})
        problems = audit(place.workspace.ledger, place.workspace.root).problems
        assert [one.code for one in problems if one.path == "journal.jsonl"] == ["course-damaged"]
    journal = place.workspace.ledger / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"ok":true', b'"ok":null', 1))
    codes = {one.code for one in audit(place.workspace.ledger, place.workspace.root).problems}
    assert "journal-edited" in codes, "a verdict that was changed in the journal breaks the chain"


@pytest.mark.fault
def test_another_process_writes_the_ledger_meanwhile(place: Place) -> None:
    """Two writers of marks, and a check between them: every mark is there, and nobody's guess is lost."""
    place.guess("fast", "a")
    record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    code = (
        "import sys; from pathlib import Path; from labassist.ledger.store import Ledger\n"
        "from labassist.ledger.records import Mark\n"
        "ledger = Ledger.open(Path(sys.argv[1])); print('ready', flush=True)\n"
        "for n in range(60): ledger.mark(lambda marks: Mark('other', str(len(marks)), 'hint', '2026-01-01T00:00:00.000Z', hint=n + 1))\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(place.workspace.ledger)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    assert place.check("fast").ok
    for at in range(20):
        progress.done(place.ledger, place.lab, place.step("intro"))
        place.ledger.mark(lambda _, at=at: Mark("mine", str(at), "hint", "2026-01-01T00:00:00.000Z", hint=1))
    assert writer.wait(60) == 0
    writer.stdout.close()
    marks = place.ledger.marks()
    assert [mark.hint for mark in marks if mark.lab == "other"] == list(range(1, 61))
    assert len([mark for mark in marks if mark.lab == "mine"]) == 20
    assert place.stands("fast").standing == place.stands("intro").standing == "done"
    assert place.ledger.journal.verify() == []


@pytest.mark.fault
def test_a_read_only_ledger_keeps_nothing_and_shows_everything(place: Place) -> None:
    progress.hint(place.ledger, place.lab, place.step("fast"))
    place.guess("fast", "a")
    record(place.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    place.ledger.journal.readonly = True
    assert progress.hint(place.ledger, place.lab, place.step("fast")) == (2, False)
    assert progress.hint(place.ledger, place.lab, place.step("fast")) == (2, False), "it was not counted"
    with pytest.raises(LedgerError, match="read-only"):
        place.guess("fast", "b")
    assert place.stands("fast").guess == "a"
    assert checking.ask(place.course, place.lab, place.step("fast")).ok


@pytest.mark.fault
def test_a_learners_broken_job_file_does_not_hide_the_lab(place: Place) -> None:
    (place.folder / "train.toml").write_text("steps = = 1\n")
    assert place.stands("plain").standing == "open"
    place.guess("fast", "a")
    assert f"labs/{ID}/train.toml:1: not valid TOML" in place.check("fast").missing


def test_a_renamed_step_leaves_the_others_alone(place: Place) -> None:
    progress.done(place.ledger, place.lab, place.step("intro"))
    place.guess("bet", "1")
    toml = TOML.replace('id = "bet"', 'id = "wager"')
    write(place.workspace, lab_toml=toml)
    (place.folder / "steps" / "wager.md").write_text("# wager\n")
    place.load()
    assert place.stands("intro").standing == "done"
    assert place.stands("wager").standing == "open"


def test_a_run_is_found_among_many(place: Place) -> None:
    from labassist.course import noted

    put = {}
    for at in range(3000):
        put[str(at + 1)] = {
            "id": f"r{at}", "job": "other/train", "state": "finished", "config": {}, "profile": "",
        }  # fmt: skip
    put["7"] = {"stranger": True}
    put["1500"] |= {"job": f"{ID}/train", "profile": "tiny", "config": {"optim.lr": 0.1}}
    place.ledger.journal.append("table", put={"_default": put})
    assert [one["id"] for one in noted.matching(place.ledger, f"{ID}/train", "tiny", {"optim.lr": 0.1})] == [
        "r1499"
    ]
    assert place.stands("plain").standing == "done"
