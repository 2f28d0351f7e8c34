"""Lab 08 as it is shipped: its files, its exercises, how it rounds weights, and all of its runs on a real vLLM."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import answer, labassist

from labassist.workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
LAB = ROOT / "labs" / "08-serve"


def script(name: str) -> Any:
    """One of the lab's scripts as a module."""
    spec = importlib.util.spec_from_file_location(f"lab08_{name}", LAB / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def told(path: Path) -> Any:
    done = subprocess.run([sys.executable, path, "--check"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_lab_reads_without_a_fault(workspace: Workspace) -> None:
    found = answer("labs", "lint", "--static", LAB.name, cwd=workspace.root)
    assert found["ok"], found["labs"][0]["problems"]


def test_every_text_has_its_chinese_twin() -> None:
    texts = sorted(path.name for path in (LAB / "steps").glob("*.md"))
    assert (
        texts and [name for name in texts if name.count(".") == 1 and f"{name[:-3]}.zh.md" not in texts] == []
    )


def test_the_exercises_fail_as_given_and_are_right_when_solved() -> None:
    given, solved = told(LAB / "layer.py"), told(LAB / "solutions" / "layer.py")
    assert given["single"] == 0 and solved["double"] == pytest.approx(2 * solved["single"])
    assert solved["lost"] > 2 * solved["single"]  # what the step's text says of its last line
    given, solved = told(LAB / "tail.py"), told(LAB / "solutions" / "tail.py")
    assert (given["percentile"], solved["percentile"], solved["p95"]) == (2.0, 2.5, 9.5)
    assert sum(one > 1 for one in given["waited"]) == 1 and sum(one > 1 for one in solved["waited"]) == 6


@pytest.mark.parametrize(("bits", "group", "levels"), [(8, 0, 256), (4, 64, 16)])
def test_rounding_moves_no_weight_by_more_than_half_a_level(bits: int, group: int, levels: int) -> None:
    torch = pytest.importorskip("torch")
    quantise = script("quantise")
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    numbers, scale = quantise.rounded(weight, bits, group)
    back = quantise.restored(numbers, scale).float()
    assert numbers.unique().numel() <= levels and scale.shape == (48, 128 // (group or 128))
    wide = scale.float().repeat_interleave(group or 128, 1)
    # Half a level; a whole one at the positive end, which two's complement lacks; and bf16's own rounding.
    inner = numbers < 2 ** (bits - 1) - 1
    off = (back - weight.float()).abs()
    assert bool((off[inner] <= (0.5 * wide + back.abs() / 256)[inner]).all())
    assert bool((off <= wide + back.abs() / 256).all())


def test_four_bit_numbers_are_packed_eight_to_a_word_the_first_lowest() -> None:
    torch = pytest.importorskip("torch")
    quantise = script("quantise")
    numbers = torch.tensor([[-8, -7, 0, 1, 2, 3, 4, 7, 7, 7, 7, 7, 7, 7, 7, 7]], dtype=torch.int8)
    words = quantise.packed(numbers)
    assert words.dtype == torch.int32 and words.shape == (1, 2)
    assert [int(words[0, 0]) >> (4 * at) & 15 for at in range(8)] == [0, 1, 8, 9, 10, 11, 12, 15]
    assert int(words[0, 1]) == -1


def test_a_ratio_is_of_the_same_rounds() -> None:
    """A machine that halves its pace in one round halves both sides: the ratio and its interval do not move."""
    pytest.importorskip("psutil")
    speed = script("speed")
    mean, low, high = speed.ratio([20.0, 10.0, 20.0], [10.0, 5.0, 10.0])
    assert (mean, low, high) == (2.0, 2.0, 2.0)


@pytest.mark.fault
def test_variants_that_were_not_made_are_named_with_what_makes_them(workspace: Workspace) -> None:
    pytest.importorskip("torch")
    speed = script("speed")
    from labassist.errors import InputError
    from labassist.finetune.model_folder import Model

    base = Model("it", workspace.root, workspace.root, "", "", "", "")
    with pytest.raises(InputError, match="is no variant: 'int5'"):
        speed.folders(workspace.root, base, "int5")
    with pytest.raises(InputError, match="labassist run 08-serve/quantise"):
        speed.folders(workspace.root, base, "int4")


@pytest.mark.fault
def test_a_server_that_dies_while_loading_is_said_with_its_last_line(tmp_path: Path) -> None:
    speed = script("speed")
    from labassist.errors import InputError

    log = tmp_path / "vllm.log"
    log.write_text("loading\nRuntimeError: no such kernel\n")
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    with pytest.raises(InputError, match="no such kernel"):
        speed.await_ready(child, "http://127.0.0.1:9", log)


@pytest.mark.fault
def test_without_vllm_the_serving_step_says_how_to_set_it_up(workspace: Workspace) -> None:
    env = {"LABASSIST_VLLM_PYTHON": "", "XDG_CACHE_HOME": str(workspace.root / "none")}
    done = labassist("check", "08/serve", cwd=workspace.root, env=env, status=None)
    assert done.returncode == 1 and "labassist setup vllm" in done.stdout + done.stderr


def test_stop_waits_until_the_record_is_closed(workspace: Workspace) -> None:
    answer("run", "--detach", "--", "sleep", "60", cwd=workspace.root)
    assert answer("stop", "@last", "--wait", cwd=workspace.root)["state"] == "stopped"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_run_of_the_lab_shows_what_it_says(workspace: Workspace, vllm: dict[str, str]) -> None:
    found = answer("labs", "lint", "--run", LAB.name, cwd=workspace.root, env=vllm, deadline=3500)
    assert found["ok"], found["labs"][0]["problems"]
