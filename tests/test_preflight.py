"""Before a job starts: what it needs is held against the machine, and what will not fit is refused with a way on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import QUICK, labassist

from labassist.errors import InputError, LedgerError
from labassist.ledger.records import Origin
from labassist.machine.readings import GpuSample, HostSample, MachineSample
from labassist.planner.arch import load
from labassist.runs import launch, preflight, resume
from labassist.runs.jobs import Job, load_job, resolve
from labassist.workspace import Workspace

GIB = 1024**3
JOB = "01-first-loop/train"


def machine(
    memory: float = 16, disk: float = 100, gpu: float | None = None, used: float = 0
) -> MachineSample:
    """A machine with so many GiB."""
    gpus = [] if gpu is None else [a_card(0, "NVIDIA GeForce RTX 4090", gpu, used)]
    host = HostSample(4, GIB, int((memory + 1) * GIB), disk_free=int(disk * GIB))
    return MachineSample(0.0, host, gpus, "" if gpus else "no NVIDIA driver")


def a_card(index: int, name: str, total: float, used: float = 0) -> GpuSample:
    return GpuSample(
        index, name, f"GPU-{index}abc", memory_total=int(total * GIB), memory_used=int(used * GIB)
    )


def needs(workspace: Workspace, profile: str | None = None, *sets: str) -> tuple[Job, preflight.Needs]:
    job = load_job(workspace, JOB)
    return job, preflight.needed(workspace.root, job, resolve(job, profile, None, sets).flat)


def refused(workspace: Workspace, where: MachineSample, *words: str) -> str:
    found = preflight.refusal(*needs(workspace, *words), where)
    return f"{found.what}; {found.set}" if found else ""


def test_a_gpu_job_is_held_against_the_free_memory_of_the_card(workspace: Workspace) -> None:
    job, wanted = needs(workspace, "gpu")
    assert 2 < wanted.estimate.total_gib < 8
    assert refused(workspace, machine(gpu=24), "gpu") == ""
    full = refused(workspace, machine(gpu=24, used=23), "gpu")
    assert "GiB of GPU memory, and 1.0 GiB are free of NVIDIA GeForce RTX 4090's 24.0 GiB" in full
    # A smaller batch is offered only where it fits.
    assert "take --set batch=" in refused(workspace, machine(gpu=24, used=21.5), "gpu")
    assert "--set" not in refused(workspace, machine(gpu=24, used=23.9), "gpu")


def test_a_job_for_the_gpu_is_refused_where_there_is_none(workspace: Workspace) -> None:
    assert "needs a GPU, and there is none here (no NVIDIA driver)" in refused(workspace, machine(), "gpu")
    assert refused(workspace, machine(), "gpu", "device=cpu") == ""


def test_a_cpu_job_is_held_against_the_memory_of_the_machine(workspace: Workspace) -> None:
    assert refused(workspace, machine(memory=1.5), "laptop") == ""
    assert "GiB of memory, and 1.0 GiB of 2.0 GiB are free" in refused(
        workspace, machine(memory=1), "laptop", "batch=4096"
    )
    # With a card, `auto` runs there and the machine's memory is not asked for.
    assert refused(workspace, machine(memory=0.1, gpu=24), "laptop") == ""


def test_the_disk_must_hold_every_checkpoint(workspace: Workspace) -> None:
    _job, wanted = needs(workspace, "gpu", "device=cpu")
    # Weights and two moments in fp32, 12 bytes a parameter; one for every 500 of 5,000 steps.
    assert wanted.checkpoint == 12 * wanted.plan.model.parameters
    assert wanted.checkpoints == 10
    assert refused(workspace, machine(disk=2), "gpu", "device=cpu") == ""
    assert "its 10 checkpoints of 0.1 GiB need 1.2 GiB of disk" in refused(
        workspace, machine(disk=1), "gpu", "device=cpu"
    )
    assert "1.0 GiB are free, of which 0.2 GiB are kept for curves" in refused(
        workspace, machine(disk=1), "gpu", "device=cpu"
    )
    rarer = refused(workspace, machine(disk=1), "gpu", "device=cpu").rpartition("every.checkpoint=")[2]
    assert refused(workspace, machine(disk=1), "gpu", "device=cpu", f"every.checkpoint={rarer}") == ""
    assert "free some space" in refused(workspace, machine(disk=0.2), "gpu", "device=cpu")


@pytest.mark.fault
@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_checkpoints_are_held_against_the_disk_that_they_go_to(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a refusal says to do, naming another disk, is what makes the job start."""
    job = load_job(workspace, JOB)
    config = resolve(job, "gpu", None, ("device=cpu", "model.d_model=64"))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=190m", "none", str(small)], check=True)
    try:
        moved = Workspace(Path(shutil.copytree(workspace.root, small / "lab")))
        with pytest.raises(InputError, match="of disk, and .* LABASSIST_ARTIFACTS=DIR"):
            preflight.preflight(moved, job, config)
        with pytest.raises(
            LedgerError, match="too few for curves, logs and the ledger; .* move the workspace"
        ):
            launch._preflight_disk(moved)
        monkeypatch.setenv("LABASSIST_ARTIFACTS", str(tmp_path / "large"))
        preflight.preflight(moved, job, config)
        monkeypatch.setenv("LABASSIST_ARTIFACTS", str(small / "artifacts"))
        with pytest.raises(InputError, match="of disk, and"):
            preflight.preflight(workspace, job, config)
        with pytest.raises(LedgerError, match="too few for checkpoints; .* LABASSIST_ARTIFACTS=DIR"):
            launch._preflight_disk(workspace)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_resume_that_would_end_before_its_checkpoint_is_refused(workspace: Workspace) -> None:
    """It recorded a run of no step that was `asked to stop`, by nobody."""
    document = {"job": JOB, "argv": [], "mode": "exact", "seed": 1, "config": {}}
    document["config"] = dict(resolve(load_job(workspace, JOB), "tiny", None, ()).flat)
    origin = Origin(run="20261130-000000-aaaaaa", step=60)
    with pytest.raises(InputError, match="it would end at step 59 .steps., and its last complete checkpoint"):
        resume._job_plan(workspace, document, ["steps=59"], [], origin)
    assert resume._job_plan(workspace, document, ["steps=60"], [], origin).flat["steps"] == 60


