"""A run's document stays small whatever its run does, and nothing of what it names is lost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from command import answer, labassist

from labassist.ledger import canonical, curves, refs, room
from labassist.ledger.objects import Objects
from labassist.workspace import Workspace

SCRIPT = """
from pathlib import Path
from labassist import record

recorder = record.start(total_steps=3)
for number in range(90):
    shard = Path(f"shards/part-{number:05d}.bin")
    shard.parent.mkdir(exist_ok=True)
    shard.write_bytes(b"%d" % number)
    assert recorder.input(f"train/{number}", shard).read_bytes() == b"%d" % number
norms = [f"grad_norm/model.layers.{number}.self_attn.q_proj" for number in range(300)]
for step in range(1, 4):
    recorder.record(step, **{name: step / 7 for name in norms}, loss=1 / step)
recorder.finish(3, "done")
"""


def test_hundreds_of_series_and_inputs_are_recorded_listed_replayed_and_audited(workspace: Workspace) -> None:
    root = workspace.root
    (root / "many.py").write_text(SCRIPT)
    run = answer("run", "--", sys.executable, "many.py", cwd=root)
    assert run["state"] == "finished" and run["last"]["loss"] == 1 / 3
    assert len(canonical.dumps(run)) < room.MAX_START_BYTES
    given = room.inputs(run, Objects(workspace.ledger / "objects"))
    assert [one["name"] for one in given] == [f"train/{number}" for number in range(90)]
    assert len(run["inputs"]) < 20
    replayed = answer("replay", "@last", cwd=root)
    assert replayed["verdict"] == "BITWISE" and replayed["compared"]["series"] == 301
    assert answer("diff", "@last", replayed["run"], cwd=root)["data"] == {}
    found = answer("audit", cwd=root)
    assert found["ok"] and answer("runs", cwd=root)["runs"][0]["id"] == run["id"]
    (root / "shards" / "part-00077.bin").unlink()  # the ledger has its own
    labassist("replay", "@last", cwd=root)
    Objects(workspace.ledger / "objects").path(run["more_inputs"]).unlink()
    problems = answer("audit", cwd=root, status=1)["problems"]
    assert {one["run"] for one in problems} >= {run["id"]}
    assert all("more_inputs" in one["message"] for one in problems)


def test_a_long_row_of_a_living_run_is_read_from_the_end_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics-rank0.jsonl"
    row = ", ".join(f'"norm/{number}": 0.{number}' for number in range(2000))
    path.write_text(f'{{"step": 1, "loss": 4.0}}\n{{"step": 2, "loss": 3.0, {row}}}\n{{"step": 3, "lo')
    assert curves.last_row(path)["loss"] == 3.0
    path.write_text('{"step": 1, "loss": 4.0}\n')
    assert curves.last_row(path) == {"step": 1, "loss": 4.0}
    path.write_text('{"step": 1, "loss": 4.0}\nnot a row\n')
    assert curves.last_row(path) == {}
    assert curves.last_row(tmp_path / "none") == {}


def test_lines_are_few_and_short_and_what_is_left_out_is_counted() -> None:
    lines: list[str] = []
    for number in range(40):
        lines = room.added(lines, f"warning {number}")
        lines = room.added(lines, f"warning {number % 5}")
    assert lines[:11] == [f"warning {number}" for number in range(11)] and lines[11] == "and 29 more"
    assert room.few([f"warning {number}" for number in range(40)]) == lines
    (cut,) = room.few(["x" * 5000])
    assert len(cut) < 300 and cut.endswith("…")
    assert room.added([cut], "x" * 5000) == [cut]


def test_the_last_values_of_losses_and_rates_come_before_all_others() -> None:
    values = {f"a/{number}": 0.5 for number in range(500)} | {"lr": 1e-3, "loss": 2.0}
    kept = room.newest(values)
    assert kept["loss"] == 2.0 and kept["lr"] == 1e-3 and 20 < len(kept) < 200
    few: dict[str, Any] = {"z": 1, "loss": 2.0, "a": "nan:7ff8000000000000"}
    assert list(room.newest(few).items()) == list(few.items())


def test_a_long_configuration_is_cut_and_still_tells_two_apart() -> None:
    flat: dict[str, Any] = {"lr": 1e-3, "modules": ["q_proj"] * 400, "prompt": "x" * 4000 + "a"}
    cut, other = room.settings(flat), room.settings({**flat, "prompt": "x" * 4000 + "b"})
    assert cut["lr"] == 1e-3 and len(canonical.dumps(cut)) < 1000
    assert cut["modules"] == other["modules"] and cut["prompt"] != other["prompt"]
    assert room.settings({"lr": 1e-3, "prompt": "x" * 400}) == {"lr": 1e-3, "prompt": "x" * 400}
    many = room.settings({f"key{number}": number for number in range(3000)})
    assert len(canonical.dumps(many)) < 4000 and many["…"].endswith(" more")


def test_inputs_beyond_the_room_become_an_object_that_is_needed(tmp_path: Path) -> None:
    objects = Objects(tmp_path / "objects")
    entries = [
        {
            "name": f"n{number}",
            "path": "d/" + "x" * 200,
            "bytes": 4,
            "sha256": f"{number:064x}",
            "stored": True,
        }
        for number in range(30)
    ]
    run: dict[str, Any] = {"id": "r"}
    room.place_inputs(run, entries[:2], objects)
    assert run == {"id": "r", "inputs": entries[:2]}
    room.place_inputs(run, entries, objects)
    assert room.inputs(run, objects) == entries and len(canonical.dumps(run)) < 3000
    names = [one.what for one in refs.needed({**run, "code": {}}, objects)]
    assert names == ["more_inputs", *(f"input n{number}" for number in range(30))]
    assert refs.closure([run], objects) == {run["more_inputs"]}
