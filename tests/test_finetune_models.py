"""One resolver of models: what is whole is used, what is not is named with how to bring it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labassist.cli.finetune import no_adapter
from labassist.errors import InputError, RestoreError
from labassist.finetune import embedded, lineage, merge, model_folder, models, risk
from labassist.record.protocol import Order


def weights(text: str) -> bytes:
    """Return a whole safetensors file that holds the bytes of `text`."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [len(text)], "data_offsets": [0, len(text)]}}).encode()
    return len(header).to_bytes(8, "little") + header + text.encode()


def folder(path: Path, *names: str, config: dict[str, object] | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    for name in names:
        text = f"{name} of {path.name}"
        (path / name).write_bytes(weights(text) if name.endswith(model_folder.WEIGHTS) else text.encode())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "mine", "model.safetensors", "tokenizer.json")


def test_a_folder_is_a_model_with_a_digest_that_follows_its_content(tmp_path: Path, model: Path) -> None:
    first = models.prepare("mine", tmp_path)
    assert first.folder == model and first.source == "a folder"
    assert models.prepare(str(model), tmp_path).digest == first.digest
    (model / "model.safetensors").write_bytes(weights("other weights"))
    assert models.prepare("mine", tmp_path).digest != first.digest
    kept = json.loads(first.manifest.read_text())
    assert set(kept["files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert not list(model.glob("labassist*")), "nothing is written into a folder that is not ours"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    shards = folder(tmp_path / "shards", "tokenizer.json", "model-1.safetensors")
    (shards / model_folder.INDEX).write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    )
    folder(tmp_path / "bare")
    folder(tmp_path / "pickled", "pytorch_model.bin", "tokenizer.json")
    for name, said in (
        ("shards", "model-2.safetensors missing"),
        ("bare", "*.safetensors, tokenizer.json missing"),
        ("pickled", "pickled"),
        ("no-such", "no folder and no hub id"),
        ("./no-such/folder", "no folder and no hub id"),
    ):
        with pytest.raises(InputError) as caught:
            models.prepare(name, tmp_path)
        assert said in str(caught.value) and caught.value.mend


@pytest.mark.fault
@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (-3, "was cut: "),
        (40, "has no header"),
        (4, "has no header (4 bytes)"),
        (0, "has no header (0 bytes)"),
    ],
)
def test_a_model_half_written_is_named_with_its_file(
    tmp_path: Path, model: Path, cut: int, said: str
) -> None:
    """What a copy or a merge that was cut leaves under the model's name: refused before anything heavy starts."""
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[:cut])
    with pytest.raises(InputError) as caught:
        models.prepare("mine", tmp_path)
    assert f"model.safetensors {said}" in str(caught.value) and "merge again" in caught.value.mend


@pytest.mark.fault
def test_an_adapter_half_written_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    for step in (2, 4):
        place = tmp_path / f"checkpoint-{step}"
        place.mkdir()
        (place / merge.CONFIG).write_text("{}")
        (place / merge.WEIGHTS).write_bytes(weights("whole"))
    assert merge.find_adapter(tmp_path).name == "checkpoint-4"
    torn = tmp_path / "checkpoint-4" / merge.WEIGHTS
    torn.write_bytes(torn.read_bytes()[:-1])
    assert merge.find_adapter(tmp_path).name == "checkpoint-2"
    with pytest.raises(InputError, match=f"{merge.WEIGHTS} was cut: ") as caught:
        merge.find_adapter(torn.parent)
    assert "earlier checkpoint" in caught.value.mend
    (tmp_path / "checkpoint-2" / merge.CONFIG).write_text('{"peft_type": "LO')
    with pytest.raises(InputError, match=f"{merge.CONFIG} is no JSON") as caught:
        merge.find_adapter(tmp_path / "checkpoint-2")


def test_a_hub_id_that_is_not_here_says_how_to_bring_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not here") as caught:
        models.prepare("Someone/a-model-7b", tmp_path, "v2")
    assert "labassist.finetune.hub Someone/a-model-7b --revision v2`" in caught.value.mend
    assert "hf download Someone/a-model-7b --local-dir a-model-7b`" in caught.value.mend
    with pytest.raises(InputError, match="means nothing here"):
        models.prepare("embedded", tmp_path, "main")


def test_what_another_program_downloaded_is_used_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    repository = cache / "models--Someone--small"
    snapshot = folder(repository / "snapshots" / ("a" * 40), "model.safetensors", "tokenizer.json")
    (snapshot / "README.md").write_text("---\nlicense: mit\n---\n")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    for revision in ("", "main", "a" * 40):
        found = models.prepare("Someone/small", tmp_path, revision)
        assert (found.folder, found.revision, found.licence) == (snapshot, "a" * 40, "mit")
    with pytest.raises(InputError, match="is not here"):
        models.prepare("Someone/small", tmp_path, "b" * 40)


def test_code_of_a_model_runs_only_where_it_was_asked_for_by_name(tmp_path: Path) -> None:
    config = {"model_type": "x", "auto_map": {"AutoModel": "modeling.X"}}
    folder(tmp_path / "own", "model.safetensors", "tokenizer.json", "modeling.py", config=config)
    found = models.prepare("own", tmp_path)
    with pytest.raises(InputError, match="Python code of its own") as caught:
        models.refuse_remote_code(found, trusted=False)
    assert "model.trust_remote_code=true" in caught.value.mend
    models.refuse_remote_code(found, trusted=True)


