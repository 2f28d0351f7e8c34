"""Serving by the real vLLM, on the CPU: from the adapter's merge to answers, and what is said where it cannot.

LABASSIST_VLLM_PYTHON names the interpreter; without it `labassist setup vllm` makes one (minutes, 3.4 GB).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, run_folder, wait_until

from labassist.ledger import answers
from labassist.workspace import new

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(3000)]

PATIENCE = 1500.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one QLoRA run of three steps and its merge."""
    root = new(tmp_path_factory.mktemp("serving") / "lab").workspace.root
    sets = ("steps=3", "every.checkpoint=3", "every.eval=3", "exam.questions=0", "data.heldout_rows=8")
    words = ["run", "07-qlora/sft", "--profile", "tiny", *(f"--set={one}" for one in sets)]
    labassist(*words, cwd=root, env={"OMP_NUM_THREADS": "1"}, deadline=PATIENCE)
    labassist("merge", "@last", "--out", "outputs/merged", cwd=root, deadline=PATIENCE)
    return root


def serve(lab: Path, env: dict[str, str], *words: str, status: int = 0) -> Any:
    more = ("serve", *words, "--port", "0", "--enforce-eager", "--threads", "2", "--detach")
    return labassist("--json", *more, cwd=lab, env=env, status=status, deadline=PATIENCE)


def ended(lab: Path, run: str) -> dict[str, Any]:
    def shown() -> dict[str, Any]:
        return dict(answer("show", run, cwd=lab))

    wait_until(lambda: shown()["state"] != "running", "the end of the server", every=0.5)
    return shown()


def test_data_adapter_merged_model_and_answers_are_one_chain(lab: Path, vllm: dict[str, str]) -> None:
    trained, merged = answer("runs", cwd=lab)["runs"][:2]
    run = json.loads(serve(lab, vllm, merged["id"]).stdout)
    words = ("chat", run["id"], "My lamp from order 48213 is broken.", "--max-tokens", "24")
    first = answer(*words, cwd=lab, deadline=PATIENCE)
    second = answer(*words, cwd=lab, deadline=PATIENCE)
    assert first["text"] == second["text"] != "" and first["usage"]["completion_tokens"] <= 24
    few = ("--requests", "8", "--concurrency", "2", "--max-tokens", "8", "--ignore-eos")
    [load] = answer("bench-serve", run["id"], *few, cwd=lab, deadline=PATIENCE)["loads"]
    assert (load["completed"], load["counted"], load["tokens_out"]) == (8, "usage", 64)
    address = run["config"]["url"].removesuffix("/v1") + "/v1/completions"
    measured = answer("bench-serve", address, "--requests", "3", cwd=lab, deadline=PATIENCE)
    assert (measured["api"], measured["loads"][0]["completed"]) == ("completions", 3)
    labassist("stop", run["id"], cwd=lab)
    closed = ended(lab, run["id"])
    assert (closed["state"], closed["exit"], closed["answers"]) == ("stopped", 0, 2)
    model = next(one for one in closed["inputs"] if one["name"] == "model")["split"]
    assert model["merge"] == merged["id"] and model["adapter"]["run"] == trained["id"]
    data = {one["name"]: one["sha256"] for one in trained["inputs"]}
    assert model["data"] and all(data[name] == digest for name, digest in model["data"].items())
    assert (
        model["base"]["digest"]
        == next(o for o in trained["inputs"] if o["name"] == "model")["split"]["digest"]
    )
    shown = labassist("show", run["id"], cwd=lab).stdout
    assert (
        f"2 answers <- served model merged ({model['digest'][:12]}) <- merge {merged['id']} <- adapter"
        in shown
    )
    assert answer("audit", cwd=lab)["ok"]
    path = run_folder(lab, closed) / answers.FILE
    path.write_bytes(path.read_bytes().replace(b'"answer": "', b'"answer": "No. ', 1))
    problem = answer("audit", run["id"], cwd=lab, status=1)["problems"][0]
    assert problem["line"] == 1


def test_an_adapter_is_served_unmerged_and_the_engine_does_not_outlive_its_server(
    lab: Path, vllm: dict[str, str]
) -> None:
    trained = answer("runs", cwd=lab)["runs"][0]["id"]
    run = json.loads(serve(lab, vllm, "embedded", "--adapter", f"shop={trained}").stdout)
    folder = run_folder(lab, run)
    for name in ("embedded", "shop"):
        told = answer("chat", run["id"], "My lamp is broken.", "--model", name, "--max-tokens", "8", cwd=lab)
        assert told["model"] == name and told["usage"]["completion_tokens"] <= 8
    ours = json.loads((folder / "alive").read_text())["trainer"]
    wait_until(lambda: _children(ours), "the server")
    os.kill(_children(ours)[0], signal.SIGKILL)
    closed = ended(lab, run["id"])
    assert closed["state"] == "failed" and "it was killed (SIGKILL)" in closed["warnings"][0]
    assert not _group(ours)


def test_a_start_that_cannot_work_is_said_with_its_cause(lab: Path, vllm: dict[str, str]) -> None:
    broken = lab / "outputs" / "broken"
    shutil.copytree(lab / "outputs" / "merged", broken, dirs_exist_ok=True)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["NopeForCausalLM"]}))
    done = serve(lab, vllm, "outputs/broken", status=1)
    assert json.loads(done.stdout)["warnings"][-1].startswith(
        "the server died while it was loading: this vLLM knows no architecture NopeForCausalLM; "
    )
    assert "Supported architectures" in done.stderr


def _children(pid: int) -> list[int]:
    import psutil

    return [one.pid for one in psutil.Process(pid).children()]


def _group(leader: int) -> list[int]:
    import psutil

    found = []
    for pid in psutil.pids():
        try:
            alive = psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
            found += [pid] if alive and os.getpgid(pid) == leader else []
        except (ProcessLookupError, psutil.Error):
            continue
    return found
