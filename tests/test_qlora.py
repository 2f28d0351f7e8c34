"""Lab 07's job, really trained: replayed, killed at every bad moment and resumed, its adapter merged and taken away."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, kill_trainer, labassist, run_folder, wait_closed, wait_for_step, wait_until

from labassist.ledger.store import Ledger
from labassist.workspace import new

pytestmark = [pytest.mark.slow, pytest.mark.fault]

SMALL = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}

FAULTS = """
        def training_step(self, *args: Any, **more: Any) -> Any:
            fault("first", self.state.global_step == 0)
            return super().training_step(*args, **more)

        def _save_optimizer_and_scheduler(self, *args: Any, **more: Any) -> Any:
            fault("save", self.state.global_step == 4)
            if os.environ.get("FAULT") == "disk" and self.state.global_step == 4:
                import resource

                sealed()
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            return super()._save_optimizer_and_scheduler(*args, **more)

        def evaluation_loop(self, *args: Any, **more: Any) -> Any:
            fault("evaluation", self.state.global_step == 4)
"""
"""Put into the lab's own trainer: the machine goes away at a moment that FAULT names, the disk is full in a save."""

HELPER = """
import os
import signal
import threading


def sealed() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("seal-"):  # which checkpoint is whole by now is no matter of luck
            thread.join()


def fault(name: str, now: bool) -> None:
    if now and os.environ.get("FAULT") == name:
        sealed()
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
"""

ENV = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SETS = (
    *("steps=6", "batch=2", "length=256", "every.checkpoint=2", "every.eval=2", "data.heldout_rows=8"),
    *("exam.questions=2", "exam.answer_tokens=2", "optim.name=adamw_8bit", "lora.dropout=0.05"),
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("qlora") / "lab").workspace.root
    (root / "small").mkdir()
    (root / "small" / "config.json").write_text(json.dumps(SMALL))
    script = root / "labs" / "07-qlora" / "train.py"
    text = script.read_text()
    begin = "        def evaluation_loop(self, *args: Any, **more: Any) -> Any:\n"
    assert text.count(begin) == 1 and text.count("\ndef main() -> None:\n") == 1
    script.write_text(text.replace(begin, FAULTS.lstrip("\n")).replace("\ndef main() -> None:\n", HELPER))
    return root


def run(lab: Path, *more: str, status: int = 0, **env: str) -> Any:
    sets = [
        word
        for one in (*SETS, f"model.name=random:{lab / 'small' / 'config.json'}")
        for word in ("--set", one)
    ]
    words = ("07-qlora/sft", "--profile", "tiny", *sets, *more)
    return answer("run", *words, cwd=lab, status=status, env={**ENV, **env})


@pytest.fixture(scope="module")
def whole(lab: Path) -> Any:
    return run(lab)


def log_of(lab: Path, document: Any) -> str:
    return (run_folder(lab, document) / "log.txt").read_text()


def test_it_is_recorded_and_replays_bit_for_bit(lab: Path, whole: Any) -> None:
    assert (whole["state"], whole["step"]) == ("finished", 6)
    assert {"eval_loss", "format_base", "format_tuned", "format_gain_low"} <= set(whole["last"])
    assert {one["name"] for one in whole["inputs"]} == {"model", "train", "heldout"}
    assert len(json.dumps(whole)) < 4096
    log = log_of(lab, whole)
    assert "trained on is what stands between" in log and "⟦{" in log
    replayed = answer("replay", whole["id"], cwd=lab, env=ENV)
    assert replayed["verdict"] == "BITWISE", replayed
    assert replayed["compared"]["tensors"] > 50
    audited = answer("audit", cwd=lab)
    assert audited["ok"] and not [path for path in audited["not_covered"] if "trainer/checkpoint" in path]


