"""Talking to a server, and what is kept of it: each answer whole, and none that was edited, cut or another model's."""

from __future__ import annotations

import os
import pty
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

from labassist.app.messages import RunDetail
from labassist.app.runfacts import lineage_page
from labassist.app.words import ASCII
from labassist.errors import InputError
from labassist.ledger import answers
from labassist.serving import place
from labassist.serving.client import Cut, Server
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci


@pytest.fixture
def lab(workspace: Workspace) -> Path:
    standin.model(workspace.root / "outputs" / "tuned")
    return workspace.root


@pytest.mark.slow
@pytest.mark.fault
def test_an_edited_answer_is_named_with_its_line(lab: Path, engine: dict[str, str]) -> None:
    with serving(lab, engine) as run:
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
    lab: Path, engine: dict[str, str]
) -> None:
    with serving(lab, engine) as run:
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
def test_an_answer_of_another_model_is_refused_and_not_kept(lab: Path, engine: dict[str, str]) -> None:
    with serving(lab, engine) as run:
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
    lab: Path, engine: dict[str, str]
) -> None:
    with serving(lab, engine) as run:
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
def test_ctrl_c_at_an_empty_prompt_ends_no_conversation(lab: Path, engine: dict[str, str]) -> None:
    with serving(lab, engine) as run:
        ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "labassist", "chat", run["id"]]
        with subprocess.Popen(
            words, cwd=lab, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as live:
            assert live.stdout is not None and live.stderr is not None
            assert live.stdout.read(2) == b"> "
            # A signal between the prompt and the read would be seen only when the read returns.
            wait_until(lambda: psutil.Process(live.pid).status() == psutil.STATUS_SLEEPING, "the prompt")
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
def test_a_client_says_what_is_wrong_with_a_server(lab: Path, engine: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match="nobody listens there; start one: labassist serve"):
        Server(nobody).models()
    for wrong in ("ftp://x/v1", "http://:80/v1", "http://u:p@h/v1", "h:port"):
        with pytest.raises(InputError, match="is no address"):
            Server(wrong)
    with serving(lab, engine) as run:
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
