"""The first lab's job: a real run repeats, stops, resumes and moves bit for bit, and says what it did."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from labassist.errors import InputError
from labassist.ledger.canonical import decode_number
from labassist.record.environment import environment_for
from labassist.record.inspect import inspect
from labassist.record.lag import LAG
from labassist.record.protocol import Order

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent
LAB = Path("labs") / "01-first-loop"
SIX = ("model", "optimizer", "scheduler", "scaler", "rng", "data_position")


def merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(table)
    for key, value in changes.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) else value
    return result


def tiny(**changes: Any) -> dict[str, Any]:
    table = tomllib.loads((ROOT / LAB / "train.toml").read_text())
    profile = table.pop("profiles")["tiny"]
    del table["schema"]
    return merged(merged(table, profile), changes)


def ordered(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    order: dict[str, Any] = {
        "protocol": 1, "run": folder.name, "job": "01-first-loop/train", "mode": "exact", "seed": 1337,
        "threads": 1, "config": config or tiny(), "inputs": {}, "resume": None, "stop_after": None,
    }  # fmt: skip
    (folder / "order.json").write_text(json.dumps(order | changes))
    return folder


def environ(run_dir: Path) -> dict[str, str]:
    pinned = environment_for("exact", 1337, 1)
    return {**os.environ, **pinned, "PYTHONPATH": str(ROOT), "LABASSIST_RUN_DIR": str(run_dir)}


def train(run_dir: Path, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(LAB / "train.py")]
    return subprocess.run(command, env=environ(run_dir), cwd=root, capture_output=True, text=True)


def curve(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "metrics-rank0.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "t"} for row in rows]


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in (run_dir / "events-rank0.jsonl").read_text().splitlines()]
    return [event for event in told if event["event"] == kind]


def tensors(run_dir: Path, step: int) -> dict[str, str]:
    found: dict[str, str] = inspect(run_dir / "checkpoints" / f"step-{step:08d}")["tensors"]
    return found


def first_difference(one: list[tuple[int, Any]], two: list[tuple[int, Any]]) -> int | None:
    return next((a[0] for a, b in zip(one, two, strict=True) if a != b), None)


def scratch(root: Path) -> Path:
    shutil.copytree(ROOT / LAB, root / LAB, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scratch(tmp_path_factory.mktemp("root"))


@pytest.fixture(scope="module")
def straight(root: Path) -> Path:
    """One run of the tiny profile from beginning to end."""
    run_dir = ordered(root / "ledger" / "straight")
    done = train(run_dir, root)
    assert done.returncode == 0, done.stderr
    return run_dir


@pytest.fixture(scope="module")
def many(root: Path, straight: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run short runs in one process, so that torch is loaded once: name -> run folder, and `stderr`."""
    script = """
import os, sys
sys.path.insert(0, "labs/01-first-loop")
import train
for run_dir in sys.argv[1:]:
    os.environ["LABASSIST_RUN_DIR"] = run_dir
    train.main()
"""
    base = tmp_path_factory.mktemp("many")
    resume = {"run": "straight", "step": 60, "path": str(straight / "checkpoints" / "step-00000060")}
    found: dict[str, Any] = {}
    for state in ("", "model", "optimizer", "scheduler", "rng", "data_position"):
        name = f"without-{state}"
        found[name] = ordered(base / name, resume={**resume, "drop": [state] if state else []}, stop_after=64)
    exploding = {"steps": 60, "clip": "off", "optim": {"lr": 1e30}, "every": {"checkpoint": 10}}
    for word in ("continue", "stop"):
        found[word] = ordered(base / word, tiny(**exploding, on_nan=word))
    plain = {"steps": 3, "model": {"dropout": 0.0}}
    found["large"] = ordered(base / "large", tiny(**plain, batch=8, accumulate=1))
    found["small"] = ordered(base / "small", tiny(**plain, batch=4, accumulate=2))
    command = [sys.executable, "-c", script, *map(str, found.values())]
    done = subprocess.run(command, env=environ(base), cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**found, "stderr": done.stderr}


def test_the_tiny_profile_trains_and_tells_everything(straight):
    rows = curve(straight)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 120
    assert sum(losses[-20:]) / 20 < losses[0] - 0.5
    assert [row["step"] for row in rows if "eval_loss" in row] == [40, 80, 120]
    assert [row["step"] for row in rows if "val_loss" in row] == [120]
    step = next(row for row in rows if row["step"] == 1)
    assert set(step) == {"step", "loss", "lr", "grad_norm", "batch"}
    (hello,), (given,), (finish,) = (events(straight, kind) for kind in ("hello", "input", "finish"))
    assert (hello["total_steps"], hello["tokens_per_step"], hello["resumed_step"]) == (120, 8 * 32, 0)
    assert hello["parameters"] > 0 and hello["flags"]["deterministic_algorithms"]
    assert (given["name"], given["split"]) == ("corpus", {"train": 0.9, "val": 0.1})
    assert (finish["step"], finish["why"]) == (120, "done")


