"""Measure what training steps really take of a GPU, on cases that the planner has never seen.

    python bench/memory_truth.py --list
    python bench/memory_truth.py --out rows.jsonl                   # one GPU
    python bench/memory_truth.py --group two --out rows2.jsonl      # two GPUs
    python bench/memory_truth.py --device cpu --tiny --out try.jsonl

Each case is a process of its own: a real trainer on a model of a published architecture with random weights, made
on the GPU, nothing fetched. Its row is written as soon as it ends, so a run that is cut off keeps its rows; a case
that has a row in the file already is left out. A row holds the allocator's peak, what it reserved, what nvidia-smi
shows at the end, and the seconds of each step.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEP = Path(__file__).parent / "scripts" / "memory_step.py"
ROOT = Path(__file__).resolve().parent.parent

CAP_GIB = 24217 / 1024 - 0.75
"""What a 24 GB card's driver gives a process (4090), less the CUDA context, which the allocator does not count."""

CASES = {
    # Architectures, methods, lengths, dtypes, optimizers, losses. `4x1024` is batch x tokens, `gc` checkpointing.
    "one": """
        llama-3.2-1b full 4x1024 gc
        llama-3.2-3b lora 4x2048 gc
        llama-3.2-3b lora 2x2048 r=32 targets=all-linear
        llama-3.1-8b qlora 2x2048 gc targets=all-linear
        llama-3.1-8b lora 1x4096 gc
        mistral-7b qlora 1x8192 gc targets=all-linear
        mistral-7b lora 1x2048 optim=adamw_torch
        gemma-2-2b lora 2x2048 gc attn=eager
        gemma-3-1b full 2x1024 gc
        phi-3-mini lora 2x2048 gc targets=all-linear
        phi-4-mini qlora 1x2048 targets=all-linear
        smollm2-1.7b full 2x2048
        smollm2-360m full 8x1024 gc optim=adamw_torch_fused
        qwen3-1.7b full 2x2048 gc optim=adamw_torch_fused
        qwen3-4b lora 1x4096
        gpt2-xl full 4x1024 gc
        gpt2-medium full 4x1024
        qwen2.5-1.5b lora 1x2048 attn=eager
        llama-3.2-1b full 1x2048 gc attn=eager
        llama-3.2-1b full 1x1024 gc dtype=fp32
        qwen2.5-0.5b full 4x1024 dtype=mixed
        qwen2.5-1.5b full 2x2048 gc dtype=mixed
        llama-3.2-3b full 1x2048 gc optim=adamw_bnb_8bit
        qwen2.5-1.5b full 2x1024 gc optim=paged_adamw_8bit
        smollm2-1.7b full 2x1024 gc optim=sgd
        llama-3.2-1b full 2x2048 gc loss=full
        qwen2.5-1.5b lora 2x2048 gc loss=full
        smollm2-1.7b lora 2x2048 loss=full
        llama-3.2-1b lora 4x2048 padded=yes
        qwen2.5-0.5b full 2x1024 gc accum=4
        qwen2.5-7b lora 1x8192 gc
    """,
    # A real cap at what a 24 GB card gives: some should fit, some should not.
    "cap": """
        llama-3.1-8b lora 3x4096 gc
        llama-3.2-1b full 4x2048
        mistral-7b qlora 1x2048 targets=all-linear
        qwen2.5-7b qlora 16x2048 gc
        qwen3-1.7b full 2x2048
        gemma-2-2b lora 2x1024 attn=eager
        gemma-2-2b lora 2x2048 attn=eager
        smollm2-1.7b full 2x2048
        llama-3.2-3b full 1x1024 gc
    """,
    # Enough steps to calibrate on 20 and compare with the next 40.
    "time": """
        qwen2.5-1.5b qlora 4x1024 gc steps=66
        llama-3.2-1b full 2x1024 gc steps=66
        qwen2.5-7b qlora 2x2048 gc steps=66
    """,
    "two": """
        llama-3.2-3b lora 4x2048 gc strategy=ddp
        qwen2.5-1.5b full 2x1024 gc strategy=ddp
        llama-3.1-8b qlora 2x2048 gc targets=all-linear strategy=ddp
        llama-3.2-3b full 1x2048 gc strategy=fsdp
        qwen2.5-1.5b full 2x1024 gc strategy=fsdp
        qwen2.5-1.5b full 2x1024 gc strategy=zero3
        llama-3.2-3b full 1x2048 gc strategy=zero3
        qwen2.5-1.5b full 2x1024 gc strategy=zero2
    """,
}

WHOLE = ("r", "accum", "steps")
MEASURES = ("loaded_gib", "peak_alloc_gib", "peak_reserved_gib", "later_alloc_gib", "nvidia_smi_used_gib")


