"""`ckpt prove` of whole scripts with the real trainers: stock ones, which nobody mends, and one with our line.

Needs the `train` extra.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist

from labassist.workspace import new

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STOCK = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import ckpt_real
trainer = {trainer}
trainer.train()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new(tmp_path_factory.mktemp("stock") / "lab").workspace.root


def prove(lab: Path, name: str, trainer: str, *words: str, line: str = "", status: int = 0) -> Any:
    script = STOCK.format(tests=str(Path(__file__).parent), trainer=trainer)
    (lab / name).write_text(script.replace("trainer.train()", line + "\ntrainer.train()"))
    subprocess.run(["git", "add", name], cwd=lab, check=True)
    subprocess.run(["git", "commit", "-qm", name], cwd=lab, check=True)
    command = ["--", sys.executable, name]
    return answer("ckpt", "prove", *words, "--threads", "1", *command, cwd=lab, status=status, deadline=900)


def test_a_stock_trainer_is_bitwise_from_the_middle_of_an_epoch(lab: Path) -> None:
    found = prove(lab, "hf.py", 'ckpt_real.trainer(Path("hf-out"))', "--at", "5")
    assert found["verdict"] == "BITWISE" and found["resumed_from"]["step"] == 5
    assert found["compared"]["steps"] == 12 and found["compared"]["tensors"] > 20
    assert found["check"]["verdict"] == "EXACT"


QLORA = 'ckpt_real.trl_trainer(Path("{out}"), nf4=True, dropout=0.0)'


def test_a_stock_qlora_script_diverges_at_the_second_resumed_step(lab: Path) -> None:
    found = prove(lab, "qlora.py", QLORA.format(out="q-out"), "--at", "5", status=4)
    assert found["verdict"] == "DIVERGED" and found["culprit"] == "model"
    assert found["differences"]["loss"]["resumed_step"] == 2
    assert "batch" not in found["differences"]
    assert "adapter-dtype" in {one["code"] for one in found["check"]["findings"]}
    assert any("float32" in cause for cause in found["likely_causes"])


def test_with_our_line_it_is_bitwise(lab: Path) -> None:
    line = "from labassist import record; record.attach(trainer)"
    found = prove(lab, "lined.py", QLORA.format(out="l-out"), "--at", "5", line=line)
    assert found["verdict"] == "BITWISE"


@pytest.mark.parametrize("at", ["5", "6"])
def test_with_our_line_a_trainer_goes_on_exactly_inside_and_between_epochs(lab: Path, at: str) -> None:
    """An epoch is six updates: at 6 nothing was fetched ahead, and the loader must draw as the stock one."""
    line = "from labassist import record; record.attach(trainer)"
    found = prove(lab, f"hf-{at}.py", f'ckpt_real.trainer(Path("hf-{at}-out"))', "--at", at, line=line)
    assert found["verdict"] == "BITWISE", found


def test_a_script_that_resumes_by_itself_is_refused(lab: Path) -> None:
    import json

    from command import labassist

    trainer = 'ckpt_real.trainer(Path("self-out"), max_steps=8, save_steps=2)'
    script = STOCK.format(tests=str(Path(__file__).parent), trainer=trainer)
    by_itself = 'trainer.train(resume_from_checkpoint=any(Path("self-out").glob("checkpoint-*")))'
    (lab / "self.py").write_text(script.replace("trainer.train()", by_itself))
    words = ["ckpt", "prove", "--json", "--at", "4", "--threads", "1", "--", sys.executable, "self.py"]
    done = labassist(*words, cwd=lab, status=2)
    assert "by itself" in done.stderr or "finished before" in done.stderr
    assert not done.stdout or json.loads(done.stdout)


@pytest.mark.fault
def test_a_kill_soon_after_a_save_finds_the_checkpoint_sealed(lab: Path) -> None:
    words = ('ckpt_real.trainer(Path("kill-out"))', "--at", "8", "--kill")
    found = prove(lab, "killed.py", *words)
    assert found["verdict"] == "BITWISE" and found["resumed_from"]["step"] in (4, 8)
    script = ["--", sys.executable, "killed.py"]
    again = answer("ckpt", "prove", "--at", "8", "--kill", "--threads", "1", *script, cwd=lab, deadline=600)
    assert again["verdict"] == "BITWISE"
    (lab / "kill-out" / "checkpoint-99").mkdir()
    refused = labassist("ckpt", "prove", "--threads", "1", *script, cwd=lab, status=2, deadline=600)
    assert "checkpoint-99" in refused.stderr
