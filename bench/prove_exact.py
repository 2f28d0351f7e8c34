"""Prove on this machine that a job replays and resumes bit for bit; keep every answer as JSON.

    python bench/prove_exact.py --profile gpu --out bench/results/h200

Makes a workspace, records the job and replays it; records it again, kills its trainer with SIGKILL in the
middle, resumes it and replays the resumed lineage (one uninterrupted run from step 0). Ends with an audit.
Exit status 0 when both verdicts are BITWISE and the audit is clean.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLI = [sys.executable, "-m", "labassist"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", default="01-first-loop/train")
    parser.add_argument("--profile", default="gpu")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="K=V")
    parser.add_argument(
        "--kill-at", type=float, default=0.6, help="fraction of the steps after which to kill"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON answers")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "lab"
        call("new", str(workspace), cwd=Path(folder))
        job = [args.job, "--profile", args.profile, *(f"--set={one}" for one in args.sets)]
        run = answer("run", *job, cwd=workspace)
        keep(args.out / "run.json", run)
        replayed = answer("replay", run["id"], cwd=workspace)
        keep(args.out / "replay.json", replayed)
        killed = kill_in_the_middle(job, workspace, args.kill_at)
        keep(args.out / "killed.json", killed)
        resumed = answer("resume", killed["id"], cwd=workspace)
        keep(args.out / "resumed.json", resumed)
        whole = answer("replay", resumed["id"], cwd=workspace)
        keep(args.out / "resumed-replay.json", whole)
        audit = answer("audit", cwd=workspace)
        keep(args.out / "audit.json", audit)
        hardware = workspace / "ledger" / "objects" / run["hardware"]
        keep(args.out / "hardware.json", json.loads(hardware.read_text()))
        randomness = workspace / "ledger" / "objects" / run["randomness"]
        keep(args.out / "randomness.json", json.loads(randomness.read_text()))
    print(f"replay            {replayed['verdict']}  {replayed['compared']}")
    print(f"kill -9 at step {killed['step']}, resumed from {resumed['resumed_from']['step']}")
    print(f"resumed, replayed {whole['verdict']}  {whole['compared']}")
    print(f"audit             {'ok' if audit['ok'] else audit['problems']}")
    good = replayed["verdict"] == whole["verdict"] == "BITWISE" and audit["ok"]
    print("PASS" if good else "FAIL")
    return 0 if good else 1


def kill_in_the_middle(job: list[str], workspace: Path, fraction: float) -> dict[str, Any]:
    """Start the job detached, kill its trainer at a fraction of its steps, and return its closed record."""
    run: dict[str, Any] = answer("run", *job, "--detach", cwd=workspace)
    folder = workspace / "ledger" / "runs" / run["id"]
    total = 0
    while not total or last_step(folder / "metrics-rank0.jsonl") < fraction * total:
        time.sleep(0.01)
        if not total:
            total = answer("show", run["id"], cwd=workspace).get("total_steps", 0)
    os.kill(json.loads((folder / "alive").read_text())["trainer"], signal.SIGKILL)
    while run["state"] == "running":
        time.sleep(0.2)
        run = answer("show", run["id"], cwd=workspace)
    return run


def last_step(path: Path) -> int:
    """Return the last whole line's step, 0 before there is one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 1000))
            lines = file.read().split(b"\n")[:-1]
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (FileNotFoundError, ValueError):
        return 0


def answer(*words: str, cwd: Path) -> Any:
    return json.loads(call(*words, "--json", cwd=cwd))


def call(*words: str, cwd: Path) -> str:
    done = subprocess.run([*CLI, *words], cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"labassist {' '.join(words)} gave no answer (status {done.returncode})")
    return done.stdout


def keep(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
