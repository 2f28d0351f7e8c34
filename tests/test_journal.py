"""The journal: what it keeps, and what it notices of what was done to it."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_ledger import codes, filled

from labassist.errors import LedgerError
from labassist.ledger.entries import GENESIS, Head, chain
from labassist.ledger.journal import Journal

pytestmark = pytest.mark.ci

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "\\ud" not in json.dumps(value))

documents = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(documents, st.booleans()), max_size=8))
def test_what_was_appended_is_read_back_after_any_reopening(steps: list[tuple[Any, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        journal = Journal(Path(name))
        for document, reopen in steps:
            if reopen:
                journal.close()
                journal = Journal(Path(name))
            journal.append("note", put={"_default": {"1": document}})
        entries = Journal(Path(name), readonly=True).refresh()
        assert [entry.put["_default"]["1"] for entry in entries] == [step[0] for step in steps]
        assert [entry.n for entry in entries] == list(range(1, len(steps) + 1))
        assert journal.verify() == []


def test_lines_are_as_the_format_page_says(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3)
    previous = GENESIS
    for line in journal.path.read_bytes().splitlines():
        stored, body = line[:64].decode(), line[65:]
        assert line[64:65] == b" " and stored == chain(previous, body)
        assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
        previous = stored
    head = json.loads((tmp_path / "head").read_bytes())
    assert (tmp_path / "head").stat().st_size == 160
    assert head == {"hash": previous, "entries": 3, "bytes": journal.path.stat().st_size}
    positions = (tmp_path / "runs/run-a/positions.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in positions] == [2]


@pytest.mark.fault
def test_any_flipped_byte_is_reported(tmp_path: Path) -> None:
    path = filled(tmp_path, 4).path
    content = path.read_bytes()
    rng = random.Random(7)
    for at in range(len(content)):
        for flip in (1 << rng.randrange(8), rng.randrange(1, 256)):
            path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
            assert codes(tmp_path), (at, flip)


@pytest.mark.fault
def test_any_truncated_tail_is_reported_by_head_and_without_it_by_the_run(tmp_path: Path) -> None:
    path = filled(tmp_path, 6).path
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        assert "journal-cut" in codes(tmp_path), end
    (tmp_path / "head").unlink()
    path.write_bytes(b"".join(content.splitlines(keepends=True)[:4]))
    (cut,) = [p for p in Journal(tmp_path, readonly=True).verify() if p.code == "journal-cut"]
    assert (cut.run, cut.line) == ("run-a", 5)


@pytest.mark.fault
@pytest.mark.parametrize("line", range(1, 7))
def test_an_edited_line_is_named(tmp_path: Path, line: int) -> None:
    path = filled(tmp_path).path
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"kind":"note"', b'"kind":"nota"')
    path.write_bytes(b"".join(lines))
    problems = Journal(tmp_path).verify()
    assert [(p.code, p.line) for p in problems] == [("journal-edited", line)]
    with pytest.raises(LedgerError, match=f"line {line}: does not match its hash"):
        Journal(tmp_path).refresh()


def test_an_edit_with_a_recomputed_hash_shows_at_the_next_line_or_in_the_head(tmp_path: Path) -> None:
    path = filled(tmp_path).path
    whole = path.read_bytes().splitlines()
    for line in (3, 6):
        lines = list(whole)
        body = lines[line - 1][65:].replace(b'"i":', b'"j":')
        forged = chain(lines[line - 2][:64].decode(), body).encode()
        lines[line - 1] = forged + b" " + body
        path.write_bytes(b"\n".join(lines) + b"\n")
        found = [(p.code, p.line) for p in Journal(tmp_path).verify()]
        expected = ("journal-edited", 4) if line == 3 else ("journal-replaced", 6)
        assert expected in found


@pytest.mark.fault
@pytest.mark.parametrize("line", range(1, 6))
def test_deleted_and_swapped_lines_are_named(tmp_path: Path, line: int) -> None:
    path = filled(tmp_path).path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: line - 1] + lines[line:]))
    first = Journal(tmp_path).verify()[0]
    assert (first.code, first.line) == ("journal-order", line)
    lines[line - 1], lines[line] = lines[line], lines[line - 1]
    path.write_bytes(b"".join(lines))
    found = {(p.code, p.line) for p in Journal(tmp_path).verify()}
    assert {("journal-order", line), ("journal-order", line + 1)} <= found


def test_a_cut_tail_is_not_written_over(tmp_path: Path) -> None:
    path = filled(tmp_path).path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    with pytest.raises(LedgerError, match="was cut: head names 6 entries and 5 are there"):
        Journal(tmp_path).append("note")
    path.unlink()
    with pytest.raises(LedgerError, match=r"journal\.jsonl is gone"):
        Journal(tmp_path)


@pytest.mark.fault
def test_a_torn_last_line_is_set_aside_with_its_bytes(tmp_path: Path) -> None:
    journal = filled(tmp_path, 2)
    for n, torn in enumerate([b"0123", b"\0" * 5000, journal.path.read_bytes()[:90]], 1):
        with journal.path.open("ab") as file:
            file.write(torn)
        reader = Journal(tmp_path, readonly=True)
        assert len(reader.refresh()) == journal.entries
        assert reader.verify() == []
        journal.append("note")
        assert (tmp_path / f"journal.torn-{n}").read_bytes() == torn
        assert journal.verify() == []


def test_bad_appends_leave_nothing(tmp_path: Path) -> None:
    journal = filled(tmp_path, 2)
    before = journal.path.read_bytes()
    bad: list[dict[str, Any]] = [
        {"put": {"_default": {"1": {"loss": float("nan")}}}},
        {"put": {"_default": {"1": {"thing": object()}}}},
        {"put": {"_default": {"1": {"text": "\ud800"}}}},
        {"put": {"_default": {"one": {}}}},
        {"run": "../outside"},
    ]
    for arguments in bad:
        with pytest.raises(LedgerError):
            journal.append("note", **arguments)
    assert journal.path.read_bytes() == before and journal.append("note").n == 3


def test_a_journal_replaced_while_open_is_noticed(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3)
    copy = journal.path.read_bytes()
    journal.path.unlink()
    journal.path.write_bytes(copy[: len(copy) // 2])
    with pytest.raises(LedgerError, match="replaced or cut"):
        journal.append("note")


def test_a_torn_position_is_mended_and_a_wrong_one_reported(tmp_path: Path) -> None:
    journal = filled(tmp_path, 2)
    positions = tmp_path / "runs/run-a/positions.jsonl"
    with positions.open("ab") as file:
        file.write(b'{"n":9')
    assert journal.verify() == []
    journal.append("note", run="run-a")
    assert [json.loads(line)["n"] for line in positions.read_text().splitlines()] == [2, 3]
    positions.write_text(positions.read_text().replace('"n":2', '"n":1') + "rubbish\n")
    assert codes(tmp_path) == {"journal-replaced", "positions-damaged"}


def test_a_damaged_or_missing_head_is_reported(tmp_path: Path) -> None:
    journal = filled(tmp_path, 2)
    (tmp_path / "head").write_bytes(b"")
    assert codes(tmp_path) == {"head-damaged"}
    with pytest.raises(LedgerError, match="head is damaged"):
        journal.append("note")
    (tmp_path / "head").unlink()
    assert codes(tmp_path) == {"head-missing"}
    journal.append("note")
    assert codes(tmp_path) == set()
    indented = json.dumps(json.loads((tmp_path / "head").read_bytes()), indent=90)
    (tmp_path / "head").write_text(indented)
    journal.append("note")
    assert codes(tmp_path) == set() and (tmp_path / "head").stat().st_size == 160


def test_seek_trusts_only_a_position_that_is_there(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5)
    middle = Journal(tmp_path).refresh()[2]
    later = Journal(tmp_path)
    assert later.seek(Head(middle.hash, 3, middle.end))
    assert [entry.n for entry in later.refresh()] == [4, 5]
    assert later.head == journal.head
    for wrong in (
        Head(middle.hash, 4, middle.end),
        Head("0" * 64, 3, middle.end),
        Head(middle.hash, 3, middle.end - 1),
        Head(middle.hash, 3, middle.end + 10**6),
        Head(middle.hash, 0, 0),
    ):
        assert not Journal(tmp_path).seek(wrong)
