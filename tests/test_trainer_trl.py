"""A stock TRL QLoRA script (nf4, adamw_8bit): what a resume silently breaks, and the line mends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist, run_folder

from labassist.ledger.store import Ledger
from labassist.workspace import new

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = [pytest.mark.slow, pytest.mark.fault]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("trl") / "lab").workspace.root
    shutil.copy(SCRIPTS / "trl_qlora.py", root)
    with (root / ".gitignore").open("a") as file:
        file.write("base-model\n")
    return root


def run(lab: Path, status: int = 0, **env: str) -> Any:
    words = ("--threads", "1", "--", "python", "trl_qlora.py")
    return json.loads(labassist("run", "--json", *words, cwd=lab, status=status, env=env).stdout)


def test_without_the_line_a_resume_differs_from_the_second_step_on(lab: Path, tmp_path: Path) -> None:
    told = []
    for name, resume in (("whole", None), ("rest", "qlora/checkpoint-10")):
        losses = tmp_path / f"{name}.json"
        env = {"LINE": "none", "LOSSES": str(losses), "OMP_NUM_THREADS": "1"}
        env |= {"RESUME": resume} if resume else {}
        done = subprocess.run(
            [sys.executable, "trl_qlora.py", "seeded", "still"],
            cwd=lab,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told.append(json.loads(losses.read_text()))
    equal = [a == b for a, b in zip(told[0][10:], told[1], strict=True)]
    assert equal[:2] == [True, False] and not all(equal[2:])
    shutil.rmtree(lab / "qlora")


def test_with_the_line_it_replays_and_resumes_after_sigkill_bit_for_bit(lab: Path) -> None:
    whole = run(lab)
    assert (whole["state"], whole["step"]) == ("finished", 16)
    replayed = answer("replay", whole["id"], cwd=lab)
    assert replayed["verdict"] == "BITWISE", replayed
    killed = run(lab, status=128 + signal.SIGKILL, KILL_AT="12")
    resumed = answer("resume", killed["id"], cwd=lab)
    assert resumed["resumed_from"]["step"] == 10
    found = answer("diff", whole["id"], resumed["id"], cwd=lab)
    assert found["curves"]["loss"] == {"compared": 16, "equal": 16, "first_difference": None}
    assert found["checkpoints"]["first_difference"] is None and found["checkpoints"]["compared"] > 100
    assert answer("replay", resumed["id"], cwd=lab)["verdict"] == "BITWISE"
    # It is said once, and kept.
    log = (run_folder(lab, resumed) / "log.txt").read_text()
    assert log.count("came back from the checkpoint as float32 and train on as bfloat16") == 1
    with Ledger.open(lab / "ledger") as ledger:
        mends = ledger.objects.get_json(resumed["randomness"])["mends"]
    [mend] = [one for one in mends if one["mend"] == "dtype"]
    assert (mend["mend"], mend["count"], mend["from"], mend["to"]) == ("dtype", 28, "float32", "bfloat16")
    # Nobody seeded before the adapters were made, so the line did.
    with Ledger.open(lab / "ledger") as ledger:
        seeds = ledger.objects.get_json(whole["randomness"])["seeds"]
    assert (seeds["by"], seeds["seed"], seeds["model_before"]) == ("labassist", 1337, False)


def test_an_evaluation_leaves_the_gradients_of_four_bit_layers() -> None:
    """Where a CPU has AVX512-BF16 the stock layer loses them without an error; elsewhere there is nothing to mend."""
    import bitsandbytes
    import torch

    from labassist.record.trainer_mends import keep_differentiable

    def gradient(*, mended: bool) -> torch.Tensor | None:
        torch.manual_seed(0)
        layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
        model = torch.nn.Sequential(layer.to("cpu"))
        count = keep_differentiable(model) if mended else 0
        assert count in (0, 1) and bool(count) == (mended and repacks)
        given = torch.ones(2, 64, dtype=torch.bfloat16, requires_grad=True)
        with torch.no_grad():
            model.eval()(given.detach())
        model.train()(given).sum().backward()
        return given.grad

    repacks = bitsandbytes.nn.modules.has_avx512bf16()
    assert gradient(mended=True) is not None
    assert (gradient(mended=False) is None) == repacks
