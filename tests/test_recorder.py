"""The recorder's promises: durable lines, exact numbers, seals, signals, and no torch."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import signal
import struct
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from labassist.errors import InputError, LabError, LedgerError, RestoreError
from labassist.ledger.canonical import decode_number
from labassist.record import digest, read_order, start

ROOT = Path(__file__).resolve().parent.parent


def order(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = {
        "protocol": 1, "run": "r1", "job": "t/t", "mode": "exact", "seed": 7, "threads": 1,
        "config": {"a": {"b": 1}}, "inputs": {}, "resume": None, "stop_after": None,
        "argv": [], "cwd": "", "env": {},
    }  # fmt: skip
    (folder / "order.json").write_text(json.dumps(text | changes))
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def python(code: str, folder: Path | None, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environ(folder), capture_output=True, text=True, **kw
    )


def environ(folder: Path | None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LABASSIST")}
    given = {"LABASSIST_RUN_DIR": str(folder)} if folder else {}
    return {**kept, "PYTHONPATH": str(ROOT), **given}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = order(tmp_path / "run")
    monkeypatch.setenv("LABASSIST_RUN_DIR", str(folder))
    monkeypatch.delenv("LABASSIST_RECORD", raising=False)
    return folder


@pytest.fixture(autouse=True)
def handlers_put_back():
    earlier = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    hook = sys.excepthook
    yield
    sys.excepthook = hook
    for number, handler in earlier.items():
        signal.signal(number, handler)


@pytest.mark.gpu
def test_on_a_gpu_each_step_keeps_the_time_at_which_it_was_handed_in(run_dir: Path) -> None:
    code = """
import time, torch
from labassist import record
recorder = record.start(total_steps=20)
log = record.Lagged(recorder)
for step in range(1, 21):
    log.record(step, loss=torch.ones((), device="cuda") / step)
    time.sleep(0.01)
    if step == 10:
        log.flush()
recorder.finish(20, "done")
"""
    done = python(code, run_dir)
    assert done.returncode == 0, done.stderr
    rows = lines(run_dir / "metrics-rank0.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 21)) and rows[-1]["loss"] == pytest.approx(0.05)
    times = [row["t"] for row in rows]
    assert all(later - earlier >= 0.009 for earlier, later in itertools.pairwise(times))


def test_recording_imports_no_torch_and_no_numpy(tmp_path):
    folder = order(tmp_path / "run")
    (tmp_path / "in.txt").write_text("abc")
    code = f"""
