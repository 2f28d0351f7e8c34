"""What no kill, full disk, missing lock or other writer can take from the journal."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from small_ledger import FORK, filled, in_child

from labassist.errors import LedgerError
from labassist.ledger import records
from labassist.ledger.entries import Head
from labassist.ledger.journal import Journal

pytestmark = pytest.mark.ci


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
    threads = [threading.Thread(target=lambda: [journal.append("note") for _ in range(50)]) for _ in range(4)]
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
