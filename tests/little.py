"""A trainer of the standard library alone, with the real recorder and real checkpoints: a run takes half a second.

Its model is one float and its generator one integer, so that it resumes exactly. `record(lab)` runs it. In its
environment, LITTLE_CRASH is a step after which it fails, LITTLE_ACKS a file that gets each step whose record() has
returned, and LITTLE_BALLAST the bytes of a file in each checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from command import answer

SCRIPT = "little.py"

SOURCE = """
import hashlib, json, os, struct, sys, time
from pathlib import Path

from labassist import record

steps, every, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
poison = [int(word) for word in sys.argv[4:]]
recorder = record.start(total_steps=steps)
acks = os.environ.get("LITTLE_ACKS")
acks = None if acks is None else os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
x, seed = 4.0, recorder.seed
if recorder.resume:
    state = json.loads((recorder.resume / "state.json").read_text())
    x, seed = state["x"], state["seed"]


def durably(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def save(step):
    curve = recorder.seal()
    final = recorder.order.folder / "checkpoints" / f"step-{step:08d}"
    part = final.with_name(final.name + ".tmp")
    part.mkdir(parents=True)
    data = struct.pack("<d", x)
    header = json.dumps({"x": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}).encode()
    files = {
        "model.safetensors": durably(part / "model.safetensors", len(header).to_bytes(8, "little") + header + data),
        "state.json": durably(part / "state.json", json.dumps({"x": x, "seed": seed}).encode()),
    }
    if os.environ.get("LITTLE_BALLAST"):
        files["ballast.bin"] = durably(part / "ballast.bin", bytes(int(os.environ["LITTLE_BALLAST"])))
    tensors = {"model/x": hashlib.sha256(b"F64||" + data).hexdigest()}
    manifest = {"format": "labassist", "version": 1, "run": recorder.order.run, "step": step, "world_size": 1,
                "states": {"model": "present", "rng": "present"}, "files": files, "tensors": tensors}
    sealed = durably(part / "manifest.json", json.dumps(manifest).encode())
    durably(part / "COMMIT", sealed["sha256"].encode())
    part.rename(final)
    recorder.saved({"step": step, "path": f"checkpoints/{final.name}", "curve": curve, "rng": "",
                    "manifest": sealed["sha256"], "bytes": 8, "tensors": 1})


why = "done"
for step in range(recorder.step + 1, steps + 1):
    seed = (seed * 1103515245 + 12345) % 2**31
    x -= 0.01 * x + (seed / 2**31 - 0.5) * 0.01
    loss = x * x
    if step in poison:
        loss = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    recorder.record(step, loss=loss, batch=f"{seed:016x}", **({"val_loss": x * x + 1} if step % every == 0 else {}))
    if acks is not None:
        os.write(acks, f"{step}\\n".encode())
    time.sleep(pause)
    if str(step) == os.environ.get("LITTLE_CRASH"):
        sys.exit(7)
    if step % every == 0 or recorder.stop_requested:
        save(step)
    if recorder.stop_requested and step < steps:
        why = "stop"
        break
recorder.finish(recorder.step, why)
"""


def record(lab: Path, steps: int = 20, every: int = 5, *more: str, pause: float = 0.0, **options: Any) -> Any:
    """Run the trainer in the workspace `lab` and return its record; `more` are steps whose loss is a nan."""
    write(lab)
    words = ["python", SCRIPT, str(steps), str(every), str(pause), *more]
    return answer("run", *options.pop("before", ()), "--", *words, cwd=lab, **options)


def lineage(lab: Path, crash: int = 33) -> tuple[Any, Any]:
    """Record a run of 60 steps that fails at step `crash`, and the one that goes on from its checkpoint."""
    failed = record(lab, 60, 10, status=7, env={"LITTLE_CRASH": str(crash)})
    return failed, answer("resume", failed["id"], cwd=lab)


def write(lab: Path) -> None:
    """Put the script into the workspace."""
    if not (lab / SCRIPT).exists():
        (lab / SCRIPT).write_text(SOURCE)


def start(lab: Path, steps: int = 100_000, every: int = 50, pause: float = 0.01) -> Any:
    """Start it detached."""
    return record(lab, steps, every, pause=pause, before=("--detach",))


def steps_of(lab: Path, run: str) -> list[int]:
    """Return the steps of a run's whole checkpoints on the disk."""
    places = (lab / "ledger" / "runs" / run / "checkpoints").glob("step-????????/COMMIT")
    return sorted(int(place.parent.name[5:]) for place in places)


def lines(lab: Path) -> list[dict[str, Any]]:
    """Return the bodies of the journal's lines."""
    journal = (lab / "ledger" / "journal.jsonl").read_bytes().splitlines()
    return [json.loads(line[65:]) for line in journal]


def ours() -> dict[str, str]:
    """Return an environment in which a child finds labassist as this process does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
