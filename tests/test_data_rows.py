"""Training samples are read strictly: every fault of a file has its line and its mend; nothing is dropped in silence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command import answer, labassist

from labassist.content import root
from labassist.data import lint as linter
from labassist.data import rows
from labassist.errors import InputError, counted
from labassist.workspace import Workspace

GOOD = {"instruction": "Say hello", "output": "hello"}


def write(path: Path, *lines: object) -> Path:
    """Write lines: what is no text or bytes as JSON."""
    data = b""
    for line in lines:
        raw = (
            line
            if isinstance(line, bytes)
            else (line if isinstance(line, str) else json.dumps(line)).encode()
        )
        data += raw + b"\n"
    path.write_bytes(data)
    return path


@pytest.mark.fault
@pytest.mark.fault
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ('{"instruction": "a", "output": "b"', "not-json", "ends in the middle"),
        ('{"instruction": "a", "output": b}', "not-json", "column 32"),
        ({"question": "a", "answer": "b"}, "wrong-keys", "question, answer"),
        ({"instruction": "a"}, "wrong-keys", "no output"),
        ({**GOOD, "source": "x"}, "wrong-keys", "does not know: source"),
        ({"instruction": "a", "output": ""}, "empty-output", "nothing would be learned"),
        ({"instruction": " ", "output": "b"}, "empty-instruction", "nothing is asked"),
        ({"instruction": "a", "output": 3}, "wrong-type", "number"),
        (b'{"instruction": "caf\xe9", "output": "b"}', "not-utf8", "0xe9"),
        ([1, 2], "not-object", "list"),
        ({"text": "plain"}, "mixed-shapes", "shape text"),
        ('{"instruction": "a", "output": "b", "output": "c"}', "key-twice", "names output twice"),
        ('{"instruction": "a", "output": "\\uD83D"}', "half-character", "\\ud83d"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "not-json", "too deep"),
        ('{"instruction": "' + "a" * 1_000_000 + '", "output": "b"}', "long-line", "1 MB"),
    ],
)
def test_a_fault_is_named_with_its_line_and_mend(tmp_path: Path, line: object, code: str, said: str) -> None:
    found = rows.inspect(write(tmp_path / "a.jsonl", GOOD, "", line, GOOD))
    [problem] = found.problems
    assert (problem.line, problem.code) == (3, code)
    assert said in problem.message and problem.mend
    assert [one.line for one in found.samples] == [1, 4]


@pytest.mark.fault
def test_a_key_does_not_steer_the_terminal(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", {"\x1b[31mquestion": "a"})
    told = labassist("data", "lint", "a.jsonl", cwd=tmp_path, status=1).stdout
    assert "\\x1b[31mquestion" in told
    assert told.replace("\n", "").isprintable()


@pytest.mark.fault
def test_a_packed_file_is_named_and_a_device_is_not_read(tmp_path: Path) -> None:
    packed = tmp_path / "a b.jsonl"
    packed.write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    [problem] = rows.inspect(packed).problems
    assert (problem.code, problem.message) == ("packed", "is gzip, by its first bytes")
    assert f"gunzip -c '{packed}'" in problem.mend
    with pytest.raises(InputError, match="is a device"):
        rows.inspect("/dev/null")
    whole = write(tmp_path / "a.jsonl", '{"instruction": "a", "output": "\\ud83d\\ude00"}')
    assert rows.read(whole)[0].answer == "\U0001f600"


@pytest.mark.fault
@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([{"role": "user", "content": "a"}], "short-chat"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "no-answer"),
        ([{"role": "human", "content": "a"}, {"role": "assistant", "content": "b"}], "unknown-role"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}], "empty-content"),
        ([{"from": "user", "value": "a"}, {"role": "assistant", "content": "b"}], "wrong-keys"),
    ],
)
def test_a_chat_that_cannot_be_learned_from(tmp_path: Path, messages: object, code: str) -> None:
    [problem] = rows.inspect(write(tmp_path / "a.jsonl", {"messages": messages})).problems
    assert (problem.line, problem.code) == (1, code)


def test_every_shape_becomes_what_is_given_and_what_is_learned(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    shapes = {
        "instruction": ({"instruction": "a", "input": "x", "output": "b"}, "a\n\nx", "b"),
        "prompt": ({"prompt": "a", "completion": "b"}, "a", "b"),
        "chat": ({"messages": chat}, "a", "b"),
        "text": ({"text": "b"}, "", "b"),
    }
    for shape, (row, question, learned) in shapes.items():
        found = rows.inspect(write(tmp_path / f"{shape}.jsonl", row))
        [sample] = found.samples
        assert (found.shape, sample.question, sample.answer) == (shape, question, learned), shape
    [sample] = rows.read(write(tmp_path / "p.jsonl", {"prompt": chat[:2], "completion": chat[2:]}))
    assert sample.for_trl() == {"prompt": chat[:2], "completion": chat[2:]}


def test_reading_for_training_stops_at_the_first_fault_and_counts_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, "{", GOOD, "}")
    with pytest.raises(InputError) as caught:
        rows.read(path)
    assert caught.value.where == f"{path}:2" and "1 more" in caught.value.what


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no sample"):
        rows.read(write(tmp_path / "a.jsonl", "", " "))
    with pytest.raises(InputError, match="No such file"):
        rows.read(tmp_path / "b.jsonl")


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert rows.read(tmp_path / "a.jsonl")[0].answer == "hello"


@pytest.mark.fault
def test_a_huge_line_costs_no_huge_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        for _ in range(40):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + json.dumps(GOOD).encode() + b"\n")
    tracemalloc.start()
    found = rows.inspect(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.code for one in found.problems] == ["long-line"] and found.samples[0].line == 2
    assert most < 8_000_000


def test_paragraphs_of_a_text_are_samples_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\nstill one\n\n\n\ntwo\n", encoding="utf-8")
    assert [(one.line, one.answer) for one in rows.read(path)] == [(1, "one\nstill one"), (6, "two")]
    path.write_bytes(b"one\n\nt\xffwo\n")
    with pytest.raises(InputError, match="not UTF-8") as caught:
        rows.read(path)
    assert caught.value.where == f"{path}:3"


def test_the_labs_own_data_is_what_its_generator_writes(tmp_path: Path) -> None:
    import shutil
    import subprocess
    import sys

    lab = root() / "labs" / "07-qlora"
    shutil.copy(lab / "tickets.py", tmp_path)
    subprocess.run([sys.executable, "tickets.py"], cwd=tmp_path, check=True)
    made = sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".jsonl", ".txt"))
    assert len(made) == 4
    for name in made:
        assert (tmp_path / name).read_bytes() == (lab / name).read_bytes(), name
    train = {one.question for one in rows.read(lab / "tickets.jsonl")}
    heldout = {one.question for one in rows.read(lab / "tickets-heldout.jsonl")}
    assert len(train) == 600 and len(heldout) == 100 and not train & heldout


def test_data_lint_answers_and_its_status(workspace: Workspace, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, GOOD, {**GOOD, "output": "hi"})
    told = answer("data", "lint", str(path), cwd=workspace.root)
    assert told["ok"] and told["samples"] == 3 and told["shape"] == "instruction"
    assert (
        "1 sample is an exact copy of another" in told["warnings"][0]
        and "1 question has" in told["warnings"][1]
        and "more than one answer" in told["warnings"][1]
    )
    bad = write(tmp_path / "b.jsonl", GOOD, "nonsense")
    told = answer("data", "lint", str(bad), cwd=workspace.root, status=1)
    assert told["counts"] == {"not-json": 1} and told["problems"][0]["line"] == 2
    text = labassist("data", "lint", str(bad), cwd=workspace.root, status=1).stdout
    assert f"{bad}:2: is not JSON" in text and "1 LINE TO MEND" in text
    labassist("data", "lint", str(tmp_path / "none.jsonl"), cwd=workspace.root, status=2)


@pytest.mark.fault
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a b.jsonl", "a.txt"])
def test_another_encoding_is_one_finding_of_the_whole_file(tmp_path: Path, encoding: str, name: str) -> None:
    path = tmp_path / name
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes((mark + 3 * (json.dumps(GOOD) + "\n")).encode(encoding))
    [problem] = rows.inspect(path).problems
    known = encoding[:6].upper()
    assert (problem.line, problem.code) == (
        0,
        "not-utf8",
    ) and f"is {known}, by its first bytes" in problem.message
    assert f"iconv -f {known.lower()} -t utf-8 " in problem.mend and "latin1" not in problem.mend
    text = linter.text(linter.answer(rows.inspect(path)))
    assert text.endswith("THE FILE TO MEND") and text.count(name) == 3


def test_a_mark_of_utf8_is_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n")
    assert rows.read(path)[0].answer == "one"


def test_the_same_fault_of_many_lines_is_told_once(tmp_path: Path) -> None:
    found = rows.inspect(write(tmp_path / "a.jsonl", *[{"question": "a", "answer": "b"}] * 30, "nonsense"))
    text = linter.text(linter.answer(found))
    assert text.count("has the keys question, answer") == 1 and "(and 29 more alike)" in text
    assert "a.jsonl:31: is not JSON" in text and text.endswith("31 LINES TO MEND")


def test_one_sample_that_is_too_long_is_one() -> None:
    spread = {"tokens": 9, "trained_tokens": 4, "median": 4.5, "p95": 6, "max": 6, "limit": 5, "over": 1}
    told = linter.answer(rows.Read("a.jsonl", "text", [], [], 1))
    text = linter.text(told | {"model": "m", "tokens": spread | {"histogram": [[3, 6, 2]]}, "shown": ""})
    assert text.endswith(
        "OK, with a limit of 5 tokens a sample; a job has its own, its `length`: give that with --limit"
    )
    assert "1 sample is longer than 5 tokens and would be cut" in text and "0 samples of 1 line, " in text


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (1, "runs", "1 run"),
        (0, "runs", "0 runs"),
        (1, "journal entries", "1 journal entry"),
        (2000, "LINES", "2,000 LINES"),
    ],
)
def test_one_of_a_thing_is_not_many(number: int, words: str, said: str) -> None:
    assert counted(number, words) == said