@pytest.mark.parametrize(
    ("fault", "resumes_from"), [("first", 0), ("save", 2), ("evaluation", 2), ("disk", 2)]
)
def test_killed_at_a_bad_moment_it_goes_on_as_if_nothing_had_been(
    lab: Path, whole: Any, fault: str, resumes_from: int
) -> None:
    killed = run(lab, status=1 if fault == "disk" else 128 + signal.SIGKILL, FAULT=fault)
    assert killed["state"] in ("failed", "lost")
    if fault == "disk":
        last = log_of(lab, killed).splitlines()[-1]
        assert "checkpoint-4: this checkpoint cannot be written, the disk is full" in last
        assert "Traceback" not in log_of(lab, killed)
    resumed = answer("resume", killed["id"], cwd=lab, env=ENV)
    assert (resumed["state"], resumed["resumed_from"]["step"]) == ("finished", resumes_from)
    found = answer("diff", whole["id"], resumed["id"], cwd=lab)
    assert not found["config"] and found["code"]["same"]
    for name, series in found["curves"].items():
        assert series["compared"] and series["first_difference"] is None, name
    assert found["checkpoints"]["first_difference"] is None and found["checkpoints"]["compared"] > 50


def test_merged_it_answers_as_base_and_adapter_do_and_the_ledger_knows_from_what(
    lab: Path, whole: Any
) -> None:
    done = labassist("merge", whole["id"], "--out", "merged", "--json", cwd=lab, env=ENV)
    merged = json.loads(done.stdout)
    assert merged["state"] == "finished"
    assert re.search(r"merged into merged: its logits differ .* by \d\.\d\d% \(bound 5%\)", done.stderr)
    assert f"serve it with: labassist serve {merged['id']}" in done.stderr
    told = json.loads((lab / "merged" / "labassist-lineage.json").read_text())
    assert told["checked"]["relative"] <= told["checked"]["bound"] == 0.05
    given = {one["name"]: one for one in merged["inputs"]}
    assert given["adapter"]["sha256"] == told["adapter"]["sha256"]
    assert not any(Path(one["path"]).is_absolute() for one in given.values())
    assert told["adapter"]["run"] == whole["id"] and told["adapter"]["step"] == 6
    # data -> adapter -> merged model: each digest stands in the record before it.
    inputs = {one["name"]: one for one in whole["inputs"]}
    assert told["data"]["train"] == inputs["train"]["sha256"]
    assert told["base"]["digest"] == inputs["model"]["split"]["digest"]
    with Ledger.open(lab / "ledger") as ledger:
        manifest = ledger.objects.get_json(ledger.checkpoint(whole["id"], 6)["manifest"])
    assert manifest["files"]["adapter_model.safetensors"]["sha256"] == told["adapter"]["sha256"]
    [output] = merged["outputs"]
    assert output["path"] == "merged" and output["sha256"]
    config = json.loads((lab / "merged" / "config.json").read_text())
    assert "quantization_config" not in config
    assert answer("replay", merged["id"], cwd=lab, env=ENV)["verdict"] == "BITWISE"
    # A second merge into the same place, or what a killed one has left there.
    assert "is there already" in labassist("merge", whole["id"], "--out", "merged", cwd=lab, status=2).stderr
    (lab / "again.partial").mkdir()
    (lab / "again.partial" / "model.safetensors").write_text("half")
    answer("merge", whole["id"], "--out", "again", cwd=lab, env=ENV)
    assert (lab / "again" / "model.safetensors").stat().st_size > 1000 and not (
        lab / "again.partial"
    ).exists()


def test_an_adapter_of_another_base_is_refused(lab: Path, whole: Any, tmp_path: Path) -> None:
    def refused(adapter: Path, base: str) -> str:
        words = ("merge", str(adapter), "--base", base, "--out", str(lab / "never"))
        document = answer(*words, cwd=lab, status=2, env=ENV)
        assert not (lab / "never").exists() and not (lab / "never.partial").exists()
        return log_of(lab, document)

    other = lab / "other"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text(json.dumps({**SMALL, "intermediate_size": 96, "hidden_size": 32}))
    base = f"random:{other / 'config.json'}"
    folder = run_folder(lab, whole) / "trainer" / "checkpoint-6"
    assert "was trained on another base" in refused(folder, base)
    # An adapter from elsewhere tells nothing but its shapes.
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder / name, foreign)
    assert "belongs to another base" in refused(foreign, base)
    # A base that was named, with the right shapes and another name than the adapter's: done, warned of, recorded.
    config = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "Qwen/Qwen2.5-0.5B"})
    )
    own = f"random:{lab / 'small' / 'config.json'}"
    done = labassist("merge", str(foreign), "--base", own, "--out", "warned", "--json", cwd=lab, env=ENV)
    given = {one["name"]: one["split"] for one in json.loads(done.stdout)["inputs"]}
    assert "names Qwen/Qwen2.5-0.5B" in given["adapter"]["warning"]
    assert "warning: adapter_config.json names Qwen/Qwen2.5-0.5B" in done.stderr
    quantised = lab / "quantised"
    made = next((lab / ".labassist" / "cache" / "models").glob("random-small-*[0-9]"))
    shutil.copytree(made, quantised, ignore=shutil.ignore_patterns("labassist-*"))
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"load_in_4bit": True}})
    )
    assert "quantised one" in refused(foreign, str(quantised))


