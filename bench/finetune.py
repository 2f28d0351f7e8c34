"""Fine-tuning on a CPU: how long lab 07's tiny job takes, and how long its model takes to load once it is made.

    python bench/finetune.py [--runs N] [--loads N] [--json FILE]

The embedded model is brought and converted first, outside the times. Everything measured is a process of its own, as
the launcher starts it, with the profile's two threads; medians are given.

job     `07-qlora/sft --profile tiny` in exact mode, from the start of its process to its end: imports, load, 8 updates,
        4 checkpoints, 2 evaluations and the exam (under 60 s)
load    the embedded model from its cache, manifest checked and tokenizer included, libraries imported: in 16 bits, and
        in 4, where the CPU quantises every weight anew (each under 3 s)

Beside each time stand the seconds of CPU that the process took, and the machine's load: on a busy machine the time is
the machine's and the CPU seconds, which a neighbour makes longer too, are nearer to the truth.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labassist.finetune import model_folder, models  # noqa: E402
from labassist.record.environment import environment_for  # noqa: E402
from labassist.runs.jobs import load_job, resolve  # noqa: E402
from labassist.workspace import Workspace  # noqa: E402

JOB_S, LOAD_S = 60.0, 3.0
SEED, THREADS = 1337, 2

LOAD = """
import sys, time
from pathlib import Path
import bitsandbytes, torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from labassist.finetune import load, models
four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                          bnb_4bit_compute_dtype=torch.bfloat16) if sys.argv[2] == "4" else None
began, cpu = time.perf_counter(), time.process_time()
base = models.prepare("embedded", Path(sys.argv[1]))
load.tokenizer(base, chat=True)
load.model(base, four)
print(time.perf_counter() - began, time.process_time() - cpu)
"""


def environ(**more: str) -> dict[str, str]:
    """Return the environment of a trainer in exact mode that asks for no network."""
    return {
        **os.environ,
        **environment_for("exact", SEED, THREADS),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        **more,
    }


def job(root: Path, number: int) -> dict[str, float]:
    """Train once in the workspace `root`; return seconds, CPU seconds, and where they went."""
    workspace = Workspace(root)
    config = resolve(load_job(Workspace(ROOT), "07-qlora/sft"), "tiny").nested
    run = workspace.ledger / "runs" / f"bench-{number}"
    run.mkdir(parents=True)
    order = {
        "protocol": 1, "run": run.name, "job": "07-qlora/sft", "mode": "exact", "seed": SEED,
        "threads": THREADS, "config": config, "root": str(root), "cwd": str(root),
    }  # fmt: skip
    (run / "order.json").write_text(json.dumps(order))
    began = time.perf_counter()
    with (run / "log.txt").open("wb") as log:
        command = [sys.executable, "labs/07-qlora/train.py"]
        process = subprocess.Popen(
            command, cwd=root, env=environ(LABASSIST_RUN_DIR=str(run)), stdout=log, stderr=subprocess.STDOUT
        )
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    text = (run / "log.txt").read_text()
    if process.returncode:
        sys.exit(f"the job ended with status {process.returncode}:\n{text[-2000:]}")
    train = sum(map(float, re.findall(r"'train_runtime': '([\d.]+)'", text)))
    evaluated = sum(map(float, re.findall(r"'eval_runtime': '([\d.]+)'", text)))
    return {
        "seconds": seconds,
        "cpu": usage.ru_utime + usage.ru_stime,
        "start": seconds - train,
        "updates": train - evaluated,
        "evaluation": evaluated,
    }


def load(root: Path, bits: int) -> dict[str, float]:
    """Load the model once in a fresh process; return seconds and CPU seconds."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(root), str(bits)],
        env=environ(),
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, cpu = map(float, done.stdout.split())
    return {"seconds": seconds, "cpu": cpu}


def medians(measured: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in measured) for name in measured[0]}


def verdict(name: str, found: dict[str, float], bar: float, more: str) -> dict[str, Any]:
    ok = found["seconds"] < bar
    busy = os.getloadavg()[0]
    text = f"{found['seconds']:.1f} s (< {bar:g}), {found['cpu']:.1f} s of CPU{more}"
    print(
        f"{'PASS' if ok else 'FAIL'}  {name}: {text}; load {busy:.1f} on {os.cpu_count()} cores", flush=True
    )
    return {"name": name, "pass": ok, "load": busy, **found}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    models.prepare("embedded", ROOT)
    with tempfile.TemporaryDirectory(prefix="finetune-") as name:
        root = Path(name)
        (root / "labs").symlink_to(ROOT / "labs")
        model_folder.store(root).parent.mkdir(parents=True)
        model_folder.store(root).symlink_to(model_folder.store(ROOT))
        results = []
        for bits in (16, 4):
            loads = medians([load(root, bits) for _ in range(options.loads)])
            results.append(verdict(f"load in {bits} bits", loads, LOAD_S, f", {options.loads} loads"))
        jobs = medians([job(root, number) for number in range(options.runs)])
        parts = ", ".join(f"{part} {jobs[part]:.1f}" for part in ("start", "updates", "evaluation"))
        results.append(verdict("job", jobs, JOB_S, f", {options.runs} runs ({parts})"))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(result["pass"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