def test_a_planned_checkpoint_is_as_large_as_a_real_one(workspace: Workspace) -> None:
    pytest.importorskip("torch")
    labassist("run", JOB, "--profile", "tiny", *QUICK, cwd=workspace.root)
    (kept,) = workspace.ledger.glob("runs/*/checkpoints/step-00000060")
    real = sum(path.stat().st_size for path in kept.glob("*.safetensors"))
    _job, wanted = needs(workspace, "tiny", *(word.removeprefix("--set=") for word in QUICK))
    assert wanted.checkpoint == pytest.approx(real, rel=0.2)
    assert wanted.checkpoints == len(list(kept.parent.glob("step-????????")))


def test_of_several_cards_the_one_that_the_trainer_takes_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = a_card(0, "NVIDIA T400", 2), a_card(1, "NVIDIA GeForce RTX 4090", 24)
    assert preflight.card([small, large]) is large  # CUDA counts the fastest first
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert preflight.card([small, large]) is small
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert preflight.card([small, large]) is large
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0abc")
    assert preflight.card([small, large]) is small
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert preflight.card([small, large]) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--profile", "gpu", "--set", "device=cuda"], "needs a GPU"),
        (["--set=device=cpu", "--set=model.d_model=16384", "--set=model.layers=64"], "GiB of memory, and"),
        (["--set", "data.path=nowhere.txt"], "data.path: nowhere.txt is not there"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_and_not_recorded(
    workspace: Workspace, words: list[str], said: str
) -> None:
    if "gpu" in words and any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("there is a GPU here")
    done = labassist("run", JOB, *words, cwd=workspace.root, status=2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(workspace.ledger.glob("runs/*"))


def test_the_largest_profile_that_fits_is_offered(workspace: Workspace) -> None:
    lab = workspace.labs / "01-first-loop" / "train.toml"
    lab.write_text(lab.read_text() + "\n[profiles.huge]\nmodel.d_model = 16384\nmodel.layers = 64\n")
    done = labassist("run", JOB, "--profile", "huge", cwd=workspace.root, status=2)
    largest = "gpu" if any(Path("/dev").glob("nvidia[0-9]*")) else "laptop"
    assert f"take --profile {largest}, which fits" in done.stderr
    done = labassist("run", JOB, "--profile", "huge", "--set=batch=4000", cwd=workspace.root, status=2)
    assert re.search(r"--profile (tiny|laptop|gpu)", done.stderr)


def test_no_checkpoint_before_the_end_is_said(workspace: Workspace) -> None:
    job = load_job(workspace, JOB)

    def notes(*sets: str) -> list[str]:
        return preflight.preflight(workspace, job, resolve(job, "tiny", None, sets))

    assert notes() == []
    (note,) = notes("every.checkpoint=120")
    assert "no checkpoint falls before the last step" in note
    assert "take --set every.checkpoint=30" in note
    assert notes("every.checkpoint=119") == []


def test_a_trl_job_says_its_size_by_name_and_method(workspace: Workspace) -> None:
    job = with_memory(
        workspace,
        'model = "qwen2.5-7b"\nmethod = "qlora"\nseq = 2048\nbatch = "$batch"\nlora_targets = "q_proj,v_proj"\n'
        'device = "cuda"\nsteps = "$steps"\ncheckpoint = "$every.checkpoint"\nkeep = 2\n',
    )
    found = preflight.needed(workspace.root, job, {**job.spec.defaults, "batch": 2})
    assert found.plan.model == load("qwen2.5-7b")
    assert found.plan.lora_targets == ("q_proj", "v_proj")
    assert 7 < found.estimate.total_gib < 10
    assert found.checkpoints == 2
    assert preflight.refusal(job, found, machine(gpu=24)) is None
    assert preflight.refusal(job, found, machine(gpu=8)) is not None


def test_a_rehearsed_card_is_the_limit_on_a_larger_one(workspace: Workspace) -> None:
    job = with_memory(workspace, 'model = "qwen2.5-7b"\nmethod = "lora"\nbatch = 4\ncard = "16GB"\n')
    found = preflight.refusal(job, preflight.needed(workspace.root, job, job.spec.defaults), machine(gpu=80))
    assert found is not None and "are what a 16 GB, as the" in found.what
    job = with_memory(workspace, 'model = "qwen2.5-7b"\nmethod = "lora"\nbatch = 4\ncard = ""\n')
    needs = preflight.needed(workspace.root, job, job.spec.defaults)
    assert preflight.refusal(job, needs, machine(gpu=80)) is None


def test_a_model_that_is_not_known_is_a_note_and_no_refusal(workspace: Workspace) -> None:
    job = with_memory(workspace, 'model = "nobody/knows-this"\nmethod = "lora"\n')
    (note,) = preflight.preflight(workspace, job, resolve(job, "tiny"))
    assert "not estimated: " in note and "unknown model" in note


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('modle = "x"\n', "unknown key 'modle', did you mean model"),
        ('model = "x"\nbatch = "$bacth"\n', "memory.batch: labs/01-first-loop/train.toml has no 'bacth'"),
        ("layers = 2\n", "neither the model nor its sizes"),
    ],
)
def test_a_wrong_memory_table_is_refused(workspace: Workspace, table: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace(".", r"\.")):
        with_memory(workspace, table)