def cases(groups: list[str]) -> list[dict[str, Any]]:
    """Return the cases of some groups, with the stock trainer's defaults filled in."""
    found = []
    for group in groups:
        for line in filter(None, map(str.strip, CASES[group].splitlines())):
            arch, method, shape, *words = line.split()
            batch, seq = map(int, shape.split("x"))
            case: dict[str, Any] = {
                "case": f"{group}: {line}",
                "arch": arch,
                "method": method,
                "batch": batch,
                "seq": seq,
                "gc": "gc" in words,
                "optim": "adamw_torch" if method == "full" else "paged_adamw_8bit",
                "dtype": "bf16",
                "attn": "sdpa",
                "loss": "chunked",
                "padded": False,
                "accum": 1,
                "steps": 6,
                "gpus": 2 if group == "two" else 1,
                "cap_gib": CAP_GIB if group == "cap" else None,
            }
            if method != "full":
                case |= {"r": 16, "targets": "q_proj,k_proj,v_proj,o_proj", "lora_dropout": 0.05}
            for name, value in (word.split("=") for word in words if "=" in word):
                case[name] = int(value) if name in WHOLE else value == "yes" if name == "padded" else value
            if arch.startswith("phi") and method != "full" and "all-linear" not in case["targets"]:
                case["targets"] = "qkv_proj,o_proj"
            found.append(case)
    return found


class Child:
    """A process that imports what it can without touching the GPU, and then waits for its case."""

    def __init__(self, options: argparse.Namespace, gpus: int) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        words = [str(STEP), "--device", options.device, *(["--tiny"] if options.tiny else [])]
        if gpus > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
            words = [*launcher, *words]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "4"}
        self.folder = tempfile.TemporaryDirectory(prefix="memory-truth-")
        self.request = Path(self.folder.name) / "case.json"
        self.process = subprocess.Popen(
            [sys.executable, *words, "--case", str(self.request)],
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            env={**os.environ, **quiet, "PYTHONPATH": path},
            start_new_session=True,
        )

    def measure(self, case: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Give it a case and return the row: of several processes, the largest figures."""
        part = self.request.with_suffix(".part")
        part.write_text(json.dumps(case))
        part.rename(self.request)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            return {**case, "error": f"stopped after {seconds:.0f} s"}
        paths = sorted(self.request.parent.glob("row-*.json"))
        rows: list[dict[str, Any]] = [json.loads(path.read_text()) for path in paths]
        wrong = [row for row in rows if "error" in row]
        if wrong:
            return wrong[0]
        self.errors.seek(0)
        said = self.errors.read()[-1500:]
        if len(rows) < case["gpus"]:
            return {**case, "error": said or f"status {self.process.returncode}, no row"}
        largest = {name: max(row[name] for row in rows) for name in MEASURES}
        return {**rows[0], **largest}

    def end(self) -> None:
        """Stop it and what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def done(path: Path) -> set[str]:
    """Return the cases that have a row already, those that failed aside."""
    if not path.exists():
        return set()
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {row["case"] for row in rows if "error" not in row}


def short(row: dict[str, Any]) -> str:
    """Return a row as a line to watch."""
    if "error" in row:
        return f"{row['case']}: ERROR {row['error'].strip().splitlines()[-1][:300]}"
    figures = ", ".join(f"{name.removesuffix('_gib')} {row[name]:.2f}" for name in MEASURES)
    step = f"{1000 * row['step_s']:.0f} ms a step" if row["step_s"] else "no step"
    return f"{row['case']}: {'OUT OF MEMORY, ' if row['oom'] else ''}{figures} GiB, {step}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", nargs="+", choices=tuple(CASES), default=["one", "cap", "time"])
    parser.add_argument("--list", action="store_true", help="show the cases and stop")
    parser.add_argument("--only", nargs="+", default=[], help="cases that hold one of these texts")
    parser.add_argument("--out", type=Path, help="append the rows here")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds after which no case is begun")
    parser.add_argument("--each", type=float, default=70.0, help="seconds for one case")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="shrink every model: to try the script")
    options = parser.parse_args()
    chosen = [
        case
        for case in cases(options.group)
        if not options.only or any(text in case["case"] for text in options.only)
    ]
    if options.list or not options.out:
        print("\n".join(case["case"] for case in chosen))
        return 0
    began = time.monotonic()
    finished = done(options.out)
    queue = [case for case in chosen if case["case"] not in finished]
    waiting: Child | None = None
    failed = 0
    for number, case in enumerate(queue):
        left = options.budget - (time.monotonic() - began)
        if left < 5:
            print(f"out of time: {len(queue) - number} cases left", flush=True)
            failed += 1
            break
        if case.get("strategy", "").startswith("zero") and importlib.util.find_spec("deepspeed") is None:
            print(f"left out, there is no deepspeed here: {case['case']}", flush=True)
            continue
        child, waiting = waiting or Child(options, case["gpus"]), None
        # The next one imports meanwhile, unless it would disturb a measurement of time.
        if number + 1 < len(queue) and case["gpus"] == queue[number + 1]["gpus"] == 1 and case["steps"] < 20:
            waiting = Child(options, 1)
        row = child.measure(case, min(options.each, left))
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        failed += "error" in row
        print(f"{time.monotonic() - began:.0f} s  {short(row)}", flush=True)
    if waiting:
        waiting.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
