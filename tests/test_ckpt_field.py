"""`ckpt check` on what people's own loops and disks hold: no false alarm, and no EXACT over what is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ckpt_layouts as make
import ckpt_states
import pytest
import torch
from ckpt_cases import another_run, closed, seal, sealed, without_rights
from command import QUICK, answer, labassist

from labassist.errors import InputError
from labassist.resume.allow import trust
from labassist.resume.check import Report, Several
from labassist.resume.check import check as inspect
from labassist.resume.pickled import Global
from labassist.workspace import new


def check(path: Path, **options: Any) -> Report:
    report = inspect(path, **options)
    assert isinstance(report, Report)
    return report


def codes(report: Report, *severities: str) -> set[str]:
    return {one.code for one in report.found.findings if not severities or one.severity in severities}


def loop(
    path: Path, optimizer: Callable[..., Any], scheduler: Callable[..., Any], every: int, **more: Any
) -> Path:
    """Save what a loop of one's own has after 20 updates, its scheduler stepped once in `every` of them."""
    model = torch.nn.Linear(4, 4)
    steps = optimizer(model.parameters(), lr=0.01)
    rate = scheduler(steps)
    for at in range(1, 21):
        model(torch.ones(2, 4)).sum().backward()
        steps.step()
        if at % every == 0:
            rate.step(1.0) if "Plateau" in type(rate).__name__ else rate.step()
    states = {"model": model, "optimizer": steps, "scheduler": rate}
    torch.save({f"{name}_state_dict": one.state_dict() for name, one in states.items()} | more, path)
    return path


def cosine(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "every", "more"),
    [
        (torch.optim.AdamW, cosine, 10, {"epoch": 2}),
        (torch.optim.AdamW, cosine, 10, {"epoch": 2, "global_step": 20}),
        (torch.optim.SGD, cosine, 10, {"step": 20}),
        (torch.optim.AdamW, torch.optim.lr_scheduler.ReduceLROnPlateau, 10, {"global_step": 20}),
        (torch.optim.AdamW, cosine, 1, {"step": 80}),
        (torch.optim.AdamW, cosine, 1, {"step": 2}),
    ],
    ids=["epoch", "epoch-step", "sgd", "plateau", "micro-steps", "step-counts-epochs"],
)
def test_a_loop_that_counts_its_own_way_is_not_blamed(
    optimizer: Any, scheduler: Any, every: int, more: dict[str, int], tmp_path: Path
) -> None:
    report = check(loop(tmp_path / "mine.pt", optimizer, scheduler, every, **more))
    assert codes(report, "warning", "error") == set()
    assert report.verdict == "DEGRADED"
    assert report.found.states["scheduler"] == report.found.states["optimizer"] == "present"


def test_a_scheduler_stepped_once_an_epoch_is_no_fault_with_accelerate(tmp_path: Path) -> None:
    path = make.accelerate(tmp_path)
    torch.save(ckpt_states.scheduler_state(2), path / "scheduler.bin")
    assert codes(check(path), "warning", "error") == set()


