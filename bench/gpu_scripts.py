"""Prove on this machine that a stock TRL script with the one line replays and resumes bit for bit.

    python bench/gpu_scripts.py --models fp16 1.5b 7b --together --out bench/results/h200-scripts

For each model, in exact mode: record the script, replay it, record it again and kill it with SIGKILL,
resume it, and compare the joined run with the uninterrupted one, every step and every tensor. Then the
last model trains with the line and without, in alternating steps (ratio ≥ 0.995). Every answer is kept as
JSON. Exit status 0 when all of it holds. `--models tiny` tries the same on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CLI = [sys.executable, "-m", "labassist"]
SCRIPT = Path(__file__).parent / "scripts" / "qlora.py"
RATIO = 0.995


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["1.5b", "7b"], choices=("tiny", "fp16", "1.5b", "7b"))
    parser.add_argument("--together", action="store_true", help="prove the models at the same time")
    parser.add_argument("--only", choices=("proof", "throughput"), help="leave the other out")
    parser.add_argument("--bases", type=Path, help="folder for the base models (default: a temporary one)")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no step is begun")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON answers")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bases = args.bases or Path(folder) / "bases"
        proofs = [Proof(model, Path(folder), bases, args.out, began + args.budget) for model in args.models]
        if args.only != "throughput":
            with ThreadPoolExecutor(len(proofs) if args.together else 1) as pool:
                for proof, answer in zip(proofs, pool.map(Proof.model, proofs), strict=True):
                    found[proof.name] = answer
                    keep(args.out / "summary.json", found)
            for proof in proofs:
                found[proof.name]["audit"] = proof.audit()
        if args.only != "proof":
            found["throughput"] = proofs[-1].throughput()
        found["seconds"] = round(time.monotonic() - began)
    keep(args.out / "summary.json", found)
    good = args.only == "proof" or found["throughput"].get("ratio", 0) >= RATIO
    for model in args.models if args.only != "throughput" else ():
        one = found[model]
        good = good and one.get("replay") == one.get("resumed") == "BITWISE" and one["audit"] == "ok"
    print(json.dumps(found, indent=1))
    print("PASS" if good else "FAIL")
    return 0 if good else 1


class Proof:
    """The runs of one model, in a workspace of their own."""

    def __init__(self, name: str, folder: Path, bases: Path, out: Path, deadline: float) -> None:
        self.name = name
        self.workspace = folder / f"lab-{name}"
        self.bases = bases
        self.out = out
        self.deadline = deadline
        self.answers: dict[str, Any] = {}
        subprocess.run([*CLI, "new", str(self.workspace)], check=True, stdout=subprocess.DEVNULL)
        shutil.copy(SCRIPT, self.workspace / "qlora.py")

    def model(self) -> dict[str, Any]:
        """Record, replay, kill and resume; return what came of it."""
        base = self.base()
        script = ["--mode", "exact", "--threads", "1", "--"]
        script += ["python", "qlora.py", "train", self.name, str(base)]
        run = self.answer("run", script)
        told: dict[str, Any] = {"steps": run.get("step"), "state": run.get("state")}
        if run.get("state") != "finished":
            log = self.folder(run) / "log.txt"
            print(log.read_text()[-3000:] if log.exists() else "no log", flush=True)
            return told
        replayed = self.answer("replay", [run["id"]])
        told |= {"replay": replayed.get("verdict"), "compared": replayed.get("compared")}
        killed = self.answer("run", script, as_="killed", KILL_AT="8")
        told["killed_by"] = killed.get("signal")
        resumed = self.answer("resume", [killed.get("id", "@last")], as_="resumed")
        told["resumed_from"] = (resumed.get("resumed_from") or {}).get("step")
        unlike = self.answer("diff", [run["id"], resumed.get("id", "@last")])
        if unlike:
            told["resumed"] = "BITWISE" if equal(unlike) else "DIVERGED"
            told["resumed_steps"] = unlike["curves"]["loss"]["equal"]
            told["resumed_tensors"] = unlike["checkpoints"]["equal"]
        log = self.folder(resumed) / "log.txt"
        if log.exists():
            told["said"] = [line for line in log.read_text().splitlines() if line.startswith("labassist:")]
        return told

    def base(self) -> Path:
        """Return the folder of the base model, making it at the first time."""
        base = self.bases / self.name
        if not base.exists():
            self.timed("make", [sys.executable, str(SCRIPT), "make", self.name, str(base)])
        return base

    def folder(self, run: dict[str, Any]) -> Path:
        """Return the folder of a run."""
        return self.workspace / "ledger" / "runs" / str(run.get("id"))

    def throughput(self) -> Any:
        """Return the ratio of the throughput with the line to that without; exact mode on both sides."""
        result = self.out / "throughput.json"
        script = ["python", "qlora.py", "pair", self.name, str(self.base()), str(result.resolve())]
        self.answer("run", ["--mode", "exact", "--threads", "1", "--", *script], as_="pair")
        return json.loads(result.read_text()) if result.exists() else {}

    def audit(self) -> Any:
        """Return `ok`, or the problems that the audit of the workspace names."""
        found = self.answer("audit", [])
        return "ok" if found.get("ok") else found.get("problems")

    def answer(self, verb: str, words: list[str], as_: str = "", **env: str) -> dict[str, Any]:
        """Return the JSON answer of a command, and keep it."""
        text = self.timed(as_ or verb, [*CLI, verb, "--json", *words], **env)
        document: dict[str, Any] = json.loads(text) if text.strip() else {}
        self.answers[as_ or verb] = document
        keep(self.out / f"{self.name}.json", self.answers)
        return document

    def timed(self, what: str, command: list[str], **env: str) -> str:
        """Run a command, say how long it took, and return what it printed."""
        if time.monotonic() > self.deadline:
            print(f"left out for time: {self.name} {what}", flush=True)
            return ""
        began = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.workspace,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, **env},
        )
        print(
            f"{self.name} {what}: status {done.returncode}, {time.monotonic() - began:.1f} s",
            flush=True,
        )
        return done.stdout


def equal(unlike: dict[str, Any]) -> bool:
    """Say whether `diff` found the same code, configuration, curves and tensors."""
    series = unlike["curves"].values()
    tensors = unlike["checkpoints"]
    return (
        unlike["code"]["same"]
        and not unlike["config"]
        and all(one["compared"] and not one["first_difference"] for one in series)
        and bool(tensors["compared"])
        and not tensors["first_difference"]
    )


def keep(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
