"""Write docs/resume-formats.md: what `ckpt check` says of each format, whole and with a state taken out.

python tests/ckpt_table.py > docs/resume-formats.md
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

from ckpt_layouts import FORMATS
from ckpt_removal import REMOVERS

from labassist.resume.check import Report, check
from labassist.resume.findings import STATES

NAMES = {
    "ours": "labassist",
    "hf": "HF Trainer",
    "hf-fp16": "HF Trainer, fp16",
    "hf-2-ranks": "HF Trainer, 2 ranks",
    "hf-sharded": "HF Trainer, sharded weights",
    "hf-peft": "HF + PEFT / TRL",
    "hf-only-model": "HF `save_only_model`",
    "accelerate": "Accelerate, stateful loader",
    "accelerate-2-ranks": "Accelerate, 2 ranks",
    "nanogpt": "nanoGPT",
    "plain-pt": "plain `.pt`",
    "plain-legacy": "plain `.pt`, older than the zip format",
    "plain-safetensors": "plain `.safetensors`",
    "dcp": "DCP, torchtitan",
    "deepspeed-zero0": "DeepSpeed, ZeRO off",
    "deepspeed-zero1": "DeepSpeed ZeRO-1",
    "deepspeed-zero2": "DeepSpeed ZeRO-2",
    "deepspeed-zero3": "DeepSpeed ZeRO-3",
    "deepspeed-fp16": "DeepSpeed ZeRO-2, fp16",
    "hf-deepspeed": "HF + DeepSpeed",
    "lightning": "Lightning",
    "lightning-stateful": "Lightning, stateful loader",
    "composer": "Composer",
    "torchtune": "torchtune",
    "nanochat": "nanochat",
    "torchdata": "torchdata's loader state",
}
HEAD = """# What a checkpoint of each format keeps

Made by `python tests/ckpt_table.py > docs/resume-formats.md`; a test keeps it in step. Each checkpoint is a
small one of the format's key layout. Slow tests make the same with the libraries themselves (transformers,
TRL with PEFT and bitsandbytes, Accelerate, Lightning, torchdata, DeepSpeed ZeRO-2 and 3, transformers with
DeepSpeed, DCP) and demand the same answer. By their source's key layout alone stand here: Composer, torchtune,
nanochat, nanoGPT, ZeRO off and ZeRO-1, and everything in fp16, which needs a GPU.

`labassist ckpt check PATH` reads a checkpoint without running anything in it and says for each of the six
states: `present`; `derived` (recomputed on load); `n/a` (not needed here); `absent`. The verdict is `EXACT`
when all that an exact resume needs is there, `DEGRADED` when it resumes but not exactly, `BROKEN` when it is
torn, corrupt or inconsistent.
"""
MIDDLE = """
## With each state taken out

As a lost file or a lost key. In brackets what the check says of it; `·` where the format does not keep the
state.
"""


def report(path: Path) -> Report:
    """Check a checkpoint, which must be one and not several."""
    found = check(path)
    assert isinstance(found, Report)
    return found


def page() -> str:
    """Return the page."""
    healthy, removed = [], []
    for name, make in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = report(make(Path(folder) / "x"))
            cells = [_word(found.found.states[state]) for state in STATES]
            healthy.append([NAMES[name], *cells, found.verdict])
            before = {one.code for one in found.found.findings}
        if name in REMOVERS:
            removed.append([NAMES[name], *(_without(name, state, before) for state in STATES)])
    head = [state.replace("_", " ") for state in STATES]
    tables = [_table(["format", *head, "verdict"], healthy), _table(["format", *head], removed)]
    return HEAD + "\n## Healthy\n\n" + tables[0] + MIDDLE + "\n" + tables[1]


def _word(presence: str) -> str:
    return "n/a" if presence == "not_applicable" else presence


def _without(name: str, state: str, before: set[str]) -> str:
    """Return the verdict on a checkpoint without a state, and the codes that are new."""
    if state not in REMOVERS[name]:
        return "·"
    with tempfile.TemporaryDirectory() as folder:
        path = FORMATS[name](Path(folder) / "x")
        REMOVERS[name][state](path)
        found = report(path)
    new = [one for one in found.found.findings if one.severity != "info" and one.code not in before]
    own = [one.code for one in found.found.findings if one.code == "format-limit" and one.state == state]
    codes = dict.fromkeys([one.code for one in new] + own)
    return f"{found.verdict} ({', '.join(codes)})"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    sys.stdout.write(page())
