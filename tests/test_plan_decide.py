"""`plan decide` and `plan claims`: reasons on record, and claims that are computed again."""

from __future__ import annotations

from pathlib import Path

import pytest
from plans import ask

from labassist import content
from labassist.cli.main import main
from labassist.planner import claims, decide


def test_wilson_holds_for_few_and_for_none() -> None:
    assert decide.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert decide.wilson(4, 100) == pytest.approx((0.0157, 0.0984), abs=1e-4)
    assert decide.wilson(10, 10)[1] == pytest.approx(1.0)


def test_a_decision_is_a_record_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    status, empty = ask(capsys, "decide")
    assert status == 0
    assert [one["state"] for one in empty["conditions"]] == ["open"] * 4
    assert all(one["source"] for one in empty["conditions"])
    assert empty["alternatives"][0]["name"] == "a better prompt, with examples in it"
    words = (
        "decide --examples 5000 --sample 400 --errors 4 --prompt-score 0.6 --target-score 0.8 --eval-size 400 "
        "--people-hours 20 --budget-hours 100"
    )
    _, good = ask(capsys, *words.split())
    assert (good["met"], good["open"]) == (4, 0)
    assert good["alternatives"][0]["lab"] == "07-qlora"
    assert all(
        (content.root() / "labs" / one["lab"]).is_dir()
        for one in good["alternatives"] + empty["alternatives"]
    )
    _, noisy = ask(capsys, *words.replace("--errors 4", "--errors 80").split())
    assert [one["state"] for one in noisy["conditions"]] == ["met", "met", "not met", "met"]
    # Twenty points on ten examples may be noise.
    _, few = ask(capsys, *words.replace("--eval-size 400", "--eval-size 10").split())
    assert few["conditions"][0]["state"] == "not met"


def test_thresholds_are_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        "\n".join(
            f'[{name}]\nvalue = 7\nsource = "mine"' for name in ("gap", "examples", "label_errors", "hours")
        )
    )
    _, made = ask(capsys, "decide", "--examples", "8", "--thresholds", str(own))
    assert made["conditions"][1] == {
        "name": "examples",
        "met": True,
        "threshold": 7,
        "source": "mine",
        "reason": "8 examples",
        "state": "met",
    }


def test_claims_agree_with_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    status, made = ask(capsys, "claims", "--verify")
    assert status == 0
    assert made["ok"] is True
    assert {one["id"] for one in made["checked"]} == claims.CHECKS.keys()
    bounded = {one["id"] for one in made["claims"] if one["expect"]}
    assert bounded == claims.CHECKS.keys()


def test_every_claim_says_how_and_its_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    for one in claims.claims():
        assert one.claim and one.verdict and one.corrected and one.how
        if one.command:
            words = shlex.split(one.command)
            assert words[0] == "labassist"
            assert main(words[1:]) in (0, 1), one.command
    capsys.readouterr()


def test_a_claim_that_disagrees_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(claims.CHECKS, "awq-p95", lambda: [1.0, 2.0, 3.0])
    status, made = ask(capsys, "claims", "--verify")
    assert status == 1
    assert [one["id"] for one in made["checked"] if not one["agrees"]] == ["awq-p95"]
