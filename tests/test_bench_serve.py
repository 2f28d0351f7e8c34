"""The serving benchmark as a command: its prompts and options, its run in the ledger, what it says of bad servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import command
import pytest
from scripted_server import CLIENT, failing, sample, serving, tokens

from labassist.errors import InputError
from labassist.serving import bench, bench_prompts, bench_stats
from labassist.serving.bench_client import Sample


def said(workspace: Any, *words: str) -> subprocess.CompletedProcess[str]:
    return command.labassist(*words, cwd=workspace.root, status=None)


def test_own_prompts_are_seeded_varied_and_begin_apart() -> None:
    prompts = [one[0]["content"] for one in bench_prompts.own(300, 5, 240)]
    lengths = [len(text.split()) - 6 for text in prompts]
    assert min(lengths) >= 12 and max(lengths) <= 240 and len(set(lengths)) > 80
    assert len({text[:6] for text in prompts}) == 300
    assert prompts == [one[0]["content"] for one in bench_prompts.own(300, 5, 240)]
    assert bench_prompts.longest(0, 64) == 240 and bench_prompts.longest(200, 64) == 56
    with pytest.raises(InputError, match="no room for a prompt"):
        bench_prompts.longest(100, 64)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    rows = [
        {"instruction": "one", "output": "x"},
        {"prompt": "two"},
        {"messages": [{"role": "user", "content": "three"}, {"role": "assistant", "content": "x"}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert sorted(one[-1]["content"] for one in bench_prompts.of_file(path, 1)) == ["one", "three", "two"]
    text = tmp_path / "lines.txt"
    text.write_text("a\n\nb\n")
    assert len(bench_prompts.of_file(text, 1)) == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"prompt": "a"}\n{"answer": "b"}\n', ":2: holds no prompt"),
        ('{"prompt": "a"\n', ":1: is no JSON"),
        ("\n\n", "holds no prompt"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=told):
        bench_prompts.of_file(path, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--requests", "0"],
        ["--concurrency", "4,x"],
        ["--concurrency", "9999"],
        ["--rate", "-1"],
        ["--rate", "2", "--concurrency", "2"],
        ["--timeout", "0"],
        ["--warmup", "-1"],
    ],
)
def test_options_that_mean_nothing(words: list[str]) -> None:
    with pytest.raises(InputError):
        bench.loads(bench.options().parse_args(words))


def test_the_command_line_has_the_options_of_the_module() -> None:
    from labassist.cli.main import parse

    ours = vars(bench.options().parse_args([]))
    theirs = vars(parse(["bench-serve", "http://h"]))
    assert ours == {name: theirs[name] for name in ours}


def test_a_measurement_is_a_recorded_run(workspace: Any, tmp_path: Path) -> None:
    with serving() as url:
        done = said(
            workspace, "bench-serve", url, "--requests", "12", "--concurrency", "1,3", "--csv",
            str(tmp_path / "requests.csv"), "--json",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [load["concurrency"] for load in result["loads"]] == [1, 3]
    assert [load["completed"] for load in result["loads"]] == [12, 12]
    assert all(load["tokens_out"] == 48 and load["counted"] == "usage" for load in result["loads"])
    shown = said(workspace, "show", "@last", "--json")
    run = json.loads(shown.stdout)
    assert (run["id"], run["job"], run["state"]) == (result["run"], "serving/bench", "finished")
    assert run["config"]["concurrency"] == "1,3" and run["config"]["model"] == "little"
    assert run["step"] == run["total_steps"] == 24 and run["last"]["failed"] == 0
    row = result["loads"][1]
    assert run["last"]["e2el_p95"] == pytest.approx(row["e2el_ms"]["p95"]["value"], abs=1e-3)
    assert run["last"]["tokens_per_s_low"] <= run["last"]["tokens_per_s"] <= run["last"]["tokens_per_s_high"]
    assert len(run["outputs"]) == 1 and run["outputs"][0]["sha256"]
    lines = (tmp_path / "requests.csv").read_text().splitlines()
    assert len(lines) == 25 and lines[0].startswith("step,") and "ttft_ms" in lines[0]
    first = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert (first["request"], first["error"], first["tokens_out"]) == ("0", "0", "4")
    assert any("P99" in line for line in run["warnings"])
    assert said(workspace, "audit").returncode == 0
    again = said(workspace, "replay", "@last", "--json")
    assert again.returncode == 6 and json.loads(again.stdout)["verdict"] == "INCOMPARABLE"
    assert "never come out twice" in again.stdout


@pytest.mark.fault
def test_a_server_that_only_fails_is_an_answer_of_no(workspace: Any) -> None:
    with serving(failing("http")) as url:
        done = said(workspace, "bench-serve", url, "--requests", "5", "--warmup", "0")
    assert done.returncode == 1, done.stderr
    assert "5 failed (5 http)" in done.stdout and "http: HTTP 500: the engine is dead" in done.stdout
    assert "no request was answered" in done.stderr


@pytest.mark.fault
def test_a_server_that_goes_away_fails_the_measurement(workspace: Any) -> None:
    stops: list[Any] = []

    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        handler.close_connection = True
        if number < 2:
            tokens(handler)
        elif number == 2:
            threading.Thread(target=handler.server.shutdown).start()
            handler.server.socket.close()
            stops.append(number)

    with serving(answer) as url:
        words = ("--requests", "30", "--warmup", "0", "--concurrency", "1,2")
        done = said(workspace, "bench-serve", url, *words)
    assert stops and done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("1 at a time"))
    assert lines[at + 1].startswith("  FAILED: 28 of 30 requests failed (")
    assert "the numbers are of the 2 answered; the server went away: " in lines[at + 1]
    assert not any(line.startswith("2 at a time") for line in lines)
    run = json.loads(said(workspace, "show", "@last", "--json").stdout)
    assert run["state"] == "failed" and "28 of 30 requests failed" in run["reason"]
    assert any("the server went away" in line for line in run["warnings"])


@pytest.mark.fault
@pytest.mark.parametrize(("failed", "fails"), [(2, False), (3, True)])
def test_more_than_one_failure_of_a_hundred_fails_a_measurement(failed: int, fails: bool) -> None:
    bad = [Sample(at, at, at, ended=at + 0.1, error="http", detail="HTTP 500") for at in range(failed)]
    good = [sample(at, 0.1, 0.5) for at in range(failed, 200)]
    row = bench_stats.summarise([*bad, *good], rate=0, asked=200, client=CLIENT, seed=1)
    assert bool(row["failure"]) is fails


@pytest.mark.fault
def test_ctrl_c_prints_what_there_is(workspace: Any) -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        time.sleep(0.1)
        tokens(handler)

    with serving(answer) as url:
        words = [sys.executable, "-m", "labassist", "bench-serve", url, "--requests", "5000", "--warmup", "0"]
        process = subprocess.Popen(
            words,
            cwd=workspace.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ},
        )
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step"):
                break
        process.send_signal(signal.SIGINT)
        out, _err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "of 5000 requests" in out and "first token" in out
    run = json.loads(said(workspace, "show", "@last", "--json").stdout)
    assert run["state"] == "stopped" and 0 < run["step"] < 5000


@pytest.mark.fault
def test_what_cannot_be_measured_starts_no_run(workspace: Any, tmp_path: Path) -> None:
    done = said(workspace, "bench-serve", "http://127.0.0.1:1")
    assert done.returncode == 2 and "nobody listens there" in done.stderr
    with serving() as url:
        done = said(workspace, "bench-serve", url, "--model", "other")
        assert done.returncode == 2 and "it serves little" in done.stderr
        done = said(workspace, "bench-serve", url, "--prompts", str(tmp_path / "none.txt"))
        assert done.returncode == 2 and "none.txt" in done.stderr
    assert json.loads(said(workspace, "runs", "--json").stdout)["runs"] == []