def test_one_of_ours_that_was_changed_is_refused(tmp_path: Path) -> None:
    ours = folder(tmp_path / "store" / "ours", "model.safetensors", "tokenizer.json")
    model_folder.described("ours", ours, ours, {"source": "made", "licence": "mit"})
    (ours / "model.safetensors").write_bytes(weights("altered"))
    with pytest.raises(InputError, match="model.safetensors is not as it was"):
        model_folder.described("ours", ours, ours, {"source": "", "licence": ""})


@pytest.mark.fault
def test_a_making_that_was_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"
    left = target.parent / "m.partial"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    with pytest.raises(KeyboardInterrupt), model_folder.making(target) as made:
        assert not (made / "half").exists()
        (made / "weights").write_text("y")
        raise KeyboardInterrupt
    assert not target.exists() and not left.exists()
    with model_folder.making(target) as made:
        (made / "weights").write_text("z")
    assert (target / "weights").read_text() == "z"
    with model_folder.making(target) as made:
        assert made == target, "it is made once"


def test_too_little_disk_is_said_before_anything_is_brought(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"takes 1000000000\.0 GB and .* GB are free"):
        model_folder.need_disk(tmp_path / "not" / "yet", 10**18, "it")


def test_a_file_that_is_not_the_packages_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / embedded.FILE
    other.write_bytes(b"GGUF")
    with pytest.raises(InputError, match="is not the model of"):
        embedded._checked(other)


def test_a_replay_with_another_model_is_refused(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = models.of_order(Order(config={}), "mine")
    assert recorded.folder == model
    copy = tmp_path / "kept.json"
    copy.write_bytes(recorded.manifest.read_bytes())
    from labassist.record.protocol import file_sha256

    order = Order(config={}, inputs={"model": {"path": str(copy), "sha256": file_sha256(copy)}})
    assert models.of_order(order, "mine").digest == recorded.digest
    (model / "model.safetensors").write_bytes(weights("other weights"))
    with pytest.raises(RestoreError, match="is not the recorded one"):
        models.of_order(order, "mine")


def test_what_a_crash_costs_is_said_in_time_and_money() -> None:
    assert risk.at_risk(100, 25, 12.0) == "a checkpoint every 25 steps: a crash costs up to 5.0 min"
    assert "(0.10 at 1.2 an hour)" in risk.at_risk(100, 25, 12.0, 1.2)
    told = risk.at_risk(189, 500, 20.0, 2.0)
    assert told.startswith(
        "no checkpoint falls before the last of the 189 steps: a crash costs up to 63.0 min (2.10"
    )
    assert "--set every.checkpoint=47" in told


@pytest.mark.fault
def test_what_an_adapter_says_of_its_base_is_held_against_the_base(tmp_path: Path, model: Path) -> None:
    """Base and instruct of one family have the same shapes: where the names or nothing but shapes speak, it is said."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()

    def base_of(claim: str, name: str = "", **kept: str) -> tuple[models.Model, str]:
        (adapter / merge.CONFIG).write_text(json.dumps({"base_model_name_or_path": claim}))
        (adapter / lineage.FILE).write_text(json.dumps({"base": kept} if kept else {}))
        return merge.base_of(adapter, tmp_path, name, Order(config={}))

    digest = models.prepare("mine", tmp_path).digest
    for claim in ("mine", str(model), "Someone/Mine", "/of/another/machine/mine"):
        assert base_of(claim, "mine") == (models.prepare("mine", tmp_path), ""), claim
    for claim in ("", "/of/another/machine/model"):
        assert base_of(claim, name="mine", digest=digest)[1] == "", claim
    with pytest.raises(
        InputError, match="adapter_config.json names Qwen/Other, and the base is mine"
    ) as caught:
        (adapter / merge.CONFIG).write_text(json.dumps({"base_model_name_or_path": "Qwen/Other"}))
        (adapter / lineage.FILE).write_text(json.dumps({"base": {"name": "mine", "digest": digest}}))
        merge.base_of(adapter, tmp_path, "", Order(config={}))
    assert "--base mine insists" in caught.value.mend
    assert "names Qwen/Other" in base_of("Qwen/Other", "mine", digest=digest)[1]
    assert "names Qwen/Other" in base_of("Qwen/Other", "mine")[1]
    assert "names /another/model" in base_of("/another/model", "mine")[1]
    assert "nothing tells what it was trained on" in base_of("", "mine")[1]
    with pytest.raises(InputError, match="does not say what its base is"):
        base_of("")


def test_a_run_without_an_adapter_is_named_for_what_it_is() -> None:
    bench = {"id": "r", "state": "finished", "job": "serving/bench"}
    assert str(no_adapter(bench)).startswith(
        "run r: it has left no checkpoint: it is a finished run of serving/bench"
    )
    assert "07-qlora/sft" in no_adapter(bench).mend
    assert no_adapter({**bench, "state": "running"}).mend == "let it run on"
