"""The course on the command line: what a learner reads, and what the app's screens are made of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from course_lab import FILES, ID, TOML, folders, record, write

from labassist.cli.main import main
from labassist.ledger.store import Ledger
from labassist.workspace import Workspace

LAB_KEYS = {
    "id", "short", "title", "summary", "weeks", "needs", "hours", "rent_hours", "problem", "done", "total", "stale", "spent", "next",
}  # fmt: skip
STEP_KEYS = {
    "id", "number", "title", "kind", "standing", "stale", "text", "predict", "guess", "measured", "run", "edit", "hints",
    "check", "how",
}  # fmt: skip


class Learner:
    """Somebody at the command line of a workspace."""

    def __init__(self, workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
        self.workspace, self.capsys = workspace, capsys

    def says(self, *words: str, status: int = 0) -> str:
        """Run a command; return what it printed, its talk last."""
        found = main(["--workspace", str(self.workspace.root), *words])
        said = self.capsys.readouterr()
        assert found == status, said
        return said.out + said.err

    def json(self, *words: str, status: int = 0) -> Any:
        found = main(["--workspace", str(self.workspace.root), "--json", *words])
        said = self.capsys.readouterr()
        assert found == status, said
        return json.loads(said.out)


@pytest.fixture
def learner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Learner:
    workspace = folders(tmp_path)
    write(workspace)
    return Learner(workspace, capsys)


def test_labs_lists_every_lab_with_its_next_step(learner: Learner) -> None:
    answer = learner.json("labs")
    assert set(answer) == {"labs", "next", "week", "weeks", "hours", "money", "plan_hours", "plan_rent_hours"}
    lab = next(one for one in answer["labs"] if one["id"] == ID)
    assert set(lab) == LAB_KEYS
    assert (lab["done"], lab["total"], lab["next"]) == (
        0,
        5,
        {"id": "intro", "number": 1, "title": "Read this"},
    )
    text = learner.says("labs")
    assert "90 A small lab" in text and "0/5" in text and "next: labassist lab " in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("! "))


def test_the_map_goes_by_weeks(learner: Learner) -> None:
    text = learner.says("labs", "--map")
    weeks = text.index("\nweek 2"), text.index("\nweek 3")
    assert (
        text.index(f"{ID}: A small lab\n") > weeks[0]
        and text.index(f"{ID}: A small lab (goes on)") > weeks[1]
    )
    assert "needs laptop; 0/5 done" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.fault
def test_a_faulty_lab_is_named_and_the_others_work(learner: Learner) -> None:
    write(learner.workspace, "91-bad", lab_toml=TOML.replace('kind = "read"', 'kind = "reed"'))
    line = TOML.split("\n").index('kind = "read"') + 1
    problem = f"labs/91-bad/lab.toml:{line}: unknown kind 'reed', did you mean read?"
    text = learner.says("labs")
    assert problem in text and "90 A small lab" in text
    bad = next(one for one in learner.json("labs")["labs"] if one["id"] == "91-bad")
    assert bad["problem"].startswith(problem) and set(bad) == LAB_KEYS and bad["next"] is None
    assert problem in learner.says("lab", "91", status=2)
    assert "Read this" in learner.says("lab", "90")


def test_a_learner_goes_through_the_lab(learner: Learner) -> None:
    text = learner.says("lab", "90")
    assert text.startswith("90 A small lab, step 1 of 5: Read this") and "▸····" in text
    assert "Text." in text and "done when you say so: labassist lab 90/intro --done" in text
    answer = learner.json("lab", "90/intro", "--done")
    assert set(answer) == {"lab", "step", "next", "steps", "kept", "note"}
    assert (answer["step"], answer["next"], answer["lab"]["done"]) == ("intro", "bet", 1)
    assert all(set(step) == STEP_KEYS for step in answer["steps"])

    assert learner.json("lab", "90")["step"] == "bet", "without a step it is the next one"
    assert "Your guess: 1.5 nats" in learner.says("lab", "90/2", "--predict", "1.5")

    answer = learner.json("lab", "90/fast")
    step = answer["steps"][3]
    assert step["standing"] == "locked"
    assert step["run"] == {
        "job": f"{ID}/train",
        "profile": "tiny",
        "sets": ["optim.lr=2.0"],
        "words": ["run", f"{ID}/train", "--profile", "tiny", "--set", "optim.lr=2.0"],
        "line": f"labassist run {ID}/train --profile tiny --set optim.lr=2.0",
        "newest": "",
    }
    text = learner.says("lab", "90/fast")
    assert "labassist lab 90/fast --predict a|b   (the run waits for it)" in text
    assert "$ labassist run" not in text
    assert "guess first; labassist lab 90/fast --predict a|b" in learner.says("check", "90/fast", status=2)
    text = learner.says("lab", "90/fast", "--predict", "b")
    assert (
        "Your guess: b, rise" in text
        and f"$ labassist run {ID}/train --profile tiny --set optim.lr=2.0" in text
    )

    answer = learner.json("check", "90/fast", status=1)
    assert "no run of" in answer["steps"][0]["check"]["missing"]
    run = record(learner.workspace, [3.0, 4.0], **{"optim.lr": 2.0})
    text = learner.says("check", "90/fast", status=1)
    assert "✗ the loss falls" in text and f"expected below 3.0   got 4.0   {run} step 2" in text
    assert "Measured:   from 3.0 to 4.0   (series loss)" in text and "as you guessed" in text
    assert learner.json("lab", "90/fast")["steps"][3]["standing"] == "failed"
    run = record(learner.workspace, [3.0, 2.0], **{"optim.lr": 2.0})
    answer = learner.json("check", "90/fast")
    assert set(answer) == {"lab", "ok", "steps", "kept", "note"} and answer["kept"]
    (step,) = answer["steps"]
    assert step["check"]["criteria"] == [
        {
            "name": "the loss falls",
            "ok": True,
            "expected": "below 3.0",
            "got": "2.0",
            "source": f"{run} step 2",
        }
    ]
    assert step["measured"] == {"text": "from 3.0 to 2.0", "source": "series loss", "option": "a"}
    assert (step["guess"]["value"], step["guess"]["text"], step["standing"]) == ("b", "rise", "done")
    assert "a guess stands" in learner.says("lab", "90/fast", "--predict", "a", status=2)

    text = learner.says("check", "90/double", status=1)
    assert "✗ 4 becomes 8" in text
    (learner.workspace.labs / ID / "double.py").write_text(FILES["solutions/double.py"])
    assert "✓ 4 becomes 8" in learner.says("check", "90/double")
    record(learner.workspace, [3.0, 1.0])
    answer = learner.json("check", "90")
    assert answer["ok"] and [step["id"] for step in answer["steps"]] == ["plain", "fast", "double"]
    answer = learner.json("lab", "90")
    assert (answer["lab"]["done"], answer["next"], answer["step"]) == (5, "", "double")
    assert answer["steps"][1]["measured"]["text"] == "1.0 nats", "a check measures what was bet on before"
    assert "and with it the whole lab" in learner.says("lab", "90/double")


def test_hints_come_one_by_one(learner: Learner) -> None:
    text = learner.says("hint", "90/fast")
    assert "hint 1 of 3" in text and "a nudge" in text and "more" not in text
    answer = learner.json("hint", "90/fast")
    assert answer == {
        "lab": ID, "step": "fast", "number": 2, "total": 3, "hint": "more", "hints": ["a nudge", "more"],
        "kept": True, "note": "",
    }  # fmt: skip
    assert learner.json("lab", "90")["steps"][3]["hints"] == {"taken": ["a nudge", "more"], "total": 3}
    assert "name the step too" in learner.says("hint", "90", status=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lab", "90/fast", "--predict", "c"], "'c' is none of the answers; choose from a (fall), b (rise)"),
        (["lab", "90", "--predict", "a"], "name the step too"),
        (["lab", "90/double", "--done"], "not done by saying so; it is done when its check passes"),
        (["lab", "90/7"], "no step '7'"),
        (["lab", "nothing"], "no lab 'nothing'"),
        (["lab", "90", "--lang", "de"], "unknown value 'de'"),
        (["labs", "lnit"], "unknown command 'lnit'"),
    ],
)
def test_a_wrong_word_is_one_line(learner: Learner, words: list[str], said: str) -> None:
    text = learner.says(*words, status=2)
    assert said in text and text.count("\n") == 1


def test_the_twin_is_shown(learner: Learner) -> None:
    assert "开始" in learner.says("lab", "90/1", "--lang", "zh")
    assert learner.json("lab", "90", "--lang", "zh")["steps"][0]["text"] == FILES["steps/intro.zh.md"]


@pytest.mark.fault
def test_a_read_only_ledger_says_that_nothing_is_kept(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.open(learner.workspace.ledger, create=True).close()
    # Root may write anywhere, so the mode bits alone do not make a ledger read-only here.
    opened = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith("journal.jsonl") and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    said = "the ledger is read-only, so this cannot be kept"
    assert said in learner.says("lab", "90/bet", "--predict", "1", status=2)
    assert said in learner.says("lab", "90/intro", "--done", status=2)
    text = learner.says("hint", "90/fast")
    assert "a nudge" in text and f"note: {said}" in text
    answer = learner.json("check", "90/double", status=1)
    assert (answer["kept"], answer["note"]) == (False, said)
    assert answer["steps"][0]["check"]["criteria"][0]["got"] == "4", "the verdict is shown all the same"
    assert learner.json("lab", "90")["lab"]["done"] == 0


@pytest.mark.fault
def test_an_old_terminal_gets_plain_signs(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["--workspace", str(learner.workspace.root), "lab", "90"]) == 0
    out.flush()
    text = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert ">----" in text and "\\u" not in text
