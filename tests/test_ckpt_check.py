"""`ckpt check`: healthy checkpoints are not blamed; a lost state, a cut file, a flipped byte is reported."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from ckpt_layouts import FORMATS, hf, ours
from ckpt_removal import REMOVERS
from ckpt_states import STEP
from command import answer, labassist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labassist.errors import InputError
from labassist.resume.check import Report, Several
from labassist.resume.check import check as inspect
from labassist.resume.findings import STATES

UNSEEN = {"tokenizer.json", "README.md", "latest", "zero_to_fp32.py"}
"""Files whose content a cut need not change the meaning of."""


def check(path: Path, *args: Any, **options: Any) -> Report:
    answer = inspect(path, *args, **options)
    assert isinstance(answer, Report)
    return answer


def codes(report: Report) -> set[str]:
    return {one.code for one in report.found.findings}


def bad(report: Report) -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in report.found.findings if one.severity in ("warning", "error")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One healthy checkpoint of every format."""
    return {name: make(tmp_path_factory.mktemp(name) / "x") for name, make in FORMATS.items()}


def copy(source: Path, target: Path) -> Path:
    """Copy a checkpoint under its own name."""
    target = target / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return target


@pytest.mark.parametrize("name", FORMATS)
def test_a_healthy_checkpoint_has_no_warning_and_no_error(made: dict[str, Path], name: str) -> None:
    report = check(made[name])
    assert bad(report) == []
    assert report.found.states["model"] == ("absent" if name == "torchdata" else "present")
    assert report.verdict in ("EXACT", "DEGRADED")
    limits = {one.state for one in report.found.findings if one.code == "format-limit"}
    absent = {state for state, presence in report.found.states.items() if presence == "absent"}
    assert absent == limits
    json.dumps(report.document())


@pytest.mark.parametrize(("name", "state"), [(name, state) for name in REMOVERS for state in REMOVERS[name]])
def test_a_state_taken_out_is_reported(made: dict[str, Path], tmp_path: Path, name: str, state: str) -> None:
    path = copy(made[name], tmp_path)
    before = check(path)
    REMOVERS[name][state](path)
    after = check(path)
    assert after.found.states[state] in ("absent", "torn")
    new = [one for one in after.found.findings if one not in before.found.findings]
    assert any(one.state == state and one.severity != "info" for one in new)
    assert after.verdict != "EXACT"
    assert (after.verdict == "BROKEN") == (
        state == "model" or bool({"error"} & {one.severity for one in new})
    )


def test_every_state_that_a_format_keeps_can_be_taken_out(made: dict[str, Path]) -> None:
    for name, removers in REMOVERS.items():
        kept = {
            state
            for state, presence in check(made[name]).found.states.items()
            if presence in ("present", "derived")
        }
        assert set(removers) == kept, name


def tearable(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [file for file in files if file.name not in UNSEEN]


@pytest.mark.fault
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_is_reported(made: dict[str, Path], name: str, data: st.DataObject) -> None:
    path = made[name]
    file = data.draw(st.sampled_from(tearable(path)), label="file")
    whole = file.read_bytes()
    size = data.draw(st.integers(0, len(whole) - 1), label="size")
    if whole[:size].rstrip() == whole.rstrip():
        return  # only white space is lost
    before = {(one.code, one.path) for one in check(path).found.findings}
    try:
        file.write_bytes(whole[:size])
        after = check(path)
    finally:
        file.write_bytes(whole)
    assert after.verdict == "BROKEN"
    new = {(one.code, one.path) for one in after.found.findings if one.severity == "error"} - before
    assert new


@pytest.mark.fault
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_byte_flipped_in_a_file_that_a_manifest_covers_is_reported(
    made: dict[str, Path], data: st.DataObject
) -> None:
    path = made["ours"]
    file = data.draw(st.sampled_from(tearable(path)), label="file")
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1), label="at")
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        file.write_bytes(flipped)
        assert check(path).verdict == "BROKEN"
    finally:
        file.write_bytes(whole)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("change", "size"),
    [
        ({"data_offsets": [16, 80]}, 80),
        ({"data_offsets": [0.0, 64.0]}, 64),
        ({"shape": [-4, -4]}, 64),
        ({"shape": [True, 16]}, 64),
        ({"dtype": "X99"}, 64),
    ],
)
def test_a_header_that_no_reader_takes_is_torn(tmp_path: Path, change: dict[str, Any], size: int) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | change}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    report = check(path)
    assert (report.verdict, "file-torn" in codes(report)) == ("BROKEN", True)