def with_memory(workspace: Workspace, table: str) -> Any:
    """The first lab's job with another memory table."""
    path = workspace.labs / "01-first-loop" / "jobs.toml"
    path.write_text(path.read_text().split("[train.memory]")[0] + "[train.memory]\n" + table)
    return load_job(workspace, JOB)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"question": "a", "answer": "b"}\n' * 3, "my.jsonl:1: has the keys question, answer"),
        (b"", "my.jsonl: holds no sample"),
        ('{"text": "a"}'.encode("utf-16"), "my.jsonl: is UTF-16"),
    ],
)
def test_samples_that_cannot_be_read_are_refused_before_there_is_a_run(
    workspace: Workspace, data: bytes, said: str
) -> None:
    job = replace(load_job(workspace, "07-qlora/sft"), needs=(), memory={})
    (workspace.root / "my.jsonl").write_bytes(data)
    with pytest.raises(InputError) as caught:
        preflight.preflight(workspace, job, resolve(job, "tiny", None, ["data.train=my.jsonl"]))
    assert str(caught.value).startswith(said) and caught.value.mend
    (workspace.root / "my.jsonl").write_text('{"text": "a"}\n')
    assert preflight.preflight(workspace, job, resolve(job, "tiny", None, ["data.train=my.jsonl"])) == []
