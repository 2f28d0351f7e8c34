"""A server's life: started, followed, stopped, killed, adopted, and where it listens.

The processes are real; in vLLM's place stands a page of standard library (standin.py). test_serving_vllm.py has the
real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import standin
from command import answer, labassist, run_folder, wait_until
from standin import ended, group, serving

from labassist.errors import InputError
from labassist.finetune import models
from labassist.ledger import answers
from labassist.ledger.store import Ledger
from labassist.serving import place, port
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci

TRACES = Path(__file__).parent / "traces"


@pytest.fixture
def lab(workspace: Workspace) -> Path:
    standin.model(workspace.root / "outputs" / "tuned")
    return workspace.root


def test_serve_chat_stop_and_every_answer_is_in_the_ledger(lab: Path, engine: dict[str, str]) -> None:
    done = labassist(
        "serve", "outputs/tuned", "--port", "0", "--detach", "--note", "first", cwd=lab, env=engine
    )
    run = answer("show", "@last", cwd=lab)
    url = run["config"]["url"]
    for said in (
        f"serving tuned at {url}",
        f"curl {url}/chat/completions",
        "ssh -L",
        "reads the model's configuration",
    ):
        assert said in done.stderr
    assert done.stdout.strip() == run["id"] and run["note"] == "first" and run["job"] == "serving/vllm"
    assert (
        run["config"]["host"] == "127.0.0.1"
        and run["config"]["env.VLLM_CPU_KVCACHE_SPACE"] == "1"
        and "torch 2.13.0+cpu" in run["config"]["engine"]
    )
    digest = models.prepare("outputs/tuned", lab).digest
    assert [(one["name"], one["split"]["digest"]) for one in run["inputs"]] == [("model", digest)]
    said = labassist("chat", "@last", "good day", "--system", "be brief", cwd=lab)
    assert said.stdout == "You said good day\n" and f"are kept with run {run['id']}" in said.stderr
    told = answer(
        "chat", url.removeprefix("http://"), "again", "--seed", "7", "--temperature", "0.5", cwd=lab
    )
    assert (told["text"], told["finish_reason"], told["run"]) == ("You said again", "stop", run["id"])
    piped = subprocess.run(
        [sys.executable, "-m", "labassist", "chat", url, "--no-record"],
        cwd=lab, input="a\nb", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert piped.stdout == "You said a\nb\n"
    kept = list(answers.read(run_folder(lab, run)))
    assert [one["messages"] for one in kept] == [
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "good day"}],
        [{"role": "user", "content": "again"}],
    ]
    assert kept[1]["sampling"] == {"max_tokens": 256, "temperature": 0.5, "seed": 7}
    assert kept[1]["usage"]["total_tokens"] == 6 and kept[0]["answer"] == "You said good day"
    labassist("stop", "@last", cwd=lab)
    closed = ended(lab, run)
    assert (closed["state"], closed["exit"], closed["answers"]) == ("stopped", 0, 2)
    assert answer("audit", cwd=lab)["checked"]["answers"] == 2
    again = answer("replay", "@last", cwd=lab, status=6)
    assert again["verdict"] == "INCOMPARABLE" and again["likely_causes"]
    shown = labassist("show", "@last", cwd=lab).stdout
    assert f"chain  2 answers <- served model tuned ({digest[:12]})" in shown
    path = lab / "page.html"
    labassist("export", "@last", "--to", "html", "-o", str(path), cwd=lab)
    assert (
        "You said good day" in path.read_text() and f"served model tuned ({digest[:12]})" in path.read_text()
    )
    late = labassist("chat", "@last", "hello", cwd=lab, status=2)
    assert "this server has ended (stopped)" in late.stderr


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_that_gives_up_has_failed_though_it_says_0(lab: Path, engine: dict[str, str]) -> None:
    with serving(lab, engine) as run:
        labassist("chat", run["id"], "giveup", cwd=lab, status=1)
        closed = ended(lab, run)
    assert (closed["state"], closed["exit"]) == ("failed", 1)
    assert closed["reason"].startswith("the server died while it served: its engine died")
    assert closed["reason"] in closed["warnings"] and answer("audit", cwd=lab)["ok"]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("who", ["ours", "shim"])
def test_whatever_is_killed_nothing_of_a_server_is_left(lab: Path, engine: dict[str, str], who: str) -> None:
    with serving(lab, engine) as run:
        pids = json.loads((run_folder(lab, run) / "alive").read_text())
        before = group(run, lab)
        os.kill(pids["trainer" if who == "ours" else "shim"], signal.SIGKILL)
        closed = ended(lab, run)
        assert closed["state"] in ("failed", "lost")
        wait_until(lambda: not any(psutil.pid_exists(pid) and _lives(pid) for pid in before), "their end")


def _lives(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_outlives_its_supervisor_and_is_adopted(lab: Path, engine: dict[str, str]) -> None:
    with serving(lab, engine) as run:
        os.kill(int((run_folder(lab, run) / "supervised").read_text()), signal.SIGKILL)
        wait_until(lambda: answer("show", run["id"], cwd=lab).get("adopted"), "the adoption", 0.2)
        assert labassist("chat", run["id"], "still there", cwd=lab).stdout == "You said still there\n"
    closed = ended(lab, run)
    assert closed["state"] == "stopped" and closed["adopted"] and closed["answers"] == 1


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_that_dies_while_loading_shows_its_last_lines_and_the_cause(
    lab: Path, engine: dict[str, str]
) -> None:
    engine = {**engine, "VLLM_STANDIN": str(TRACES / "vllm-weights.log")}
    done = labassist("serve", "outputs/tuned", "--port", "0", cwd=lab, env=engine, status=1)
    assert "Engine core initialization failed" in done.stderr
    assert "warning: the server died while it was loading: the weights are damaged: " in done.stdout
    assert answer("show", "@last", cwd=lab)["state"] == "failed"


@pytest.mark.slow
def test_ctrl_c_stops_the_server_that_is_followed(lab: Path, engine: dict[str, str]) -> None:
    words = [sys.executable, "-m", "labassist", "serve", "outputs/tuned", "--port", "0"]
    with subprocess.Popen(
        words, cwd=lab, env={**os.environ, **engine}, stderr=subprocess.PIPE, text=True
    ) as live:
        assert live.stderr is not None
        for line in live.stderr:
            if line.startswith("ctrl-c stops it"):
                live.send_signal(signal.SIGINT)
                break
        rest = live.stderr.read()
    assert "stopping the server" in rest and live.returncode == 130
    assert answer("show", "@last", cwd=lab)["state"] == "stopped"


@pytest.mark.slow
@pytest.mark.fault
def test_a_port_that_is_taken_is_said_with_by_whom(lab: Path, engine: dict[str, str]) -> None:
    with serving(lab, engine) as run:
        taken = run["config"]["port"]
        done = labassist("serve", "outputs/tuned", "--port", str(taken), cwd=lab, env=engine, status=2)
        assert f"port {taken} is taken by run {run['id']}, a server of tuned" in done.stderr
        assert "--port 0" in done.stderr
    with socket.socket() as other, Ledger.open(lab / "ledger") as ledger:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {number} is taken by process {os.getpid()}"):
            port.chosen("127.0.0.1", number, ledger)
        assert port.chosen("127.0.0.1", 0, ledger) not in (0, number)
        with pytest.raises(InputError, match="cannot be served on"):
            port.chosen("192.0.2.1", 0, ledger)


@pytest.mark.slow
@pytest.mark.fault
def test_two_servers_never_share_a_port(lab: Path, engine: dict[str, str], tmp_path: Path) -> None:
    slow = {**engine, "VLLM_STANDIN_LOADS": str(tmp_path / "never")}
    first = answer("serve", "outputs/tuned", "--port", "0", "--detach", "--no-wait", cwd=lab, env=slow)
    number, url = first["config"]["port"], first["config"]["url"]
    words = ("serve", "outputs/tuned", "--name", "second", "--port", str(number))
    refused = labassist(*words, cwd=lab, env=engine, status=2)
    assert f"port {number} is taken by run {first['id']}, a server of tuned" in refused.stderr
    assert len(answer("runs", cwd=lab)["runs"]) == 1
    for words in (("chat", url, "hello"), ("chat", first["id"], "hello"), ("bench-serve", url)):
        said = labassist(*words, cwd=lab, status=2).stderr
        assert f"run {first['id']}: this server is still loading" in said and "labassist logs" in said
    with standin.foreign(number) as pid:
        # Healthy is what answers there, and it is not this run's: nothing of it may be kept with the run.
        closed = ended(lab, first)
    assert (closed["state"], closed["exit"]) == ("failed", 1)
    assert f"port {number} is taken by process {pid} " in closed["reason"]
    assert not (run_folder(lab, first) / place.READY).exists() and group(first, lab) == []
    assert f"at {url}" not in (run_folder(lab, first) / "log.txt").read_text()


@pytest.mark.slow
def test_an_open_address_needs_a_key_which_is_never_recorded(lab: Path, engine: dict[str, str]) -> None:
    done = labassist("serve", "outputs/tuned", "--host", "0.0.0.0", cwd=lab, env=engine, status=2)
    assert "no key is set" in done.stderr and "VLLM_API_KEY" in done.stderr
    key = "long-and-secret-0123456789abcdef"
    engine = {**engine, "VLLM_API_KEY": key}
    with serving(lab, engine, "--host", "0.0.0.0") as run:
        assert "is open to whoever reaches this machine" in run["warnings"][0]
        assert "or got none" not in labassist("chat", run["id"], "hi", cwd=lab, env=engine).stderr
        refused = labassist("chat", run["id"], "hi", cwd=lab, status=2)
        assert "asks for a key, and has got none" in refused.stderr
    for path in (lab / "ledger").rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path
