from __future__ import annotations

import pytest

from labassist.errors import InputError
from labassist.ledger.search import select

RUNS = [
    {"id": "a", "job": "01/train", "state": "finished", "config": {"optim.lr": 1e-3}, "last": {"loss": 1.9}},
    {
        "id": "b",
        "job": "01/train",
        "state": "failed",
        "config": {"optim.lr": 1e-5},
        "last": {"loss": "nan:7ff8000000000000"},
    },
    {
        "id": "c",
        "job": "07/sft",
        "verdict": {"verdict": "BITWISE"},
        "state": "finished",
        "config": {"optim.lr": 2e-4, "clip": "off"},
    },
]


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (["lr>1e-4"], ["a", "c"]),
        (["config.optim.lr<=1e-5"], ["b"]),
        (["state=finished", "job~07"], ["c"]),
        (["clip=off"], ["c"]),
        (["clip!=off"], ["a", "b"]),
        (["last.loss<2"], ["a"]),
        (["loss > 0"], ["a"]),
        (["lr==1e-3"], ["a"]),
        (["note~x"], []),
        (["resumed_from.run=a"], []),
        ([], ["a", "b", "c"]),
    ],
)
def test_expressions_choose_runs(where: list[str], ids: list[str]) -> None:
    assert [document["id"] for document in select(RUNS, where)] == ids


def test_sorting_puts_what_has_no_value_last() -> None:
    assert [document["id"] for document in select(RUNS, sort="lr")] == ["b", "c", "a"]
    assert select(RUNS, sort="loss")[-1]["id"] == "c"


@pytest.mark.parametrize("bad", ["", "lr", "lr>fast", "=3"])
def test_what_is_no_expression_is_named(bad: str) -> None:
    with pytest.raises(InputError, match="--where"):
        select(RUNS, [bad])


@pytest.mark.parametrize(
    ("key", "near"), [("optim.rl", "optim.lr"), ("los", "loss"), ("stat", "state"), ("config.lr", "optim.lr")]
)
def test_a_key_that_no_run_has_is_no_answer(key: str, near: str) -> None:
    for ask in ({"where": [f"{key}=1"]}, {"sort": key}):
        with pytest.raises(InputError, match=f"no run has a '{key}', did you mean .*{near}"):
            select(RUNS, **ask)
    assert select([], [f"{key}=1"], key) == []
