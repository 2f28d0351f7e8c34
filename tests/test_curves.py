"""Curves: read whole, followed live, and joined along a lineage."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labassist.errors import InputError, LedgerError
from labassist.ledger.curves import Series, Tail, encode, joined, read_curve, same_value
from labassist.ledger.store import Ledger
from labassist.runs.resume import lineage

ODD_NAN = "nan:fff80000deadbeef"


def write(path: Path, *rows: dict[str, Any], torn: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
    return path


def bits(value: Any) -> bytes:
    return struct.pack(">d", value)


def test_lines_are_merged_by_step_and_a_torn_last_one_is_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.jsonl",
        {"step": 1, "t": 0.5, "loss": 2, "batch": "9f86d081884c7d65"},
        {"step": 2, "t": 1.0, "loss": ODD_NAN, "batch": "0000000000000000"},
        {"step": 2, "t": 1.5, "val_loss": "-inf", "weights_digest": "00ff00ff00ff00ff"},
        {"step": 4, "t": 2.0, "loss": -0.0},
        {"step": 3, "t": 2.5, "loss": 1e-300},
        torn='{"step": 5, "t": 3.0, "lo',
    )
    curve = read_curve(path)
    assert list(curve.steps) == [1, 2, 3, 4]
    loss = curve.series["loss"]
    assert list(loss) == [1, 2, 3, 4] and loss[1] == 2.0 and isinstance(loss[1], float)
    assert bits(loss[2]).hex() == "fff80000deadbeef" and encode(loss[2]) == ODD_NAN
    assert bits(loss[4]) == bits(-0.0) and loss[3] == 1e-300
    assert dict(curve.series["val_loss"]) == {2: -math.inf}
    assert dict(curve.series["batch"]) == {1: "9f86d081884c7d65", 2: "0000000000000000"}
    assert dict(curve.series["weights_digest"]) == {2: "00ff00ff00ff00ff"}
    assert dict(curve.t) == {1: 0.5, 2: 1.0, 3: 2.5, 4: 2.0}
    assert curve.bytes == path.read_bytes().rfind(b"\n") + 1
    assert read_curve(tmp_path / "none").series == {}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"step": 2, "loss": 1.0}, "loss was recorded twice at step 2"),
        ({"step": 1, "loss": 1.0}, "loss was recorded twice at step 1"),
        ({"step": 3, "loss": None}, "None is not a number"),
        ({"step": 3, "loss": "high"}, "'high' is not a number"),
        ({"step": 3, "loss": True}, "True is not a number"),
        ({"step": 3, "batch": 7}, "no digest"),
        ({"step": 3, "batch": 7.5}, "no digest"),
        ({"step": True, "loss": 1.0}, "has no step"),
        ({"step": -1, "loss": 1.0}, "has no step"),
        ({"loss": 1.0}, "has no step"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    path = write(tmp_path / "m.jsonl", {"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}, row)
    with pytest.raises(LedgerError, match=f"line 3: .*{why}"):
        read_curve(path)


def test_a_late_step_may_not_be_repeated_either(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0} for step in (1, 5, 3, 3)]
    with pytest.raises(LedgerError, match="line 4: loss was recorded twice at step 3"):
        read_curve(write(tmp_path / "m.jsonl", *rows))
    (tmp_path / "m.jsonl").write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(LedgerError, match="line 2"):
        read_curve(tmp_path / "m.jsonl")


@given(st.lists(st.tuples(st.integers(0, 40), st.floats()), unique_by=lambda pair: pair[0]))
def test_a_series_is_a_mapping_whatever_the_order(pairs: list[tuple[int, float]]) -> None:
    series = Series()
    for step, value in pairs:
        assert series.add(step, value)
    for step, value in pairs:
        assert not series.add(step, value)
    series.settle()
    assert list(series) == sorted(step for step, _ in pairs)
    assert {step: bits(value) for step, value in series.items()} == {
        step: bits(value) for step, value in pairs
    }
    for step in set(range(-1, 42)) - set(series):
        assert step not in series and series.get(step) is None
    assert [bits(value) for value in series.values_in_order] == [bits(series[step]) for step in series]


@given(st.floats(), st.floats())
def test_equal_means_equal_bits(a: float, b: float) -> None:
    assert same_value(a, b) == (bits(a) == bits(b))
    assert same_value(a, a)


def test_equality_of_the_hard_cases() -> None:
    quiet, odd = struct.unpack(">d", bytes.fromhex("7ff8000000000000"))[0], float("-nan")
    assert not same_value(0.0, -0.0) and not same_value(quiet, odd) and same_value(quiet, quiet)
    assert same_value("00ff", "00ff") and not same_value("00ff", "00fe") and not same_value("1.0", 1.0)
    assert same_value(1, 1.0)


def test_a_tail_gives_each_whole_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    tail = Tail(path)
    assert tail.poll() == []
    lines = [json.dumps({"step": i, "loss": "inf" if i == 2 else i / 3}) + "\n" for i in range(1, 8)]
    rows: list[dict[str, Any]] = []
    with path.open("a", buffering=1) as file:
        for piece in (lines[0], lines[1][:9], lines[1][9:] + lines[2][:-1], "\n", "".join(lines[3:])):
            file.write(piece)
            file.flush()
            rows += tail.poll()
            assert tail.poll() == []
    assert [row["step"] for row in rows] == list(range(1, 8)) and rows[1]["loss"] == math.inf
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("a poll with nothing new opened the file"))
    assert tail.poll() == []


def test_a_tail_goes_on_where_a_curve_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", {"step": 1, "loss": 1.0}, torn='{"step": 2, "lo')
    tail = Tail(path, read_curve(path).bytes)
    with path.open("a") as file:
        file.write('ss": 0.5}\n{"step": 3}\n"rubbish"\n')
    with pytest.raises(LedgerError, match="is no row"):
        tail.poll()
    path.write_text(path.read_text().replace('"rubbish"\n', ""))
    assert [row["step"] for row in tail.poll()] == [2, 3]
    path.write_text("")
    with pytest.raises(LedgerError, match="was cut"):
        tail.poll()


def test_a_lineage_is_joined_at_its_checkpoints(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True)
    ledger.write("start", {"id": "a"})
    ledger.write("start", {"id": "b", "resumed_from": {"run": "a", "step": 4}})
    ledger.write("start", {"id": "c", "resumed_from": {"run": "b", "step": 6}})
    ledger.write("start", {"id": "d", "resumed_from": {"run": "c", "step": 6}})
    for run, first, last in (("a", 1, 6), ("b", 5, 9), ("c", 7, 8)):
        rows = (
            {"step": i, "t": float(i - first), "loss": i + ord(run) / 1000} for i in range(first, last + 1)
        )
        write(ledger.run_folder(run) / "metrics-rank0.jsonl", *rows)
    letters = {}
    for run in "abc":
        loss = joined(ledger, run).series["loss"].items()
        letters[run] = "".join(chr(round((float(value) - step) * 1000)) for step, value in loss)
    assert letters == {"a": "aaaaaa", "b": "aaaabbbbb", "c": "aaaabbcc"}
    assert list(joined(ledger, "c").steps) == list(range(1, 9))
    assert joined(ledger, "c").t[5] == 0.0
    assert list(joined(ledger, "d").steps) == list(range(1, 7))
    assert len(read_curve(ledger.run_folder("a") / "metrics-rank0.jsonl").series["loss"]) == 6
    assert joined(ledger, "a", rank=1).series == {}


def test_a_resume_without_a_step_of_its_own_gives_what_was_not_measured_before_it(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True)
    ledger.write("start", {"id": "cut"})
    write(ledger.run_folder("cut") / "metrics-rank0.jsonl", *({"step": i, "loss": 1.0 / i} for i in (1, 2)))
    after = {"step": 2, "loss": 9.0, "eval_loss": 0.25}
    for run, rows in (("done", [after]), ("further", [after, {"step": 3, "loss": 0.125}])):
        ledger.write("start", {"id": run, "resumed_from": {"run": "cut", "step": 2}})
        write(ledger.run_folder(run) / "metrics-rank0.jsonl", *rows)
    done, further = (joined(ledger, run).series for run in ("done", "further"))
    assert dict(done["loss"]) == {1: 1.0, 2: 0.5} and dict(done["eval_loss"]) == {2: 0.25}
    # What a resume measures again before it goes on, no unbroken run has.
    assert dict(further["loss"]) == {1: 1.0, 2: 0.5, 3: 0.125} and "eval_loss" not in further


def test_a_broken_lineage_is_said(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, create=True)
    ledger.write("start", {"id": "a", "resumed_from": {"run": "gone", "step": 4}})
    with pytest.raises(LedgerError, match="names the run gone, which is not in this ledger"):
        joined(ledger, "a")
    with pytest.raises(InputError, match="it goes on from run gone, which is not in this ledger"):
        lineage(ledger, ledger.find("a"))
    ledger.write("start", {"id": "gone", "resumed_from": {"run": "a", "step": 4}})
    with pytest.raises(LedgerError, match="runs in a circle"):
        joined(ledger, "a")
    with pytest.raises(InputError, match="run gone: it goes on from run a, which goes on from it"):
        lineage(ledger, ledger.find("a"))


def test_many_steps_take_few_bytes(tmp_path: Path) -> None:
    steps = 30_000
    path = write(
        tmp_path / "m.jsonl", *({"step": i, "t": i / 9, "loss": 1 / i, "lr": 1e-3} for i in range(1, steps))
    )
    tracemalloc.start()
    curve = read_curve(path)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(curve.steps) == steps - 1
    # Steps, seconds and two series: 16 bytes each and some slack, against 400 for dictionaries.
    assert size / steps < 100
