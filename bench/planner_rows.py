"""Measured steps as the planner's benchmark reads them: H200 rows (JSON lines) and published ones (TOML)."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labassist.planner import arch  # noqa: E402
from labassist.planner.plan import Plan  # noqa: E402

GIB = 1024**3


@dataclass
class Row:
    """One measured step and what the engines say of it; GiB."""

    name: str
    plan: Plan
    total: float | None
    """By nvidia-smi; None where only the allocator was measured."""
    allocated: float
    step_s: float | None
    source: str
    oom: bool = False
    """It ran out of memory under `cap_gib`."""
    cap_gib: float | None = None
    """What the allocator was allowed; None: the whole card."""
    step_times: list[float] = field(default_factory=list)
    all_reduce_gb_s: float | None = None
    """Measured between two cards; None on one."""
    formula_total: float = 0.0
    formula_allocated: float = 0.0
    dry_allocated: float | None = None
    dry_total: float | None = None

    @property
    def error(self) -> float:
        """The formula's, against nvidia-smi where it was read, else against the allocator."""
        return (
            self.formula_total / self.total - 1 if self.total else self.formula_allocated / self.allocated - 1
        )

    @property
    def quantised(self) -> bool:
        """Whether bitsandbytes' kernels take part: a 4-bit base, or an 8-bit optimizer of all weights."""
        return self.plan.method == "qlora" or (
            self.plan.method == "full" and (self.plan.optimizer.eight_bit or self.plan.optimizer.paged)
        )

    @property
    def key(self) -> str:
        """What names the row in a file of results."""
        return f"{self.source}: {self.name}"


def once(rows: list[Row]) -> list[Row]:
    """Return the rows without those that repeat one: the same step under a cap that it kept within."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row.key, row)
    return list(first.values())


def measured(path: Path) -> list[Row]:
    """Return the rows of a file. Those with an error, or of a model unknown here, are left out by name."""
    rows = []
    for line in path.read_text().splitlines():
        if not line.strip():
            continue
        data = json.loads(line)
        if data.get("error"):
            print(f"left out, it did not finish: {data.get('case') or data.get('arch')}", file=sys.stderr)
            continue
        if data["arch"] not in arch.names():
            print(f"left out, no such model here: {data['arch']}", file=sys.stderr)
            continue
        plan = _plan(data)
        # These rows' 4-bit bases were quantised on the card from a whole 16-bit model, whose splinters stay reserved
        # (a 7B step so made shows 9.81 GiB, loaded the usual way 8.35): only their allocator's peak counts.
        splinters = data["method"] == "qlora" and "case" in data and "layer_by_layer" not in data
        rows.append(
            Row(
                label(plan),
                plan,
                None if splinters else data["nvidia_smi_used_gib"] or None,
                data["peak_alloc_gib"],
                data.get("step_s"),
                path.stem,
                oom=data["oom"],
                cap_gib=data.get("cap_gib"),
                step_times=data.get("step_times", []),
                all_reduce_gb_s=data.get("all_reduce_gb_s"),
            )
        )
    return rows


def _plan(data: dict[str, Any]) -> Plan:
    targets = data.get("targets", "q_proj,k_proj,v_proj,o_proj")
    return Plan(
        arch.load(data["arch"]),
        method=data["method"],
        seq=data["seq"],
        batch=data["batch"],
        checkpointing=data["gc"],
        accumulate=data.get("accum", 1),
        attention=data.get("attn", "sdpa"),
        dtype=data.get("dtype", "bf16"),
        loss=data.get("loss", "chunked").split()[0],
        padded=data.get("padded", False),
        optim=data["optim"],
        lora_r=data.get("r", 16),
        lora_targets=tuple(targets.split(",") if isinstance(targets, str) else targets),
        gpus=data.get("gpus", 1),
        strategy=data.get("strategy", "ddp"),
    ).checked()


def published() -> list[Row]:
    """Return the published rows."""
    rows = []
    for data in tomllib.loads((Path(__file__).parent / "planner_published.toml").read_text())["row"]:
        settings = {"method": "full", "checkpointing": False, **data}
        model, peak = settings.pop("model"), settings.pop("peak")
        plan = Plan(
            arch.load(model),
            **settings,
            optim="adamw_torch",
            seq=2048,
            batch=1,
            loss="full",
            trainer="loop",
            padded=settings.get("attention") != "eager",
            lora_dropout=0.0,
        ).checked()
        rows.append(Row(label(plan), plan, None, peak / GIB, None, "published"))
    return rows


def label(plan: Plan) -> str:
    """Return a row's name: what differs from the settings that most rows were measured with."""
    words = [plan.model.name, plan.method, f"{plan.batch} x {plan.seq}"]
    words.append("checkpointing" if plan.checkpointing else "no checkpointing")
    if plan.dtype != "bf16":
        words.append(plan.dtype)
    if plan.attention != "sdpa":
        words.append(plan.attention)
    if plan.adapted and (plan.lora_r != 16 or plan.lora_targets == ("all-linear",)):
        words.append(f"r {plan.lora_r} {','.join(plan.lora_targets)}")
    # Not the planner's default: the rows were measured with these unless they name another.
    if plan.optimizer.label != ("adamw_torch" if plan.method == "full" else "paged_adamw_8bit"):
        words.append(plan.optimizer.label)
    if plan.loss == "full" and plan.trainer == "trl":
        words.append("full logits")
    if plan.padded and plan.trainer == "trl":
        words.append("padded")
    if plan.accumulate > 1:
        words.append(f"accumulate {plan.accumulate}")
    if plan.gpus > 1:
        words.append(f"{plan.gpus} GPUs {plan.strategy}")
    return ", ".join(words)
