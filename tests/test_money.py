"""What a run costs, when it is stopped for it, what is said of idle GPUs, and the command at its end."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import little
import pytest
from command import answer, kill_trainer, labassist, run_folder, wait_closed, wait_for_step, wait_until

from labassist.errors import InputError
from labassist.ledger.store import Ledger
from labassist.machine.readings import GpuProcess, GpuSample, HostSample, MachineSample
from labassist.runs import life
from labassist.runs.meter import IDLE_AFTER_S, Idle, Meter
from labassist.runs.terms import Terms, spent, terms
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci

TOLD = "$LABASSIST_RUN $LABASSIST_STATE $LABASSIST_EXIT $LABASSIST_JOB"


@pytest.fixture
def lab(little_lab: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(little_lab, tmp_path / "lab", symlinks=True))


def test_a_limit_stops_with_a_checkpoint_and_price_and_command_go_on(lab: Path) -> None:
    words = ("--price", "3600/h", "--max-cost", "3.6", "--on-end", f"echo {TOLD} >> ended.txt; exit 3")
    run = little.record(lab, 100_000, 50, pause=0.01, before=words)
    assert (run["state"], run["exit"]) == ("stopped", 0)
    assert run["reason"] == "3.6 USD are spent (--max-cost)"
    assert (run["price"], run["currency"], run["max_cost"]) == (3600, "USD", 3.6)
    assert run["cost"] == pytest.approx(run["seconds"], abs=1e-3) and run["cost"] >= 3.6
    assert little.steps_of(lab, run["id"])[-1] == run["step"]
    closed = wait_closed(lab, run)
    assert (lab / "ended.txt").read_text() == f"{run['id']} stopped 0 little.py\n"
    assert closed["on_end_failed"] == "exit status 3; see on-end.log"
    assert {**closed, "on_end_failed": ""} == {**run, "on_end_failed": ""}
    # The next segment keeps the price and the command; the limit was the other one's.
    resumed = answer("resume", run["id"], "--detach", "--max-hours", "0.0003", cwd=lab)
    assert (resumed["price"], resumed["on_end"], "max_cost" in resumed) == (3600, run["on_end"], False)
    ended = wait_closed(lab, resumed)
    assert ended["reason"].startswith("0.0003 h are over (--max-hours)")
    assert labassist("audit", cwd=lab).returncode == 0


def test_what_cannot_be_is_refused_before_anything_starts(workspace: Workspace) -> None:
    done = labassist("run", "--max-cost", "5", "--", "true", cwd=workspace.root, status=2)
    assert "--max-cost: needs a price; give --price" in done.stderr
    assert answer("runs", cwd=workspace.root)["runs"] == []
    nothing: dict[str, Any] = {"price": None, "max_hours": None, "max_cost": None, "on_end": None}
    for given, said in (
        ({"price": "cheap"}, "'cheap' is no price; write 0.45 or 0.45/h"),
        ({"price": "-1"}, "'-1' is no price"),
        ({"max_hours": -1.0}, "--max-hours: -1 is not a number above 0"),
        ({"max_hours": math.nan}, "--max-hours: nan is not a number above 0"),
        ({"on_end": "curl -H 'Authorization: Bearer hf_abcdefghijklmnopqrstuvwxyz012345' x"}, "has a secret in it"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            terms(workspace.root, **{**nothing, **given})
        assert said in str(caught.value)
    assert terms(workspace.root, **{**nothing, "price": " 0.45 / h"}).price == 0.45
    assert terms(workspace.root, **nothing, before={"price": 2.0, "currency": "EUR"}) == Terms(2.0, "EUR")


def test_the_nearer_limit_counts() -> None:
    assert Terms().limit()[0] == math.inf
    assert Terms(price=2.0, currency="EUR", max_hours=3, max_cost=4).limit() == (
        7200,
        "4 EUR are spent (--max-cost)",
    )
    assert Terms(price=1.0, max_hours=3, max_cost=4).limit() == (3 * 3600, "3 h are over (--max-hours)")


def test_the_course_sums_what_its_runs_cost(workspace: Workspace, little_lab: Path) -> None:
    with Ledger.open(little_lab / "ledger") as made:
        document = made.runs.all()[0]
    with Ledger.open(workspace.ledger, create=True) as ledger:
        for number, cost in ((1, 0.25), (2, 1.5)):
            run = {
                **document,
                "id": f"20261130-02493{number}-00c687",
                "job": "01-first-loop/train",
                "cost": cost,
            }
            ledger.write("end", run)
    assert answer("labs", cwd=workspace.root)["money"] == 1.75
    assert "1.75 spent" in labassist("labs", "--map", cwd=workspace.root).stdout
    alive = {"state": "running", "created": "1970-01-01T01:00:00.000Z", "price": 2.0}
    assert spent(alive, now=3 * 3600) == 4.0


@pytest.mark.fault
def test_a_limit_holds_after_a_kill_of_the_supervisor_and_nobody_types_anything(lab: Path) -> None:
    terms = ("--price", "3600", "--max-hours", "2", "--on-end", f"echo {TOLD} > ended.txt")
    run = little.record(lab, 100_000, 50, pause=0.01, before=("--detach", *terms))
    folder = run_folder(lab, run)
    wait_for_step(folder, 5)
    os.kill(int((folder / "supervised").read_text()), signal.SIGKILL)
    began = (folder / "order.json").stat().st_mtime  # what the limit counts from
    os.utime(folder / "order.json", (began, began - 2 * 3600))
    wait_until(lambda: (lab / "ended.txt").exists() and (lab / "ended.txt").read_text(), "the command", 0.2)
    assert (lab / "ended.txt").read_text() == f"{run['id']} stopped 0 little.py\n"
    closed = wait_closed(lab, run)
    assert closed["reason"] == "2 h are over (--max-hours)" and len(closed["adopted"]) == 1


@pytest.mark.slow
@pytest.mark.fault
def test_a_trainer_that_ends_unwatched_is_closed_and_gets_its_command(lab: Path) -> None:
    """Both deaths fall between two looks for a supervisor."""
    words = ("--detach", "--on-end", f"echo {TOLD} > ended.txt")
    run = little.record(lab, 100_000, 50, pause=0.01, before=words)
    folder = run_folder(lab, run)
    wait_for_step(folder, 5)
    os.kill(int((folder / "supervised").read_text()), signal.SIGKILL)
    wait_until(lambda: not life.held(folder / "supervised"), "the supervisor's death", 0.001)
    kill_trainer(folder)
    wait_until(lambda: (lab / "ended.txt").exists() and (lab / "ended.txt").read_text(), "the command", 0.2)
    assert (lab / "ended.txt").read_text() == f"{run['id']} failed 137 little.py\n"


@pytest.mark.fault
def test_a_run_that_vanished_gets_its_command_from_whoever_closes_it(lab: Path) -> None:
    words = ("--detach", "--on-end", f"echo {TOLD} > ended.txt")
    run = little.record(lab, 100_000, 50, pause=0.01, before=words)
    folder = run_folder(lab, run)
    wait_for_step(folder, 20)
    life.vanish(folder)
    assert wait_closed(lab, run)["state"] == "lost"
    wait_until((lab / "ended.txt").exists, "the command")
    wait_until((lab / "ended.txt").read_text, "its line")
    assert (lab / "ended.txt").read_text() == f"{run['id']} lost little.py\n"


@pytest.mark.fault
def test_a_command_that_cannot_be_run_hurts_nothing(lab: Path) -> None:
    run = little.record(lab, 10, 5, before=("--on-end", "no-such-program"))
    assert run["state"] == "finished"
    closed = wait_closed(lab, run)
    assert closed["on_end_failed"].startswith("exit status 127")
    assert "not found" in (run_folder(lab, run) / "on-end.log").read_text()


def gpu(index: int, util: int | None, own: bool | None = True) -> GpuSample:
    processes = [] if own is False else [GpuProcess(7, 1, own)]
    return GpuSample(index=index, uuid=f"GPU-{index}", util=util, processes=processes)


def test_an_idle_gpu_is_said_once_a_time() -> None:
    idle = Idle(paid=False, visible=None)
    said: list[tuple[float, str]] = []
    for at in range(0, 1000, 10):
        busy = 400 <= at < 410
        gpus = [gpu(0, 90), gpu(1, 60 if busy else 1), gpu(2, 0, own=False), gpu(3, None)]
        said += [(at, notice) for notice in idle.feed(gpus, at)]
    assert said == [
        (IDLE_AFTER_S, "GPU 1 was under 5% for 3 minutes"),
        (410 + IDLE_AFTER_S, "GPU 1 was under 5% for 3 minutes"),
    ]


def test_where_it_is_paid_for_an_unused_gpu_counts_and_a_hidden_one_does_not() -> None:
    idle = Idle(paid=True, visible=frozenset({"GPU-1", "2"}))
    gpus = [gpu(number, 0, own=False) for number in range(4)]
    assert idle.feed(gpus, 0) == []
    assert [notice[:5] for notice in idle.feed(gpus, IDLE_AFTER_S)] == ["GPU 1", "GPU 2"]


def test_the_notice_stands_in_the_log_and_in_the_record(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the samples of a GPU that is not here."""
    from labassist.app.health import Health
    from labassist.app.words import signs
    from labassist.cli.ledger import summary

    clock = [0.0]
    with Ledger.open(lab / "ledger") as ledger:
        run = ledger.find("@last")
        folder = ledger.run_folder(run["id"])
        meter = Meter(ledger, run["id"], json.loads((folder / "order.json").read_text()))
        monkeypatch.setattr("labassist.runs.meter.time.monotonic", lambda: clock[0])

        class Still:
            own: frozenset[int] = frozenset()

            def sample(self) -> Any:
                return MachineSample(time=0.0, host=HostSample(1, 1, 1), gpus=[gpu(0, 2)])

            def close(self) -> None:
                pass

        meter._sampler = Still()  # type: ignore[assignment]
        meter._looked = 0.0
        for at in (10, 20, 250, 260):
            clock[0] = at
            meter.poll()
        notice = "GPU 0 was under 5% for 4 minutes"
        run = ledger.find("@last")
        assert run["idle"] == [notice]
        assert (folder / "log.txt").read_text().endswith(f"labassist: {notice}\n")
        assert notice in summary(run)
        words = "".join(text for line in Health().words(run, signs(plain=True)) for text, _style in line)
        assert notice in words
