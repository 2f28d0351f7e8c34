"""A run is named by its job as well: steps that name another step's run hold, whatever was done in between."""

from __future__ import annotations

import pytest

from labassist.content import root
from labassist.errors import InputError
from labassist.ledger import names

RUNS = [
    {"id": "20260101-000000-aaaaaa", "created": "1", "job": "07-qlora/sft"},
    {"id": "20260101-000000-bbbbbb", "created": "2", "job": "07-qlora/sft"},
    {"id": "20260101-000000-cccccc", "created": "3", "job": "07-qlora/sft", "replay_of": "x"},
    {"id": "20260101-000000-dddddd", "created": "4", "job": "serving/bench"},
    {"id": "20260101-000000-eeeeee", "created": "5", "job": ""},
]


def test_a_jobs_newest_run_that_is_no_replay() -> None:
    assert names.resolve("@07-qlora/sft", RUNS)["id"].endswith("bbbbbb")
    assert names.resolve("@serving/bench", RUNS[::-1])["id"].endswith("dddddd")
    assert names.resolve("@bench", RUNS)["id"].endswith("dddddd")
    assert names.resolve("@last", RUNS)["id"].endswith("eeeeee")


def test_a_job_that_has_no_run_or_is_one_of_two() -> None:
    with pytest.raises(InputError, match="@07-qlora/sf means no run") as caught:
        names.resolve("@07-qlora/sf", RUNS)
    assert caught.value.mend == "did you mean @07-qlora/sft?"
    with pytest.raises(InputError, match="means no run") as caught:
        names.resolve("@lsat", RUNS)
    assert caught.value.mend == "did you mean @last?"
    with pytest.raises(InputError, match="@a/b means no run"):
        names.resolve("@a/b", [])
    other = {"id": "20260101-000000-ffffff", "created": "6", "job": "my/sft"}
    with pytest.raises(InputError, match="runs of 2 jobs: 07-qlora/sft, my/sft"):
        names.resolve("@sft", [*RUNS, other])
    assert names.resolve("@my/sft", [*RUNS, other]) is other


def test_no_step_of_the_fine_tuning_labs_counts_runs_back() -> None:
    """One more measurement or training between two steps would make another run of the same words."""
    for lab in ("07-qlora", "08-serve"):
        for path in (root() / "labs" / lab).rglob("*"):
            if path.suffix in (".md", ".toml", ".py"):
                text = path.read_text(encoding="utf-8")
                assert "@last" not in text and "@-" not in text, path