def test_a_name_in_a_file_does_not_steer_the_terminal(tmp_path: Path) -> None:
    made = hf(tmp_path / "x")
    (made / "model.safetensors").unlink()
    index = {"weight_map": {"w": "model-\x1b]0;mine\x07.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    told = labassist("ckpt", "check", str(made), cwd=tmp_path, status=4).stdout
    assert "\\x1b]0;mine\\x07" in told
    assert told.replace("\n", "").isprintable()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_that_the_trainer_cannot_read_is_torn(tmp_path: Path, encoding: str) -> None:
    made = hf(tmp_path / "x")
    state = made / "trainer_state.json"
    state.write_text(state.read_text(encoding="utf-8"), encoding=encoding)
    report = check(made)
    assert (report.verdict, "json-torn" in codes(report)) == ("BROKEN", True)


@pytest.mark.fault
@pytest.mark.parametrize("name", ["hf", "accelerate", "nanogpt"])
def test_a_byte_flipped_in_a_tensor_of_a_pt_file_names_the_member(made: dict[str, Path], name: str) -> None:
    import zipfile

    file = next(
        one for one in tearable(made[name]) if one.name in ("optimizer.pt", "optimizer.bin", "ckpt.pt")
    )
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        info = max(
            (one for one in archive.infolist() if "/data/" in one.filename), key=lambda one: one.file_size
        )
    rng = random.Random(1)
    import torch

    for _ in range(20):
        # The bytes of a member begin after its local header: 30 bytes, the name, and the padding.
        begin = (
            info.header_offset
            + 30
            + sum(
                int.from_bytes(whole[info.header_offset + at : info.header_offset + at + 2], "little")
                for at in (26, 28)
            )
        )
        flipped = bytearray(whole)
        flipped[begin + rng.randrange(info.file_size)] ^= 1 << rng.randrange(8)
        try:
            file.write_bytes(flipped)
            torch.load(file, weights_only=True)  # loads without a word
            report = check(made[name])
            quick = check(made[name], verify=False)
        finally:
            file.write_bytes(whole)
        [found] = [one for one in report.found.findings if one.code == "crc-mismatch"]
        assert info.filename in found.message
        assert "crc-mismatch" not in codes(quick)


def test_quick_reads_no_checksums_but_every_size(made: dict[str, Path], tmp_path: Path) -> None:
    path = copy(made["ours"], tmp_path)
    assert check(path, verify=False).verdict == "EXACT"
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert check(path, verify=False).verdict == "EXACT"
    assert check(path).verdict == "BROKEN"
    file.write_bytes(data[:-1])
    assert check(path, verify=False).verdict == "BROKEN"


def test_the_json_document_has_the_keys_of_the_contract(made: dict[str, Path]) -> None:
    document = check(made["nanogpt"]).document()
    assert list(document) == [
        "format",
        "framework_version",
        "verdict",
        "step",
        "world_size",
        "states",
        "findings",
    ]
    assert tuple(document["states"]) == STATES
    keys = ["code", "severity", "state", "path", "rank", "message", "consequence", "mend"]
    assert document["findings"]
    for one in document["findings"]:
        assert list(one) == keys
        assert one["message"] and one["consequence"] and one["mend"]
    assert document["step"] == STEP


def test_a_folder_says_which_one_to_resume_from(tmp_path: Path) -> None:
    for step in (3, 4, 5):
        hf(tmp_path / "made")
        folder = tmp_path / "run" / f"checkpoint-{step}"
        shutil.copytree(tmp_path / "made" / f"checkpoint-{STEP}", folder)
        shutil.rmtree(tmp_path / "made")
        for name in ("trainer_state.json",):
            state = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(state | {"global_step": step}))
        _at_step(folder, step)
    several = inspect(tmp_path / "run")
    assert isinstance(several, Several)
    document = several.document()
    assert [one["step"] for one in document["checkpoints"]] == [3, 4, 5]
    assert document["resume_from"].endswith("checkpoint-5")
    newest = tmp_path / "run" / "checkpoint-5" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    document = inspect(tmp_path / "run").document()
    assert document["resume_from"].endswith("checkpoint-4")
    assert "newest-incomplete" in [one["code"] for one in document["checkpoints"][-1]["findings"]]
    (tmp_path / "run" / "checkpoint-4" / "scheduler.pt").unlink()
    assert inspect(tmp_path / "run").document()["resume_from"].endswith("checkpoint-3")


def _at_step(folder: Path, step: int) -> None:
    import torch
    from ckpt_states import optimizer_state, scheduler_state, weights

    torch.save(optimizer_state(weights(), step), folder / "optimizer.pt")
    torch.save(scheduler_state(step), folder / "scheduler.pt")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        inspect(tmp_path / "nothing")
    with pytest.raises(InputError):
        inspect(tmp_path)
    (tmp_path / "notes.txt").write_text("no")
    with pytest.raises(InputError):
        inspect(tmp_path / "notes.txt")


def test_nothing_heavy_is_imported_by_a_check(made: dict[str, Path]) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom pathlib import Path\nfrom labassist.resume.check import check\n"
        "for path in sys.argv[1:]: check(Path(path))\n"
        "print([name for name in ('torch', 'numpy', 'safetensors', 'transformers') if name in sys.modules])"
    )
    paths = [str(path) for path in made.values()]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_command_answers_with_the_verdict_as_its_status(made: dict[str, Path], tmp_path: Path) -> None:
    assert answer("ckpt", "check", str(made["hf"]), cwd=tmp_path)["verdict"] == "EXACT"
    degraded = copy(made["hf"], tmp_path)
    os.remove(degraded / "scheduler.pt")
    document = answer("ckpt", "check", str(degraded), cwd=tmp_path, status=3)
    assert {"scheduler-missing", "optimizer-skipped"} <= {one["code"] for one in document["findings"]}
    os.remove(degraded / "model.safetensors")
    text = labassist("ckpt", "check", str(degraded), cwd=tmp_path, status=4).stdout
    assert "BROKEN" in text and "there are no weights" in text and "mend: " in text
    assert labassist("ckpt", "check", "nowhere", cwd=tmp_path, status=2).stderr.count("\n") == 1