def test_as_a_plain_script_it_trains_the_same_bits(lab: Path, whole: Any) -> None:
    told = labassist("export", whole["id"], "--to", "script", "-o", "plain.py", cwd=lab)
    assert "plain.py" in told.stdout
    text = (lab / "plain.py").read_text()
    assert text.count("labassist.record") == 1
    compile(text, "plain.py", "exec")
    words = ("run", "--json", "--threads", "1", "--", "python", "plain.py")
    plain = json.loads(labassist(*words, cwd=lab, env=ENV).stdout)
    found = answer("diff", whole["id"], plain["id"], cwd=lab)
    for name in ("loss", "grad_norm", "lr", "batch", "eval_loss"):
        assert found["curves"][name] == {
            "compared": found["curves"][name]["compared"],
            "equal": found["curves"][name]["compared"],
            "first_difference": None,
        }, name
    assert found["curves"]["loss"]["compared"] == 6


@pytest.mark.parametrize("layout", ["padding-free", "packed", "stream"])
def test_other_layouts_train_and_replay(lab: Path, layout: str) -> None:
    document = run(lab, "--set", f"layout={layout}", "--set", "steps=2", "--set", "accumulate=2")
    assert document["state"] == "finished"
    assert answer("replay", document["id"], cwd=lab, env=ENV)["verdict"] == "BITWISE"


def test_text_is_gone_on_with(lab: Path) -> None:
    sets = ("steps=2", "length=128", f"model.name=random:{lab / 'small' / 'config.json'}")
    words = [word for one in sets for word in ("--set", one)]
    document = answer("run", "07-qlora/cpt", "--profile", "tiny", *words, cwd=lab, env=ENV)
    assert document["state"] == "finished" and "eval_loss" in document["last"]


def test_a_sweep_trains_each_setting_with_each_seed_and_goes_on_after_a_kill(lab: Path) -> None:
    base = f"model.name=random:{lab / 'small' / 'config.json'}"
    words = ("07-qlora/sweep", "--profile", "tiny", "--set", base)
    for over, names in (
        ("targets", {"q-v", "q-k-v-o", "all-linear"}),
        ("unfreezing", {"at-once", "staged", "top-third"}),
    ):
        document = answer(
            "run", *words, "--set", f"over={over}", "--set", "updates=3", cwd=lab, env=ENV, deadline=600
        )
        assert {name for name in document["last"] if "." not in name} == names
        assert len({document["last"][name] for name in names}) == 3, "each setting trains something else"
        assert "two seeds of one setting differ by up to" in log_of(lab, document)
    short = [word for one in ("over=unfreezing", "updates=3") for word in ("--set", one)]
    started = answer("run", *words, *short, "--detach", cwd=lab, env=ENV)
    first = run_folder(lab, started) / "checkpoints" / "step-00000001"
    wait_until(first.exists, "the first seed's checkpoint")
    wait_for_step(run_folder(lab, started), 2)
    kill_trainer(run_folder(lab, started))
    wait_closed(lab, started)
    resumed = answer("resume", started["id"], cwd=lab, env=ENV, deadline=600)
    assert (resumed["state"], resumed["resumed_from"]["step"]) == ("finished", 1)
    found = answer("diff", document["id"], resumed["id"], cwd=lab)
    assert found["curves"] and all(one["first_difference"] is None for one in found["curves"].values())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"instruction": "a", "output": "b"', "is not JSON"),
        (b'{"question": "a", "answer": "b"}', "has the keys question, answer"),
        (b'{"instruction": "a", "output": ""}', "output is empty"),
        (b'{"instruction": "caf\xe9", "output": "b"}', "is not UTF-8: byte 0xe9"),
        (b'{"instruction": "' + b"a" * 1_000_000 + b'", "output": "b"}', "more than 1 MB"),
    ],
)
def test_a_faulty_line_is_named_before_anything_heavy_starts(lab: Path, line: bytes, said: str) -> None:
    (lab / "faulty.jsonl").write_bytes(b'{"instruction": "a", "output": "b"}\n' + line + b"\n")
    words = ("run", "07-qlora/sft", "--profile", "tiny", "--set", "data.train=faulty.jsonl")
    before = len(answer("runs", cwd=lab))
    [told] = labassist(*words, cwd=lab, status=2, env=ENV).stderr.splitlines()
    assert told.startswith("labassist: faulty.jsonl:2: ") and said in told and "; " in told
    assert len(answer("runs", cwd=lab)) == before, "what cannot be read leaves no run"