import sys
from labassist import record
r = record.start(total_steps=2)
r.input("text", {str(tmp_path / "in.txt")!r})
r.record(1, loss=0.5, batch=record.digest([1, 2]))
r.finish(1, "done")
print([m for m in ("torch", "numpy", "msgspec", "tinydb", "git") if m in sys.modules])
"""
    done = python(code, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    hello, given, finish = lines(folder / "events-rank0.jsonl")[0:3]
    assert (hello["event"], given["event"], finish["event"]) == ("hello", "input", "finish")
    assert given["sha256"] == hashlib.sha256(b"abc").hexdigest() and given["bytes"] == 3


def test_seal_of_finish_is_the_digest_of_the_file(run_dir):
    recorder = start(total_steps=3)
    for step in (1, 2, 3):
        recorder.record(step, loss=1 / step, lr=0.1)
    recorder.finish(3, "done")
    data = (run_dir / "metrics-rank0.jsonl").read_bytes()
    seal = lines(run_dir / "events-rank0.jsonl")[-1]["curve"]["metrics-rank0.jsonl"]
    assert seal == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert [row["step"] for row in lines(run_dir / "metrics-rank0.jsonl")] == [1, 2, 3]


def test_every_float_comes_back_with_its_bits(run_dir):
    numbers = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 2 / 3]
    odd = [struct.unpack(">d", bytes.fromhex(h))[0] for h in ("7ff8000000000001", "fff8dead0000beef")]
    numbers += [*odd, math.inf, -math.inf]
    recorder = start(total_steps=len(numbers))
    for step, number in enumerate(numbers, 1):
        recorder.record(step, loss=number)
    found = [decode_number(row["loss"]) for row in lines(run_dir / "metrics-rank0.jsonl")]
    assert [struct.pack(">d", x) for x in found] == [struct.pack(">d", x) for x in numbers]
    assert recorder.nonfinite == "loss at step 7"


def test_a_series_is_recorded_once_a_step(run_dir):
    recorder = start(total_steps=9)
    recorder.record(4, loss=1.0)
    recorder.record(4, val_loss=2.0)
    for step in (4, 3):
        with pytest.raises(InputError, match="'loss' was recorded at step 4"):
            recorder.record(step, loss=1.0)
    assert len(lines(run_dir / "metrics-rank0.jsonl")) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"loss": "low"},
        {"batch": "xyz"},
        {"batch": 1},
        {"loss": None},
        {"loss": [1.0]},
        {"t": 1.0},
        {"x_digest": "A" * 16},
    ],
)
def test_what_is_no_number_and_no_digest_is_refused(run_dir, values):
    recorder = start(total_steps=1)
    with pytest.raises(InputError):
        recorder.record(1, **values)
    assert (run_dir / "metrics-rank0.jsonl").read_bytes() == b""


def test_digest_is_the_same_for_every_kind_of_container():
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    numbers = [3, 1, 2**40, -5]
    expected = hashlib.sha256(struct.pack("<4q", *numbers)).hexdigest()[:16]
    assert digest(numbers) == digest(tuple(numbers)) == digest(array("q", numbers)) == expected
    assert digest(numpy.array(numbers)) == digest(torch.tensor(numbers)) == expected
    small = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32).t()
    assert digest(small) == digest([1, 3, 2, 4]) == digest(small.numpy())


@pytest.mark.fault
def test_a_line_that_record_returned_from_survives_sigkill(tmp_path):
    folder = order(tmp_path / "run")
    code = """
import sys
from labassist import record
r = record.start(total_steps=10**9)
step = 0
while True:
    step += 1
    r.record(step, loss=step / 3)
    sys.stdout.write(f"{step}\\n"); sys.stdout.flush()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environ(folder), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        told = 0
        while told < 500:
            told = int(child.stdout.readline())
        child.kill()
        told = max([told, *(int(line) for line in child.stdout if line.endswith("\n"))])
    found = lines(folder / "metrics-rank0.jsonl")
    assert len(found) >= told
    assert [row["step"] for row in found] == list(range(1, len(found) + 1))


@pytest.mark.fault
def test_full_disk_is_one_line_and_hurts_nothing_earlier(tmp_path):
    folder = order(tmp_path / "run")
    # A limit on the file's size fails the write as a full disk does, part of the line included.
    code = """
import resource, signal
from labassist import record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
r = record.start(total_steps=10**6)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for step in range(1, 10**6):
    r.record(step, loss=0.5)
"""
    done = python(code, folder)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "cannot write the curve" in done.stderr
    data = (folder / "metrics-rank0.jsonl").read_bytes()
    assert data.endswith(b"\n") and 900 < len(data) <= 1000
    assert [row["step"] for row in lines(folder / "metrics-rank0.jsonl")] == list(
        range(1, data.count(b"\n") + 1)
    )