def test_ours_takes_facts_for_a_plan_from_its_run(tmp_path: Path) -> None:
    path = ours(tmp_path)
    order = {"seed": 7, "config": {"steps": 20, "batch": 8, "accumulate": 1, "precision": "float32"}}
    (tmp_path / "order.json").write_text(json.dumps(order))
    plan = {"max_steps": 40, "seed": 8, "precision": "bf16", "per_device_train_batch_size": 4}
    report = check(path, plan)
    assert {"plan-schedule", "plan-seed", "plan-precision", "plan-batch"} <= codes(report)
    assert report.verdict == "DEGRADED"


@pytest.mark.filterwarnings("ignore")
def test_the_table_of_formats_is_in_step() -> None:
    import ckpt_table

    kept = Path(__file__).parent.parent / "docs" / "resume-formats.md"
    assert kept.read_text() == ckpt_table.page()


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every part of a structure."""
    found = [at]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        found += places(part, (*at, key))
    return found


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    held = value
    for key in at[:-1]:
        held = held[key]
    held[at[-1]] = new
    return value


@pytest.mark.fault
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_value_of_any_other_kind_anywhere_is_no_crash(
    made: dict[str, Path], name: str, data: st.DataObject
) -> None:
    import hashlib

    import torch

    path = made[name]
    files = [
        file
        for file in tearable(path)
        if file.suffix in (".json", ".pt", ".pth", ".bin", ".pkl", ".ckpt")
        and file.name != "training_args.bin"
    ]
    files = [file for file in files if not file.name.endswith("optim_states.pt")]  # classes that are not here
    if not files:
        return
    file = data.draw(st.sampled_from(files), label="file")
    kept = {one: one.read_bytes() for one in tearable(path)}
    value = json.loads(kept[file]) if file.suffix == ".json" else torch.load(file, weights_only=False)
    at = data.draw(st.sampled_from(places(value)), label="at")
    value = put(value, at, data.draw(plain, label="value"))
    try:
        if file.suffix == ".json":
            file.write_text(json.dumps(value))
        else:
            torch.save(value, file)
        if name == "ours":
            if file.name == "state.json":
                manifest = json.loads((path / "manifest.json").read_bytes())
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                manifest["files"]["state.json"] = {"bytes": file.stat().st_size, "sha256": digest}
                (path / "manifest.json").write_text(json.dumps(manifest))
            (path / "COMMIT").write_text(hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest())
        found = inspect(path, {"dataset_length": 10, "max_steps": 3, "per_device_train_batch_size": 3})
        json.dumps(found.document())
    finally:
        for one, content in kept.items():
            one.write_bytes(content)


def test_a_step_that_fp16_left_out_is_no_fault_in_ours(tmp_path: Path) -> None:
    import hashlib

    path = ours(tmp_path)
    assert "step-mismatch-optimizer" not in codes(check(path))
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert manifest["states"]["scaler"] == "present"
    manifest["step"] += 1  # one more than the optimizer did
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "COMMIT").write_text(hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest())
    report = check(path)
    assert "skipped-steps" in codes(report) and report.verdict == "EXACT"
    manifest["states"]["scaler"] = "not_applicable"
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "COMMIT").write_text(hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest())
    assert "step-mismatch-optimizer" in codes(check(path))