def test_each_checkpoint_is_whole_and_seals_its_curve(straight):
    kept = events(straight, "checkpoint")
    assert [event["step"] for event in kept] == [30, 60, 90, 120]
    data = (straight / "metrics-rank0.jsonl").read_bytes()
    for event in kept:
        manifest = inspect(straight / event["path"])
        assert set(manifest["states"]) == set(SIX)
        assert manifest["states"]["scaler"] == "not_applicable"
        assert (
            event["manifest"]
            == hashlib.sha256((straight / event["path"] / "manifest.json").read_bytes()).hexdigest()
        )
        seal = event["curve"]["metrics-rank0.jsonl"]
        prefix = data[: seal["bytes"]]
        assert hashlib.sha256(prefix).hexdigest() == seal["sha256"]
        assert json.loads(prefix.splitlines()[-1])["step"] == event["step"]


def test_it_repeats_bit_for_bit_in_another_place_on_the_recorded_input(straight, root, tmp_path):
    (given,) = events(straight, "input")
    elsewhere = scratch(tmp_path / "scratch")
    kept = tmp_path / "kept.txt"
    shutil.copy(root / given["path"], kept)
    # An address that cannot answer: a replay must read the recorded input and nothing else.
    config = tiny(data={"url": "https://127.0.0.1:1/none"})
    inputs = {"corpus": {"path": str(kept), "sha256": given["sha256"]}}
    run_dir = ordered(tmp_path / "again", config, inputs=inputs)
    done = train(run_dir, elsewhere)
    assert done.returncode == 0, done.stderr
    assert "no download" not in done.stderr and not (elsewhere / ".labassist").exists()
    assert curve(run_dir) == curve(straight)
    assert tensors(run_dir, 120) == tensors(straight, 120)


def test_stopped_and_resumed_equals_never_stopped(straight, root, tmp_path):
    first = ordered(tmp_path / "first", stop_after=47)
    assert train(first, root).returncode == 0
    assert events(first, "finish")[0]["why"] == "stop"
    checkpoint = first / events(first, "checkpoint")[-1]["path"]
    second = ordered(tmp_path / "second", resume={"run": "first", "step": 47, "path": str(checkpoint)})
    assert train(second, root).returncode == 0
    assert events(second, "hello")[0]["resumed_step"] == 47
    assert curve(first) + curve(second) == curve(straight)
    assert tensors(second, 120) == tensors(straight, 120)


def test_each_state_that_is_left_out_shows(straight, many):
    expected = [row for row in curve(straight) if 60 < row["step"] <= 64]
    found = {}
    for name in ("", "model", "optimizer", "scheduler", "rng", "data_position"):
        rows = curve(many[f"without-{name}"])
        found[name] = [
            first_difference(*([(row["step"], row.get(series)) for row in side] for side in (expected, rows)))
            for series in ("batch", "loss", "lr")
        ]
    assert found == {
        "": [None, None, None],
        "model": [None, 61, None],
        # Its rate is kept with the moments, so that shows at once; the loss only after the first update.
        "optimizer": [None, 62, 61],
        # The rate of the next update is in the optimizer, those after it come from the schedule.
        "scheduler": [None, 63, 62],
        "rng": [None, 61, None],
        "data_position": [61, 61, None],
    }
    assert "resuming without the state rng, as ordered" in many["stderr"]


