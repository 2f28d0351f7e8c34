"""The journal: what it keeps, what it notices, and what no kill or full disk can take from it."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labassist.errors import LedgerError
from labassist.ledger import records
from labassist.ledger.entries import GENESIS, Head, chain
from labassist.ledger.journal import Journal

pytestmark = pytest.mark.ci

FORK = multiprocessing.get_context("fork")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "\\ud" not in json.dumps(value))
documents = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values, max_size=4)


def filled(folder: Path, entries: int = 6) -> Journal:
    """A journal of a few entries, every second one with a run whose folder keeps positions."""
    (folder / "runs" / "run-a").mkdir(parents=True)
    journal = Journal(folder)
    for i in range(entries):
        journal.append("note", run="run-a" if i % 2 else "", put={"_default": {"1": {"id": "run-a", "i": i}}})
    return journal


def codes(folder: Path) -> set[str]:
    return {problem.code for problem in Journal(folder, readonly=True).verify()}


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked process and return its result, or the LedgerError it raised as text."""
    receive, send = FORK.Pipe(duplex=False)

    def main() -> None:
        try:
            send.send(work())
        except LedgerError as error:
            send.send(f"LedgerError: {error}")

    process = FORK.Process(target=main)
    process.start()
    process.join(30)
    assert receive.poll(), f"the child ended with {process.exitcode} and said nothing"
    return receive.recv()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(documents, st.booleans(), st.booleans()), max_size=8))
