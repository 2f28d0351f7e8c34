"""One way to make each finding of `ckpt check` happen."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckpt_layouts as make
import ckpt_states
import torch
from ckpt_states import STEP
from safetensors.torch import save_file

from labassist.resume.check import Report, Several, check

HF = ckpt_states.ARGUMENTS


def document(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    ckpt_states.write_json(path, json.loads(path.read_text()) | changes)


def resave(path: Path, change: Callable[[Any], Any]) -> None:
    """Change what a file of torch.save holds."""
    torch.save(change(torch.load(path, weights_only=False)), path)


def hf(root: Path, **more: Any) -> Path:
    return make.hf(root, **more)


def after(
    make_it: Callable[[Path], Path], change: Callable[[Path], Any], **options: Any
) -> Callable[[Path], Any]:
    """Return a case: a checkpoint that is made, changed and checked."""

    def case(root: Path) -> Any:
        path = make_it(root / "x")
        change(path)
        return check(path, **options)

    return case


def nothing(_path: Path) -> None:
    return None


def planned(make_it: Callable[[Path], Path] = hf, **plan: Any) -> Callable[[Path], Any]:
    """Return a case: a healthy checkpoint against a plan."""
    return after(make_it, nothing, plan=plan)


def cut(name: str, size: int = -1) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = (path / name).read_bytes()
        (path / name).write_bytes(data[:size])

    return change


def without_rights(make_it: Callable[[Path], Path], look: Callable[[Path], Any]) -> Any:
    """Return what `look` says of a checkpoint to somebody who may not read everything, even under root.

    It is made, and once looked at, before: what is imported on the way may not be readable either.
    """
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    root = os.geteuid() == 0
    try:
        path = make_it(place)
        for file in place.rglob("*.safetensors"):
            if file.stat().st_mode & 0o777:
                file.chmod(0o644)  # the library writes them for their owner only
        look(path)
        if root:
            os.seteuid(65534)
        return look(path)
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(place)


def closed(name: str) -> Callable[[Path], Path]:
    def make_it(root: Path) -> Path:
        path = hf(root)
        (path / name).chmod(0)
        return path

    return make_it


def flip_member(path: Path) -> None:
    data = bytearray((path / "optimizer.pt").read_bytes())
    at = data.index(b"optimizer/data/1") + 100
    data[at + 64 - at % 64] ^= 1
    (path / "optimizer.pt").write_bytes(data)


def flip_ours(path: Path) -> None:
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)


def drop_shard(path: Path) -> None:
    (path / "model-00002-of-00002.safetensors").unlink()


def other_shard(path: Path) -> None:
    save_file(ckpt_states.weights({"other.weight": (2, 2)}), path / "model-00002-of-00002.safetensors")


class Custom:
    """Somebody's own class."""


def swap_ranks(path: Path) -> None:
    a, b = path / "rng_state_0.pth", path / "rng_state_1.pth"
    a.rename(path / "aside")
    b.rename(a)
    (path / "aside").rename(b)


def one_rng_for_all(path: Path) -> None:
    for rank in range(2):
        torch.save(ckpt_states.rng_state(7), path / f"rng_state_{rank}.pth")


def numpy1(path: Path) -> None:
    """Rename the module in the pickle, as numpy 1 wrote it; the name's length stands before it."""
    import zipfile

    source = path / "rng_state.pth"
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))


def skipped(path: Path) -> None:
    torch.save(ckpt_states.optimizer_state(ckpt_states.weights(), STEP - 1), path / "optimizer.pt")
    torch.save(ckpt_states.scheduler_state(STEP - 1), path / "scheduler.pt")