@pytest.mark.fault
def test_sigterm_saves_and_stops(root, tmp_path):
    run_dir = ordered(tmp_path / "run", tiny(steps=100_000, every={"checkpoint": 100_000}))
    command = [sys.executable, str(LAB / "train.py")]
    with subprocess.Popen(
        command, env=environ(run_dir), cwd=root, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout and child.stdout.readline().startswith("step")
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    (finish,), (kept,) = events(run_dir, "finish"), events(run_dir, "checkpoint")
    assert finish["why"] == "stop" and kept["step"] == finish["step"] == curve(run_dir)[-1]["step"]
    inspect(run_dir / kept["path"])


def test_a_loss_that_explodes_is_recorded_as_what_it_is(many):
    losses = [decode_number(row["loss"]) for row in curve(many["continue"]) if "loss" in row]
    assert len(losses) == 60 and math.isnan(losses[-1])
    bad = next(at for at, loss in enumerate(losses, 1) if not math.isfinite(loss))
    assert events(many["continue"], "finish")[0]["why"] == "done"
    (finish,) = events(many["stop"], "finish")
    # A GPU's losses are seen some steps later, and before anything is kept.
    late = LAG if torch.cuda.is_available() else 0
    assert finish["why"] == "stop" and bad <= finish["step"] <= bad + late
    assert all(event["step"] < bad for event in events(many["stop"], "checkpoint"))


def test_small_batches_add_up_to_a_large_one(many):
    for a, b in zip(curve(many["large"]), curve(many["small"]), strict=True):
        assert a.get("batch") == b.get("batch")
        assert a.get("grad_norm", 0) == pytest.approx(b.get("grad_norm", 0), rel=1e-4)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / LAB))
    for name in ("train", "corpus"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("train")


def test_a_missing_text_is_one_clear_line(lab):
    data = {"path": "no/such.txt", "limit": 0}
    with pytest.raises(InputError, match=r"no/such\.txt: cannot read the input 'corpus'"):
        sys.modules["corpus"].load(Order(config={}), data)


def test_without_a_network_the_built_in_text_is_taken(lab, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus = sys.modules["corpus"]
    path = corpus.find({"path": "", "url": "https://127.0.0.1:1/none", "sha256": "0" * 64})
    assert "no download" in capsys.readouterr().err
    assert not path.is_absolute() and len(path.read_text()) > 100_000
    assert corpus.find({"path": "", "url": "", "sha256": ""}) == path


def test_a_cached_download_is_used_only_when_it_is_the_right_one(lab, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus = sys.modules["corpus"]
    sha256 = hashlib.sha256(b"the text").hexdigest()
    data = {"path": "", "url": "https://127.0.0.1:1/none", "sha256": sha256}
    cached = corpus.keep(corpus.CACHE / f"corpus-{sha256[:12]}.txt", b"the text")
    assert corpus.find(data) == cached and capsys.readouterr().err == ""
    cached.write_bytes(b"half a te")
    assert corpus.find(data) != cached and "no download" in capsys.readouterr().err


def test_the_model_cannot_see_what_comes_next(lab):
    torch.manual_seed(0)
    model = lab.GPT(alphabet=11, context=16, d_model=24, layers=2, heads=3, dropout=0.0).eval()
    x = torch.randint(11, (2, 16))
    changed = x.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 11
    one, two = model(x), model(changed)
    assert torch.equal(one[:, :9], two[:, :9]) and not torch.equal(one[:, 9], two[:, 9])


def test_an_epoch_shows_every_window_once_and_its_place_can_be_kept(lab):
    windows = lab.Windows(length=1000, context=10, batch=4, seed=3)
    first = torch.cat([windows.draw() for _ in range(len(windows.starts) // 4)])
    assert windows.epoch == 0 and len(first.unique()) == len(first)
    assert (first.sort().values.diff() % 10 == 0).all() and first.max() + 10 < 1000
    for _ in range(7):
        windows.draw()
    assert windows.epoch == 1
    other = lab.Windows(length=1000, context=10, batch=4, seed=99)
    other.load_state_dict(windows.state_dict())
    assert all(torch.equal(windows.draw(), other.draw()) for _ in range(60))
    assert windows.epoch == other.epoch == 3


def test_evaluation_is_the_mean_over_every_window(lab):
    torch.manual_seed(0)
    model = lab.GPT(alphabet=7, context=8, d_model=16, layers=1, heads=2, dropout=0.5)
    text = torch.randint(7, (8 * 300 + 3,))
    model.eval()
    with torch.no_grad():
        each = [
            float(model.loss(text[None, at : at + 8], text[None, at + 1 : at + 9]))
            for at in range(0, 2400, 8)
        ]
    assert float(lab.evaluate(model, text)) == pytest.approx(sum(each) / 300, rel=1e-6)
    assert model.training
    state = torch.get_rng_state()
    assert float(lab.evaluate(model, text, at_most=20)) == float(lab.evaluate(model, text, at_most=20))
    assert torch.equal(state, torch.get_rng_state())


def test_the_rate_warms_up_and_falls_to_its_floor(lab):
    rates = [lab.rate_factor(step, 100, 10, 0.1) for step in range(102)]
    assert rates[:11] == sorted(rates[:11]) and rates[10] == 1.0 and rates[0] == pytest.approx(1 / 11)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == rates[101] == pytest.approx(0.1) and rates[55] == pytest.approx(0.55)


def test_the_loop_can_be_read_in_ten_minutes():
    assert len((ROOT / LAB / "train.py").read_text().splitlines()) <= 330