@pytest.mark.fault
@pytest.mark.parametrize(
    "first,second", [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGTERM", "SIGINT")]
)
def test_first_signal_asks_and_the_second_is_not_swallowed(tmp_path, first, second):
    folder = order(tmp_path / "run")
    code = """
import time
from labassist import record
r = record.start(total_steps=1)
print("ready", flush=True)
while not r.stop_requested:
    time.sleep(0.01)
print("asked", flush=True)
while True:
    time.sleep(0.01)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environ(folder), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        child.send_signal(getattr(signal, first))
        assert child.stdout.readline() == "asked\n"
        child.send_signal(getattr(signal, second))
        assert child.wait(20) == -getattr(signal, second)


def test_stop_is_requested_when_the_orders_last_step_is_reached(run_dir):
    order(run_dir, stop_after=2)
    recorder = start(total_steps=5)
    recorder.record(1, loss=1.0)
    assert not recorder.stop_requested
    recorder.record(2, loss=1.0)
    assert recorder.stop_requested


def test_by_hand_it_trains_unrecorded_and_says_so_once(tmp_path):
    code = """
from labassist import record
r = record.start(total_steps=2)
for step in (1, 2):
    r.record(step, loss=0.5)
    r.save(step, {})
r.finish(2, "done")
"""
    done = python(code, None, cwd=tmp_path)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1 and "unrecorded" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_by_hand_the_configuration_is_the_jobs_defaults(tmp_path, monkeypatch):
    monkeypatch.delenv("LABASSIST_RUN_DIR", raising=False)
    toml = tmp_path / "job.toml"
    toml.write_text("steps = 3\n[optim]\nlr = 0.1\n[profiles.tiny]\nsteps = 1\n[schema]\nsteps = {min = 1}\n")
    assert read_order(toml).config == {"steps": 3, "optim": {"lr": 0.1}}


def test_recording_off_writes_hello_and_finish_only(run_dir, monkeypatch):
    monkeypatch.setenv("LABASSIST_RECORD", "off")
    recorder = start(total_steps=2)
    recorder.record(1, loss=0.5)
    recorder.input("text", __file__)
    recorder.save(1, {"model": None})
    recorder.finish(1, "stop")
    assert sorted(path.name for path in run_dir.iterdir()) == ["events-rank0.jsonl", "order.json"]
    assert [event["event"] for event in lines(run_dir / "events-rank0.jsonl")] == ["hello", "finish"]


def test_order_is_given_to_the_trainer(run_dir):
    recorder = start(total_steps=1)
    assert (recorder.config, recorder.mode, recorder.seed, recorder.threads) == (
        {"a": {"b": 1}},
        "exact",
        7,
        1,
    )
    assert recorder.resume is None and recorder.step == 0


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"protocol": 2}, "protocol 2"),
        ({"protocol": None}, "no protocol"),
        ({"seed": "x"}, "lacks or misstates"),
    ],
)
def test_a_newer_or_damaged_order_is_refused(run_dir, changes, words):
    order(run_dir, **changes)
    with pytest.raises(LedgerError, match=words):
        start(total_steps=1)


def test_a_run_folder_holds_one_segment(run_dir):
    start(total_steps=1).record(1, loss=1.0)
    with pytest.raises(InputError, match="already has a curve"):
        start(total_steps=1)


def test_a_replay_reads_the_recorded_input(run_dir, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("recorded")
    sha256 = hashlib.sha256(b"recorded").hexdigest()
    order(run_dir, inputs={"text": {"path": str(kept), "sha256": sha256}})
    recorder = start(total_steps=1)
    assert recorder.input("text", "elsewhere", split={"train": 0.9}) == kept
    event = lines(run_dir / "events-rank0.jsonl")[-1]
    assert (event["sha256"], event["split"]) == (sha256, {"train": 0.9})
    kept.write_text("changed")
    with pytest.raises(RestoreError, match="not the recorded one"):
        recorder.input("text", "elsewhere")


def test_a_missing_input_is_one_clear_line(run_dir):
    recorder = start(total_steps=1)
    with pytest.raises(LabError) as caught:
        recorder.input("text", "no/such.txt")
    assert str(caught.value).startswith("no/such.txt: cannot read the input 'text'")


def test_uncaught_lab_errors_are_shown_without_a_traceback(tmp_path):
    done = python(
        "from labassist import record; record.start(total_steps=1).input('text', 'no/such.txt')",
        order(tmp_path / "run"),
    )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "labassist: no/such.txt: cannot read the input 'text': No such file or directory; "
        "give the path of a readable file, relative to the workspace"
    ]


def test_t_is_seconds_since_the_start(run_dir):
    recorder = start(total_steps=2)
    recorder.record(1, loss=1.0)
    time.sleep(0.05)
    recorder.record(2, loss=1.0)
    first, second = (row["t"] for row in lines(run_dir / "metrics-rank0.jsonl"))
    assert first >= 0 and second - first >= 0.049


@pytest.mark.fault
def test_an_event_that_cannot_be_written_is_one_clear_line(run_dir):
    recorder = start(total_steps=1)
    (run_dir / "events-rank0.jsonl").unlink()
    (run_dir / "events-rank0.jsonl").mkdir()
    with pytest.raises(LedgerError, match="cannot write what the trainer did"):
        recorder.finish(0, "stop")