def tokens(count: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        vocabulary = {f"w{at}": at for at in range(count)}
        ckpt_states.write_json(path / "tokenizer.json", {"model": {"vocab": vocabulary}, "added_tokens": []})

    return change


def prefixed(path: Path) -> None:
    save_file(
        {f"_orig_mod.{name}": t for name, t in ckpt_states.weights().items()}, path / "model.safetensors"
    )


def half_adapter(root: Path) -> Path:
    halves = {name: tensor.bfloat16() for name, tensor in ckpt_states.weights(ckpt_states.LORA).items()}
    return make.hf_peft(root, tensors=halves)


def untrained(root: Path) -> Path:
    tensors = ckpt_states.weights(ckpt_states.LORA)
    tensors["base_model.model.l.0.q.lora_B.weight"].zero_()
    return make.hf_peft(root, tensors=tensors)


def more_moments(path: Path) -> None:
    sizes = {**ckpt_states.SIZES, "another": (3,)}
    torch.save(ckpt_states.optimizer_state(ckpt_states.weights(sizes)), path / "optimizer.pt")


def other_moments(path: Path) -> None:
    sizes = dict(ckpt_states.SIZES) | {"model.norm.weight": (5,)}
    torch.save(ckpt_states.optimizer_state(ckpt_states.weights(sizes)), path / "optimizer.pt")


def eight_bit(path: Path) -> None:
    """The state of bitsandbytes' 8-bit AdamW, after bitsandbytes/optim/optimizer.py."""
    state = {
        at: {
            "step": STEP,
            "state1": torch.zeros(4096, dtype=torch.uint8),
            "state2": torch.zeros(4096, dtype=torch.uint8),
            "qmap1": torch.zeros(256),
            "absmax1": torch.zeros(16),
        }
        for at in range(3)
    }
    torch.save({"state": state, "param_groups": [{"params": [0, 1, 2]}]}, path / "optimizer.pt")


def nan_loss(path: Path) -> None:
    document(path / "trainer_state.json", log_history=[{"loss": float("nan"), "step": 3}])


def stopping(path: Path) -> None:
    state = {"args": {"early_stopping_patience": 3}, "attributes": {"early_stopping_patience_counter": 2}}
    document(path / "trainer_state.json", stateful_callbacks={"EarlyStoppingCallback": state})


def several(root: Path, change: Callable[[Path], Any], which: int = -1) -> Report:
    """Return the report on the newest (or which) of two checkpoints, changed; the other one is whole."""
    older, newer = hf(root / "a"), hf(root / "b")
    (root / "run").mkdir()
    shutil.move(older, root / "run" / "checkpoint-4")
    older = root / "run" / "checkpoint-4"
    document(older / "trainer_state.json", global_step=4)
    torch.save(ckpt_states.optimizer_state(ckpt_states.weights(), 4), older / "optimizer.pt")
    torch.save(ckpt_states.scheduler_state(4), older / "scheduler.pt")
    shutil.move(newer, root / "run" / f"checkpoint-{STEP}")
    change(root / "run" / (f"checkpoint-{STEP}" if which else "checkpoint-4"))
    found = check(root / "run")
    assert isinstance(found, Several)
    return found.reports[which]


def counting_epochs(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    tensors = ckpt_states.weights()
    held = {"model": tensors, "optimizer": ckpt_states.optimizer_state(tensors), "step": 1}
    torch.save(held, root / "mine.pt")
    return root / "mine.pt"


def sealed(root: Path) -> Path:
    """Return a Trainer's checkpoint in a workspace, with the manifest that a recorded run leaves of it."""
    path = make.hf(root / "labs" / "mine")
    seal(root, path, "0123abcd")
    return path


def seal(workspace: Path, path: Path, run: str) -> None:
    """Leave the manifest of a folder in a run, as record.trainer_files does where transformers is."""
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in path.iterdir()
    }
    told = {"format": "transformers", "version": 1, "run": run, "step": STEP, "files": files}
    place = workspace / "ledger" / "runs" / run / "checkpoints" / f"step-{STEP:08d}.manifest.json"
    place.parent.mkdir(parents=True)
    ckpt_states.write_json(place, told | {"folder": str(path.relative_to(workspace))})


def another_run(path: Path) -> None:
    save_file(ckpt_states.weights(seed=1), path / "model.safetensors", {"format": "pt"})
    resave(path / "optimizer.pt", lambda held: held["state"][0]["exp_avg"].add_(1) is None or held)
    torch.save(ckpt_states.rng_state(3), path / "rng_state.pth")


def half_rotated(path: Path) -> None:
    for name in ("model.safetensors", "trainer_state.json", "scheduler.pt"):
        (path / name).unlink()


def leave_temporary(path: Path) -> None:
    shutil.copytree(path, path.with_name(path.name.replace("5", "6") + ".tmp"))


def ours_and_rest(root: Path) -> Report:
    path = make.ours(root)
    leave_temporary(path)
    found = check(path.parent)
    assert isinstance(found, Several)
    return found.reports[-1]


def deepspeed_ranks(path: Path) -> None:
    file = path / f"global_step{STEP}" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.unlink()


CASES: dict[str, Callable[[Path], Any]] = {
    "never-completed": after(hf, lambda path: (path / "checkpoint-is-incomplete.txt").write_text("")),
    "file-empty": after(hf, lambda path: (path / "scheduler.pt").write_bytes(b"")),
    "file-torn": after(hf, cut("model.safetensors")),
    "file-unreadable": lambda _root: without_rights(closed("scheduler.pt"), check),
    "crc-mismatch": after(hf, flip_member),
    "hash-mismatch": after(make.ours, flip_ours),
    "sealed": lambda root: check(sealed(root)),
    "unsealed": after(hf, nothing),
    "written-over": after(sealed, another_run),
    "structure-unknown": after(
        make.hf_peft,
        lambda path: ckpt_states.write_json(
            path / "trainer_state.json", {"global_step": 5, "log_history": 3}
        ),
    ),
    "json-torn": after(hf, cut("trainer_state.json", 40)),
    "file-missing": after(hf, lambda path: (path / "trainer_state.json").unlink()),
    "shard-missing": after(make.hf_sharded, drop_shard),
    "shard-unlisted": after(make.hf_sharded, other_shard),
    "rank-file-missing": after(make.deepspeed, deepspeed_ranks),
    "pickle-hostile": after(hf, lambda path: torch.save({"f": os.system}, path / "scheduler.pt")),
    "pickle-foreign": after(hf, lambda path: torch.save({"f": Custom()}, path / "scheduler.pt")),
    "temporary-left": ours_and_rest,
    "weights-missing": after(hf, lambda path: (path / "model.safetensors").unlink()),
    "optimizer-missing": after(hf, lambda path: (path / "optimizer.pt").unlink()),
    "scheduler-missing": after(hf, lambda path: (path / "scheduler.pt").unlink()),
    "optimizer-skipped": after(hf, lambda path: (path / "scheduler.pt").unlink()),
    "scheduler-skipped": after(hf, lambda path: (path / "optimizer.pt").unlink()),
    "scaler-missing": after(lambda root: hf(root, fp16=True), lambda path: (path / "scaler.pt").unlink()),
    "rng-missing": after(hf, lambda path: (path / "rng_state.pth").unlink()),
    "rng-part-missing": after(hf, lambda path: resave(path / "rng_state.pth", lambda v: {"cpu": v["cpu"]})),
    "rng-rank-missing": after(
        lambda root: hf(root, ranks=2), lambda path: (path / "rng_state_1.pth").unlink()
    ),
    "data-position-missing": after(
        make.torchtune, lambda path: (path / "recipe_state" / "recipe_state.pt").unlink()
    ),
    "format-limit": after(make.nanogpt, nothing),
    "save-only-model": after(make.hf_only_model, nothing),
    "rng-identical": after(lambda root: hf(root, ranks=2), one_rng_for_all),
    "rank-copied": after(
        lambda root: hf(root, ranks=2),
        lambda path: shutil.copy(path / "rng_state_0.pth", path / "rng_state_1.pth"),
    ),
    "ranks-swapped": after(lambda root: hf(root, ranks=2), swap_ranks),
    "rng-numpy1": after(hf, numpy1),
    "augmentation-order": after(hf, nothing),
    "world-size-changed": planned(lambda root: hf(root, ranks=2), world_size=1),
    "zero-world-size": planned(make.deepspeed, world_size=4),
    "step-mismatch-scheduler": after(
        hf, lambda path: torch.save(ckpt_states.scheduler_state(STEP + 2), path / "scheduler.pt")
    ),
    "step-mismatch-optimizer": after(
        hf,
        lambda path: torch.save(ckpt_states.optimizer_state(ckpt_states.weights(), 3), path / "optimizer.pt"),
    ),
    "counts-differ": lambda root: check(counting_epochs(root)),
    "step-mismatch-name": after(lambda root: hf(root).rename(root / "checkpoint-7"), nothing),
    "skipped-steps": after(lambda root: hf(root, fp16=True), skipped),
    "accumulation-partial": after(lambda root: make.lightning(root, batches=11), nothing),
    "epoch-boundary": after(lambda root: make.lightning(root, loader=True, last=True), nothing),
    "data-skip-ignored": after(lambda root: hf(root, ignore_data_skip=True), nothing),
    "early-stopping-reset": after(hf, stopping),
    "loader-no-rank": after(lambda root: make.accelerate(root, ranks=2), nothing),
    "loader-buffer": after(make.nanochat, nothing),
    "loader-workers": after(lambda root: make.torchdata(root, workers=2), nothing),
    "prefix": after(hf, prefixed),
    "embedding-tokenizer": after(hf, tokens(20)),
    "embedding-config": after(hf, lambda path: document(path / "config.json", vocab_size=99)),
    "embedding-padded": after(hf, tokens(10)),
    "tied-weights": after(hf, nothing),
    "head-missing": after(hf, lambda path: document(path / "config.json", tie_word_embeddings=False)),
    "weights-dtype": after(hf, lambda path: document(path / "config.json", dtype="bfloat16")),
    "base-weights": after(make.hf_peft, nothing),
    "adapter-subfolder": after(lambda root: make.hf_peft(root, name="mine"), nothing),
    "adapter-dtype": after(half_adapter, nothing),
    "lora-b-zero": after(untrained, nothing),
    "moments-missing": after(hf, lambda path: resave(path / "optimizer.pt", lambda v: v | {"state": {}})),
    "moments-few": after(hf, lambda path: resave(path / "optimizer.pt", lambda v: v["state"].pop(1) and v)),
    "optimizer-count": after(hf, more_moments),
    "optimizer-shapes": after(hf, other_moments),
    "optimizer-paged": after(hf, eight_bit),
    "optimizer-memory": after(hf, nothing, memory=[("memory", 100, 200)]),
    "not-finite": after(hf, nan_loss),
    "plan-schedule": planned(max_steps=40),
    "plan-batch-split": planned(per_device_train_batch_size=4, gradient_accumulation_steps=1),
    "plan-batch": planned(per_device_train_batch_size=8),
    "plan-dataset": planned(dataset_length=60),
    "plan-packing": planned(lambda root: hf(root, packing=True), packing=False),
    "plan-zero-stage": planned(make.deepspeed, zero_stage=3),
    "plan-precision": planned(precision="bf16"),
    "plan-seed": planned(seed=2),
    "newest-incomplete": lambda root: several(root, cut("model.safetensors")),
    "half-rotated": lambda root: several(root, half_rotated, 0),
    "latest-wrong": after(make.deepspeed, lambda path: (path / "latest").write_text("global_step9")),
    "latest-missing": after(make.deepspeed, lambda path: (path / "latest").unlink()),
}
"""One way to make each code happen."""