def test_what_was_appended_is_read_back_after_any_reopening(steps: list[tuple[Any, bool, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        journal = Journal(Path(name))
        for document, reopen, sync in steps:
            if reopen:
                journal.close()
                journal = Journal(Path(name))
            journal.append("note", put={"_default": {"1": document}}, sync=sync)
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


class Killed(BaseException):
    """Stands for a SIGKILL at one exact point."""


@pytest.mark.fault
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["_set_torn_aside", "_write", "_accept", "_move_head", "_note_position"])
def test_a_death_at_any_write_leaves_a_whole_journal(
    tmp_path: Path, step: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path, 3)
    real = getattr(Journal, step)

    def dies(self: Journal, *args: Any) -> None:
        if moment == "after":
            real(self, *args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, step, dies)
        with pytest.raises(Killed):
            journal.append("note", run="run-a")
    assert journal.verify() == []
    again = Journal(tmp_path)
    again.append("note", run="run-a")
    journal.refresh()
    assert journal.head == again.head
    assert again.entries >= 4 and again.verify() == []


@pytest.mark.fault
def test_four_processes_append_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "runs/shared").mkdir(parents=True)

    def work(writer: int) -> None:
        journal = Journal(tmp_path)
        for i in range(100):
            journal.append("note", run="shared", put={"_default": {str(writer * 1000 + i): {"i": i}}})

    processes = [FORK.Process(target=work, args=(writer,)) for writer in range(1, 5)]
    for process in processes:
        process.start()
    reader = Journal(tmp_path)
    seen: list[int] = []
    while any(process.is_alive() for process in processes):
        seen += [entry.n for entry in reader.refresh()]
        assert reader.verify() == []
        time.sleep(0.01)
    assert [process.exitcode for process in processes] == [0] * 4
    seen += [entry.n for entry in reader.refresh()]
    assert seen == list(range(1, 401))
    written = {key for entry in Journal(tmp_path).refresh() for key in entry.put["_default"]}
    assert written == {str(writer * 1000 + i) for writer in range(1, 5) for i in range(100)}
    assert reader.verify() == []


def test_threads_share_one_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    heard: list[int] = []
    journal.listener = lambda entry: heard.append(entry.n)
    threads = [
        threading.Thread(target=lambda: [journal.append("note", sync=False) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == list(range(1, 201)) and journal.verify() == []


def test_a_forked_child_waits_for_its_parents_lock(tmp_path: Path) -> None:
    journal = filled(tmp_path, 1)
    with journal.locked():
        child = FORK.Process(target=lambda: os._exit(0 if journal_append(tmp_path, journal) else 1))
        child.start()
        child.join(0.5)
        assert child.is_alive()
        journal.append("note")
    child.join(20)
    assert child.exitcode == 0
    assert [entry.n for entry in journal.refresh()] == [3]


def journal_append(folder: Path, journal: Journal) -> bool:
    """Append through the inherited object, as a forked child of an app would."""
    journal.mutex, journal._depth = threading.RLock(), 0
    return journal.append("note").n == 3


WRITER = """
import sys
from pathlib import Path
from labassist.ledger.journal import Journal
journal = Journal(Path(sys.argv[1]))
while True:
    entry = journal.append("note", run="victim", put={"_default": {"1": {"text": "x" * 900}}})
    sys.stdout.write(f"{entry.n} {entry.hash}\\n")
    sys.stdout.flush()
"""


def kill_writers(folder: Path, trials: int) -> None:
    (folder / "runs/victim").mkdir(parents=True)
    rng = random.Random(trials)
    acknowledged: dict[int, str] = {}
    for _ in range(trials):
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout
            lines = [writer.stdout.readline()]
            time.sleep(rng.uniform(0, 0.03))
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        acknowledged.update(
            (int(n), sha) for n, sha in (line.split() for line in lines if line.endswith("\n"))
        )
    journal = Journal(folder)
    journal.append("note", run="victim")
    hashes = {entry.n: entry.hash for entry in Journal(folder).refresh()}
    assert len(acknowledged) >= trials
    assert {n: hashes.get(n) for n in acknowledged} == acknowledged
    assert journal.verify() == []


@pytest.mark.fault
def test_sigkill_loses_nothing_acknowledged(tmp_path: Path) -> None:
    kill_writers(tmp_path, 20)


@pytest.mark.fault
@pytest.mark.slow
def test_sigkill_loses_nothing_acknowledged_often(tmp_path: Path) -> None:
    kill_writers(tmp_path, 200)


@pytest.mark.fault
def test_a_full_disk_hurts_nothing_earlier(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3)
    before = journal.path.read_bytes()

    def work() -> list[str]:
        said = []
        for room in (0, 1, 40, 200):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, resource.RLIM_INFINITY))
            try:
                journal.append("note", put={"_default": {"1": {"text": "x" * 400}}})
            except LedgerError as error:
                said.append(str(error))
            assert journal.path.read_bytes() == before
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert journal.append("note").n == 4
        return said

    said = in_child(work)
    assert len(said) == 4 and all("nothing earlier is hurt" in line for line in said)
    assert [entry.n for entry in journal.refresh()] == [4] and journal.verify() == []


FULL = """
import sys
from pathlib import Path
from labassist.errors import LedgerError
from labassist.ledger.journal import Journal
journal = Journal(Path(sys.argv[1]))
try:
    while True:
        journal.append("note", put={"_default": {"1": {"text": "x" * 3000}}})
except LedgerError as error:
    print(error)
whole = journal.entries
assert journal.verify() == [] and whole > 5, journal.verify()
Path(sys.argv[1], "filler").unlink()
assert journal.append("note").n == whole + 1 and journal.verify() == []
print("went on")
"""


@pytest.mark.fault
def test_a_really_full_disk(tmp_path: Path) -> None:
    script = f'mount -t tmpfs -o size=128k none "{tmp_path}" && head -c 40000 /dev/zero >"{tmp_path}/filler"'
    command = f'{script} && exec "{sys.executable}" -c "$FULL" "{tmp_path}"'
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", command],
            env={**os.environ, "FULL": FULL},
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    assert "disk is full" in done.stdout and "went on" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    journal = filled(tmp_path, 2)

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LedgerError, match=r"no locks .* keep the workspace on a local disk"):
        journal.append("note")
    assert len(Journal(tmp_path, readonly=True).refresh()) == 2


@pytest.mark.fault
def test_a_newer_ledger_is_read_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(records, "SCHEMA", records.SCHEMA + 1)
        filled(tmp_path, 2)
    journal = Journal(tmp_path)
    assert len(journal.refresh()) == 2
    with pytest.raises(LedgerError, match="upgrade labassist"):
        journal.append("note")
    late = Journal(tmp_path)
    assert late.seek(Head(journal.head, journal.entries, journal.bytes))
    with pytest.raises(LedgerError, match="upgrade labassist"):
        late.append("note")
    assert journal.verify() == []


@pytest.mark.fault
def test_a_read_only_folder_is_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        filled(folder, 2)
        for path in [*folder.iterdir(), folder]:
            path.chmod(0o555)

        def work() -> tuple[bool, int]:
            if os.getuid() == 0:
                os.setuid(65534)
            journal = Journal(folder)
            read = len(journal.refresh())
            with pytest.raises(LedgerError, match="read-only"):
                journal.append("note")
            return journal.readonly, read

        assert in_child(work) == (True, 2)
        folder.chmod(0o755)
        (folder / "runs").chmod(0o755)


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