@pytest.mark.fault
def test_a_value_altered_in_a_recorded_checkpoint_is_seen_by_the_ledgers_manifest(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    assert check(path).verdict == "EXACT" and "sealed" in codes(check(path))
    file = path / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    report = check(path)
    assert report.verdict == "BROKEN" and report.found.states["model"] == "torn"
    [one] = [one for one in report.found.findings if one.code == "hash-mismatch"]
    assert one.path == "model.safetensors" and "0123abcd" in one.message
    assert check(path, verify=False).verdict == "EXACT"
    (path / "scheduler.pt").unlink()
    assert "hash-mismatch" in codes(check(path, verify=False))
    several = inspect(path.parent)
    assert several.verdict == "BROKEN"


def test_of_two_runs_in_one_folder_the_later_ones_files_are_whole(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    another_run(path)
    assert check(path).verdict == "DEGRADED" and "written-over" in codes(check(path))
    seal(tmp_path, path, "later")
    assert check(path).verdict == "EXACT"


@pytest.mark.fault
@pytest.mark.parametrize(
    ("held", "presence", "verdict"),
    [
        ({"state": {}}, "torn", "BROKEN"),
        ([1, 2], "torn", "BROKEN"),
        ({"state": 3, "param_groups": []}, "torn", "BROKEN"),
        ({"state": {}, "param_groups": [{"betas": (0.9, 0.99), "params": [0, 1, 2]}]}, "absent", "DEGRADED"),
        ({"state": {}, "param_groups": [{"momentum": 0.9, "params": [0, 1, 2]}]}, "absent", "DEGRADED"),
        (
            {
                "state": {0: {"step": ckpt_states.STEP}},
                "param_groups": [{"betas": (0.9, 0.99), "params": [0]}],
            },
            "absent",
            "DEGRADED",
        ),
        ({"state": {}, "param_groups": [{"momentum": 0, "params": [0, 1, 2]}]}, "present", "EXACT"),
    ],
    ids=["no-groups", "a-list", "no-state", "adam", "momentum", "adam-counts-only", "plain-sgd"],
)
@pytest.mark.parametrize(("form", "name"), [(make.hf, "optimizer.pt"), (make.accelerate, "optimizer.bin")])
def test_an_optimizer_without_its_moments_is_seen(
    form: Callable[[Path], Path], name: str, held: Any, presence: str, verdict: str, tmp_path: Path
) -> None:
    path = form(tmp_path)
    torch.save(held, path / name)
    report = check(path)
    assert report.found.states["optimizer"] == presence
    # Accelerate keeps no step: an optimizer without moments may have been saved before the first one.
    assert report.verdict == verdict


def test_weights_without_a_gradient_are_normal_where_the_seal_says_so(tmp_path: Path) -> None:
    path = make.hf(tmp_path / "labs")
    held = torch.load(path / "optimizer.pt", weights_only=True)
    del held["state"][1]
    torch.save(held, path / "optimizer.pt")
    assert check(path).verdict == "DEGRADED" and "moments-few" in codes(check(path), "notice")
    seal(tmp_path, path, "run")
    assert check(path).verdict == "EXACT"


@pytest.mark.fault
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(name: str) -> None:
    report = without_rights(closed(name), check)
    assert report.verdict == "BROKEN"
    told = [one for one in report.found.findings if one.severity == "error" and one.path == name]
    assert [one.code for one in told] == ["file-unreadable"]
    assert "Permission denied" in told[0].message and "chmod" in told[0].mend
    assert codes(report, "error") <= {"file-unreadable", "weights-missing"}


@pytest.mark.fault
def test_a_folder_that_may_not_be_read_leaves_the_others_to_be_checked() -> None:
    def two(root: Path) -> Path:
        make.hf(root)
        (root / "checkpoint-4").mkdir(mode=0)
        return root

    several = without_rights(two, inspect)
    assert isinstance(several, Several) and several.chosen
    assert several.chosen.found.path.name == "checkpoint-5" and several.verdict == "EXACT"
    assert codes(several.reports[0]) == {"file-unreadable"}
    with pytest.raises(InputError, match="checkpoint-4: cannot read: Permission denied"):
        without_rights(two, lambda root: inspect(root / "checkpoint-4") if os.geteuid() else None)


def test_one_of_ours_without_its_manifest_is_broken_under_any_name(tmp_path: Path) -> None:
    path = make.ours(tmp_path).rename(tmp_path / "copied")
    (path / "manifest.json").unlink()
    report = check(path)
    assert report.found.format == "labassist" and report.verdict == "BROKEN"


def test_the_generators_of_a_plain_file_are_known_by_the_names_that_people_use(tmp_path: Path) -> None:
    tensors = ckpt_states.weights()
    held = {"model": tensors, "optimizer": ckpt_states.optimizer_state(tensors), "scheduler": None}
    torch.save(held | {"torch_rng": torch.get_rng_state(), "dataloader": {"at": 3}}, tmp_path / "mine.pt")
    assert check(tmp_path / "mine.pt").verdict == "EXACT"
    torch.save(held, tmp_path / "mine.pt")
    told = [one for one in check(tmp_path / "mine.pt").found.findings if one.state == "rng"]
    assert told[0].code == "format-limit" and told[0].message.startswith("no key that is known here")


def test_a_folder_with_loose_files_beside_folders_reports_all(tmp_path: Path) -> None:
    make.hf(tmp_path)
    torch.save({"model": ckpt_states.weights(), "step": 9000}, tmp_path / "best.pt")
    shutil.copy(tmp_path / "checkpoint-5" / "model.safetensors", tmp_path)
    shutil.copy(tmp_path / "checkpoint-5" / "training_args.bin", tmp_path)
    several = inspect(tmp_path)
    assert isinstance(several, Several) and several.chosen
    names = [report.found.path.name for report in several.reports]
    assert names == [tmp_path.name, "checkpoint-5", "best.pt"]
    assert several.chosen.found.path.name == "checkpoint-5" and several.verdict == "EXACT"


@pytest.mark.parametrize(
    "name", ["torch.hub.load", "torch.serialization.load", "torch.load", "numpy.testing.x", "joblib.y"]
)
def test_what_loads_other_code_would_run(name: str) -> None:
    module, _, what = name.rpartition(".")
    assert trust(Global(module, what)) == "hostile"


def test_a_run_is_checked_by_its_id_or_its_folder(tmp_path: Path) -> None:
    path = sealed(tmp_path)
    run = tmp_path / "ledger" / "runs" / "0123abcd"
    (run / "order.json").write_text("{}")
    assert answer("ckpt", "check", str(run), cwd=tmp_path)["step"] == ckpt_states.STEP
    (path.parent.parent.parent / "ledger" / "runs" / "empty").mkdir()
    (tmp_path / "ledger" / "runs" / "empty" / "order.json").write_text("{}")
    for words, what in (("ledger/runs/empty", "no whole checkpoint"), ("", "an empty path")):
        told = labassist("ckpt", "check", words, cwd=tmp_path, status=2).stderr
        assert what in told and told.count("\n") == 1
    nowhere = labassist("ckpt", "check", "nothing", cwd=tmp_path, status=2).stderr
    assert "there is nothing" in nowhere


def test_the_last_run_of_a_workspace_is_checked_by_its_name(tmp_path: Path) -> None:
    lab = new(tmp_path / "lab").workspace.root
    job = ("01-first-loop/train", "--profile", "tiny", *QUICK)
    run = answer("run", *job, cwd=lab)
    for name in ("@last", run["id"]):
        told = answer("ckpt", "check", name, cwd=lab)
        assert {one["verdict"] for one in told["checkpoints"]} == {"EXACT"}


def test_a_pipe_is_no_checkpoint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        inspect(tmp_path / "pipe")


def test_a_state_whose_file_would_run_code_is_not_called_present(tmp_path: Path) -> None:
    path = make.hf(tmp_path)
    held = torch.load(path / "optimizer.pt", weights_only=True)
    torch.save(held | {"more": os.system}, path / "optimizer.pt")
    assert check(path).found.states["optimizer"] == "inconsistent"


def test_a_random_state_that_is_none_is_said_once(tmp_path: Path) -> None:
    path = make.hf(tmp_path)
    torch.save("hello", path / "rng_state.pth")
    told = [one.code for one in check(path).found.findings if one.state == "rng" and one.severity == "error"]
    assert told == ["file-torn"]