def test_what_a_crash_costs_is_said_in_money_where_a_price_was_given(lab: Path) -> None:
    log = log_of(lab, run(lab, "--price", "3600"))
    assert re.search(
        r"a checkpoint every 2 steps: a crash costs up to [\d.]+ s \([\d.]+ at 3600 an hour\)", log
    ), log


def test_a_model_that_is_not_here_says_what_is_missing_and_the_commands_that_bring_it(lab: Path) -> None:
    document = run(lab, "--set", "model.name=Someone/small", status=1)
    [told] = log_of(lab, document).splitlines()
    assert "missing: config.json, tokenizer.json, *.safetensors" in told
    assert "`labassist run -- python -m labassist.finetune.hub Someone/small`" in told
    assert "`hf download Someone/small --local-dir small`" in told and "--set model.name=small" in told


def test_a_limit_below_every_sample_is_refused(lab: Path) -> None:
    document = run(lab, "--set", "length=16", status=1)
    assert "every one of the 600 samples is longer than 16 tokens" in log_of(lab, document)


def test_without_a_gpu_there_is_no_card_to_rehearse(lab: Path) -> None:
    document = run(lab, "--card", "24GB", status=1)
    assert "no GPU here to rehearse it on" in log_of(lab, document)
    assert (
        "has no setting `card`"
        in labassist("run", "01-first-loop/train", "--card", "24GB", cwd=lab, status=2).stderr
    )


def test_bitsandbytes_without_a_library_for_this_cuda_is_named() -> None:
    """On a machine without CUDA its library is the CPU's: what a GPU would find where the CUDA one is missing."""
    program = "from labassist.finetune.load import need_bitsandbytes; need_bitsandbytes(gpu=True)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert (
        done.returncode
        and "has no library for CUDA" in done.stderr
        and "--set model.method=lora" in done.stderr
    )


def test_a_tokenizer_without_chat_template_and_one_that_pads_with_its_end(lab: Path, tmp_path: Path) -> None:
    made = next((lab / ".labassist" / "cache" / "models").glob("random-small-*[0-9]"))
    bare = tmp_path / "bare"
    shutil.copytree(made, bare, ignore=shutil.ignore_patterns("labassist-*", "chat_template.jinja"))
    config = json.loads((bare / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    config["pad_token"] = config["eos_token"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    data = "labs/07-qlora/tickets.jsonl"
    refused = labassist("data", "lint", data, "--model", str(bare), cwd=lab, status=2, env=ENV).stderr
    assert "no chat template" in refused and "plain text" in refused
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"prompt": "a question", "completion": " an answer"}\n')
    told = answer("data", "lint", str(plain), "--model", str(bare), "--limit", "64", cwd=lab, env=ENV)
    assert any("pads and ends" in warning for warning in told["warnings"])
    assert told["shown"].endswith("a question⟦ an answer</s>⟧")
    assert told["tokens"]["samples"] == 1 and sum(count for _, _, count in told["tokens"]["histogram"]) == 1
