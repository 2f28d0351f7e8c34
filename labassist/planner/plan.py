"""What is planned: a model, a method and the settings of a trainer, with the stock trainer's defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from labassist.errors import InputError, did_you_mean
from labassist.planner import optim as optimizers
from labassist.planner.arch import Architecture

METHODS = ("full", "lora", "qlora", "inference")
DTYPES = ("bf16", "fp32", "mixed")
ATTENTIONS = ("sdpa", "eager", "flash")
LOSSES = ("chunked", "full")
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")
TRAINERS = ("trl", "loop")

STOCK_OPTIMIZER = "adamw_torch_fused"
"""What transformers 5 and TRL 1.16 take with torch 2.8 or later where nothing is said (TrainingArguments.optim)."""

LIMITS = {"seq": 10_000_000, "batch": 100_000, "accumulate": 1_000_000, "gpus": 65_536, "lora_r": 65_536}
"""Sizes beyond these are typing mistakes."""


@dataclass(frozen=True)
class Plan:
    """One planned run. Defaults are those of TRL 1.16's SFTTrainer."""

    model: Architecture
    method: str = "qlora"
    dtype: str = "bf16"
    """bf16: weights in bf16; fp32; mixed: fp32 weights under bf16 autocast."""
    optim: str = ""
    """Empty: `STOCK_OPTIMIZER`, whatever the method."""
    seq: int = 1024
    batch: int = 8
    accumulate: int = 1
    checkpointing: bool = True
    attention: str = "sdpa"
    lora_r: int = 16
    lora_targets: tuple[str, ...] = ()
    """Empty: the attention's projections."""
    lora_dropout: float = 0.05
    loss: str = "chunked"
    gpus: int = 1
    strategy: str = "ddp"
    trainer: str = "trl"
    """trl; loop: a plain PyTorch loop, which keeps gradients and logits and has no autocast in bf16."""
    padded: bool = False
    """The batch holds padding: an explicit mask, and keys and values repeated for every query head."""

    @property
    def trains(self) -> bool:
        """Whether anything is trained."""
        return self.method != "inference"

    @property
    def adapted(self) -> bool:
        """Whether only LoRA pairs are trained."""
        return self.method in ("lora", "qlora")

    @property
    def optimizer(self) -> optimizers.Optimizer:
        """The optimizer that is meant."""
        return optimizers.describe(self.optim or STOCK_OPTIMIZER)

    @property
    def autocast(self) -> bool:
        """Whether the forward runs under bf16 autocast."""
        return self.dtype == "mixed" or (self.dtype == "bf16" and self.trainer == "trl")

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients are there already when the last backward begins."""
        return self.trainer == "loop" or self.accumulate > 1

    @property
    def tokens(self) -> int:
        """Tokens of one forward on one GPU."""
        return self.batch * self.seq

    @property
    def trainable(self) -> int:
        """Parameters that are trained."""
        if not self.trains:
            return 0
        if self.method == "full":
            return self.model.parameters
        pairs = self.model.adapters(self.lora_r, self.lora_targets)
        return self.model.layers * sum(count for _, count in pairs)

    @property
    def trained_bytes(self) -> int:
        """Bytes of a number in the trained parameters, which is that of their gradients too."""
        if self.method == "lora":
            return 4
        return 2 if self.dtype == "bf16" else 4

    def checked(self) -> Plan:
        """Return the plan itself. Raises InputError on a value that cannot be."""
        choices = {
            "method": METHODS,
            "dtype": DTYPES,
            "attention": ATTENTIONS,
            "loss": LOSSES,
            "strategy": STRATEGIES,
            "trainer": TRAINERS,
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(
                    f"{value!r} is none of {', '.join(allowed)}{did_you_mean(str(value), allowed)}",
                    where=f"--{name}",
                )
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= limit:
                raise InputError(f"{value} is not from 1 to {limit:,}", where="--" + name.replace("_", "-"))
        if not self.trains and self.gpus > 1:
            raise InputError(
                "one model served over several cards (tensor parallelism) is not covered",
                where=f"--gpus {self.gpus}",
                mend="plan one card, each with a copy of the model",
            )
        if 0 < self.model.positions < self.seq:
            raise InputError(
                f"{self.model.name} has learned {self.model.positions:,} positions, and no more",
                where=f"--seq {self.seq}",
                mend=f"give --seq {self.model.positions} or less",
            )
        if not 0 <= self.lora_dropout < 1:
            raise InputError(f"{self.lora_dropout} is not from 0 to below 1", where="--lora-dropout")
        if self.method == "qlora" and self.dtype != "bf16":
            raise InputError(
                "a 4-bit base computes in bf16 here", where=f"--dtype {self.dtype}", mend="leave --dtype out"
            )
        if self.method == "qlora" and self.gpus > 1 and self.strategy in ("zero3", "fsdp"):
            raise InputError(
                "sharding a 4-bit base needs storage that this does not model",
                where=f"--strategy {self.strategy}",
                mend="use --strategy ddp, or --method lora",
            )
        _ = self.optimizer, self.trainable
        return self

    def with_(self, **changes: Any) -> Plan:
        """Return the plan with some values changed."""
        return replace(self, **changes)

    def settings(self) -> dict[str, Any]:
        """Return the settings as a person set or left them, for JSON: defaults filled in."""
        values = asdict(replace(self, model=None))  # type: ignore[arg-type]
        targets = [matrix.name for matrix in self.model.targeted(self.lora_targets)] if self.adapted else []
        values |= {"model": self.model.name, "optim": self.optimizer.label, "lora_targets": targets}
        if not self.adapted:
            for name in ("lora_r", "lora_targets", "lora_dropout"):
                values.pop(name)
        if not self.trains:
            for name in ("optim", "accumulate", "checkpointing", "loss", "trainer", "padded"):
                values.pop(name)
        return values
