"""What the app says, without a terminal: states, health, verdicts, searches, and logs that cannot act."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from labassist.app import words
from labassist.app.big import big
from labassist.app.desk import matching
from labassist.app.health import ENOUGH, Health
from labassist.app.screens.audit import audit_page
from labassist.app.verdict import KIND, progress_lines, verdict_lines
from labassist.app.watch import LOG_BYTES, LogEnd
from labassist.errors import InputError
from labassist.ledger.canonical import encode_number
from labassist.ledger.records import Run
from labassist.runs.live_line import span


def text(lines: list[words.Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def test_every_state_has_a_word_and_a_sign_of_its_own() -> None:
    seen = set()
    for plain in (False, True):
        for state in ("finished", "failed", "stopped", "lost"):
            shown = words.state({"state": state}, "over", False, words.signs(plain))
            assert shown.word == state
            seen.add((plain, shown.sign))
    assert len(seen) == 8
    running = {"state": "running"}
    marks = words.signs(True)
    assert words.state(running, "alive", False, marks).word == "running"
    assert words.state(running, "unseen", False, marks).word == "unseen"
    assert words.state(running, "over", False, marks).word == "closing"
    assert words.state(running, "over", True, marks).word == "unclosed"
    unhealthy = {"state": "finished", "health": "loss is nan at step 3"}
    assert words.state(unhealthy, "over", False, marks).sign == "!"


def test_ascii_signs_are_ascii_and_one_cell() -> None:
    assert all(sign.isascii() for sign in words.ASCII)
    assert all(len(sign) == 1 for sign in (*words.ASCII, *words.UNICODE))


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (1.4121, "1.412"),
        (0.000186, "1.86e-04"),
        (2000, "2,000"),
        (1.0, "1"),
        (1234.5678, "1,235"),
        (math.inf, "inf"),
        (encode_number(math.nan), "nan"),
        ("9f86d081884c7d65", "9f86d081884c7d65"),
        (None, "-"),
    ],
)
def test_numbers_are_short(number: object, shown: str) -> None:
    assert words.value(number) == shown


def test_spans_and_ages() -> None:
    assert span(61) == "1:01"
    assert span(3723) == "1:02:03"
    stamp = "2026-01-01T00:00:00.000Z"
    now = words.moment(stamp)
    for seconds, shown in ((12, "12 s"), (180, "3 min"), (7200, "2 h"), (5 * 86400, "5 d")):
        assert words.ago(stamp, now + seconds) == shown


def fed(losses: list[float], clip: object = 1.0, **more: float) -> Health:
    health = Health()
    for step, loss in enumerate(losses, 1):
        health.feed({"step": step, "loss": loss, **more}, clip)
    return health


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([3.0] * (ENOUGH - 1), "too early"),
        ([3.0 - step / 100 for step in range(200)], "falling"),
        ([2.0] * 200, "flat"),
        ([1.0 + step / 50 for step in range(200)], "rising"),
        (
            [2.0] * 3 + [20.0] * 10 + [20.0 - step / 10 for step in range(170)],
            "! unstable: the loss's average rose from 2 to 18.51 at step 28; now falling",
        ),
        ([2.0] * 40 + [math.nan] + [2.0] * 5, "loss is nan at step 41"),
    ],
)
def test_health_in_words(losses: list[float], said: str) -> None:
    assert said in text(fed(losses).words({}, words.UNICODE))


def test_the_noise_of_small_batches_is_not_called_unstable() -> None:
    for seed in range(20):
        drawn = random.Random(seed)
        losses = [max(0.05, drawn.gauss(1.5, 0.6)) for _ in range(500)]
        assert "unstable" not in text(fed(losses).words({}, words.UNICODE))


def test_health_counts_clipped_steps_and_names_the_best_held_out_loss() -> None:
    health = Health()
    for step in range(1, 101):
        row: dict[str, Any] = {"step": step, "loss": 2.0, "grad_norm": 2.0 if step % 4 == 0 else 0.5}
        if step % 20 == 0:
            row["val_loss"] = 1.5 if step == 60 else 1.8
        health.feed(row, 1.0)
    said = text(health.words({}, words.UNICODE))
    assert "clipped 25% of steps" in said
    assert "held-out loss 1.8 (step 100), best 1.5 at step 60" in said
    # Where a trainer evaluates on the way, the one number at the end is no curve and no new best.
    health.feed({"step": 90, "eval_loss": 1.7}, 1.0)
    health.feed({"step": 100, "eval_loss": 1.6, "val_loss": 1.5}, 1.0)
    assert "held-out loss 1.6 (step 100), its best" in text(health.words({}, words.UNICODE))
    assert "clipped" not in text(fed([2.0] * 30, "off", grad_norm=9.0).words({}, words.UNICODE))


def test_a_recorded_fault_comes_first() -> None:
    said = fed([2.0] * 50).words({"health": "checkpoint 40: torn"}, words.ASCII)
    assert text(said).startswith("x checkpoint 40: torn")


def test_ascii_keeps_what_a_sign_means() -> None:
    assert words.plain("W + alpha/r · B A, between ⟦ ⟧ …") == "W + alpha/r * B A, between [ ] ~"


@pytest.mark.parametrize("word", sorted(KIND))
@pytest.mark.parametrize("plain", [False, True])
def test_every_verdict_is_said_big_and_in_words(word: str, plain: bool) -> None:
    rows = big(word, plain=plain)
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) < 76
    assert all(row.isascii() for row in rows) is plain
    found = {"verdict": word, "steps": 120, "series": 5, "tensors": 42, "likely_causes": ["because"]}
    marks = words.signs(plain)
    lines = verdict_lines(found, marks, plain=plain, room=9)
    assert len(lines) <= 9
    assert f"{word}  " in text(lines)
    assert "compared 120 steps, 5 series, 42 tensors" in text(lines)
    # Where there is no room for large letters, the words still stand.
    assert text(verdict_lines(found, marks, plain=plain, room=2)).splitlines()[0].split()[1] == word


def test_one_of_a_thing_is_called_one_thing() -> None:
    found = {"verdict": "BITWISE", "steps": 1, "series": 1, "tensors": 1}
    said = text(verdict_lines(found, words.UNICODE, plain=False, room=9))
    assert "compared 1 step, 1 series, 1 tensor" in said.splitlines()[-1].strip()
    audited = {"ok": True, "head": "ab" * 32, "checked": {"checkpoints": 1, "curves": 2}, "problems": []}
    assert "checked  1 checkpoint, 2 curves" in text(audit_page(audited, words.UNICODE, plain=False))


def test_a_divergence_names_step_and_values() -> None:
    first = {"step": 1234, "series": "loss", "a": 1.93, "b": 1.94}
    found = {
        "verdict": "DIVERGED",
        "compared": {"steps": 2000, "series": 3, "tensors": 0},
        "first_difference": first,
    }
    said = text(verdict_lines(found, words.UNICODE, plain=False, room=9))
    assert "first difference at step 1,234: loss 1.93 / 1.94" in said


def test_replay_progress_tells_the_first_loss_that_differs() -> None:
    same = text(progress_lines("", 60, 120, 60, None, words.ASCII))
    assert "step 60/120" in same
    assert "60 losses so far, each equal in every bit" in same
    assert "differs from step 7 on" in text(progress_lines("", 60, 120, 60, 7, words.ASCII))


def run(number: int, **more: Any) -> dict[str, Any]:
    document = {
        "id": f"20260101-00000{number}-abc00{number}",
        "job": "01-first-loop/train",
        "state": "finished",
        "mode": "exact",
        "config": {"optim.lr": 10.0**-number},
    }
    assert document.keys() <= set(Run.__struct_fields__)
    return {**document, **more}


def test_find_by_expressions_and_words() -> None:
    runs = [run(1), run(2, state="failed"), run(3, note="clip off"), run(4, verdict={"verdict": "BITWISE"})]

    def found(query: str) -> list[str]:
        return [document["id"][-1] for document in matching(runs, query)]

    assert found("") == ["1", "2", "3", "4"]
    assert found("lr<0.05") == ["2", "3", "4"]
    assert found("lr<0.05 state=failed") == ["2"]
    assert found("lr < 0.05 failed") == ["2"]
    assert found("bitwise") == ["4"]
    assert found("clip") == ["3"]
    assert found("abc003") == ["3"]
    mend = "write it as in lr>1e-4, state=failed or job~train"
    for query, said in {
        "lr>much": f"find lr>much: 'much' is not a number; {mend}",
        "clip lr >": f"find lr>: there is no number after >; {mend}",
        "stat=failed": f"find stat=failed: no run has a 'stat', did you mean state?; {mend}",
    }.items():
        with pytest.raises(InputError) as refused:
            found(query)
        assert str(refused.value) == said


def test_a_log_is_inert_and_ends_with_what_was_written_last(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    log = LogEnd(path)
    assert not log.poll()
    path.write_bytes(b"one\n\x1b[31mred\x1b[0m \x1b]0;title\x07two\x9b2J\nhalf")
    assert log.poll()
    assert log.lines[0] == "one"
    assert all(character.isprintable() for line in log.lines for character in line)
    assert log.lines[-1] == "half"
    assert not log.poll()
    with path.open("ab") as file:
        file.write(b" more\n")
    assert log.poll()
    assert log.lines[-1] == "half more"


@pytest.mark.fault
def test_a_flood_costs_only_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.txt"
    log = LogEnd(path)
    path.write_bytes(b"begin\n")
    log.poll()
    line = b"\x1b[2J\x1b[1;1Hflood \x1b]52;c;cHduZWQ=\x07\x1bPq\x1b\\ " + b"x" * 60 + b"\n"
    with path.open("ab") as file:
        for _ in range(100):
            file.write(line * (1_000_000 // len(line)))
        file.write(b"the end\n")
    read = 0
    plain_open = Path.open

    def counting(self: Path, *args: Any, **options: Any) -> Any:
        file = plain_open(self, *args, **options)
        inner = file.read

        def counted(size: int = -1) -> bytes:
            nonlocal read
            data: bytes = inner(size)
            read += len(data)
            return data

        class Counted:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            seek = staticmethod(file.seek)
            read = staticmethod(counted)

        return Counted()

    monkeypatch.setattr(Path, "open", counting)
    assert log.poll()
    assert read <= LOG_BYTES
    assert log.lines[-1] == "the end"
    assert "begin" not in log.lines
    assert log.skipped > 90_000_000
    for shown in log.lines:
        assert shown.isprintable()
        assert "52;c" not in shown


def test_an_endless_line_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    log = LogEnd(path)
    for percent in range(100):
        with path.open("ab") as file:
            file.write(b"\rprogress %d%% " % percent + b"#" * 3000)
        log.poll()
    assert log.lines[-1].startswith("progress 99%")
    assert len(json.dumps(log.lines)) < 10_000
