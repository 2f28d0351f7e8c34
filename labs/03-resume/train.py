"""A small network that guesses the next character, trained epoch by epoch, to be interrupted at any step.

    labassist run 03-resume/train --profile tiny
    labassist ckpt prove 03-resume/train --profile tiny --kill

Sizes in the comments: B rows a batch, T characters a row, V characters in the alphabet.
"""

from __future__ import annotations

import math
import pydoc_data.topics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from labassist import record
from labassist.errors import InputError
from labassist.record import Order


class Guesser(nn.Module):
    """Looks up each character, mixes all of them in one hidden layer, and scores what comes next."""

    def __init__(self, alphabet: int, context: int, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.character = nn.Embedding(alphabet, width)
        self.mix = nn.Linear(context * width, hidden)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(hidden, alphabet)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (B, V) of the character after each row (B, T)."""
        h = F.gelu(self.mix(self.character(x).flatten(1)))
        scores: Tensor = self.score(self.dropout(h))
        return scores


class Epochs:
    """Draws every row once an epoch, in an order that follows from the seed and the epoch alone."""

    def __init__(self, rows: int, batch: int, seed: int) -> None:
        if rows < batch:
            raise InputError(f"{rows} rows are no batch of {batch}", where="data.rows", mend="give more rows")
        self.rows, self.batch, self.seed = rows, batch, seed
        self.steps = rows // batch
        """Steps an epoch; rows that fill no batch wait for another epoch."""
        self.epoch, self.drawn = 0, 0

    def draw(self) -> Tensor:
        """Return the indices of the next batch, (B,)."""
        if self.drawn == self.steps:
            self.epoch, self.drawn = self.epoch + 1, 0
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.rows, generator=generator)
        begin = self.drawn * self.batch
        self.drawn += 1
        return order[begin : begin + self.batch]

    def state_dict(self) -> dict[str, int]:
        """Return the data position: two numbers, because the order can be drawn again."""
        return {"epoch": self.epoch, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after the last batch that was drawn."""
        self.epoch, self.drawn = state["epoch"], state["drawn"]


@dataclass
class Parts:
    """All that changes while training goes on, besides the random generators."""

    model: Guesser
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    epochs: Epochs


Keep = Callable[[Parts], dict[str, Any]]
"""Says what a checkpoint holds, by the name of the state."""


def everything(parts: Parts) -> dict[str, Any]:
    """Return the five states that the job must name; the sixth, `rng`, is kept without being asked."""
    return {
        "model": parts.model,
        "optimizer": parts.optimizer,
        "scheduler": parts.schedule,
        "scaler": parts.scaler if parts.scaler.is_enabled() else None,
        "data_position": parts.epochs,
    }


def build(c: dict[str, Any], alphabet: int, device: str, seed: int, kind: type[Epochs]) -> Parts:
    """Return the parts as a fresh training begins with them."""
    model = Guesser(alphabet, c["context"], **c["model"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=c["optim"]["lr"])
    epochs = kind(c["data"]["rows"], c["batch"], seed)
    steps, warmup = c["epochs"] * epochs.steps, c["optim"]["warmup"]

    def factor(step: int) -> float:
        done = min(1.0, max(0, step - warmup) / max(1, steps - warmup))
        return min(1.0, (step + 1) / (warmup + 1)) * 0.5 * (1 + math.cos(math.pi * done))

    scaler = torch.amp.GradScaler(device, growth_interval=c["growth"], enabled=c["precision"] == "float16")
    return Parts(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor), scaler, epochs)


def load(order: Order, c: dict[str, Any]) -> tuple[int, Tensor, Tensor]:
    """Return the size of the alphabet, and rows to learn from and to evaluate, each (rows, T + 1)."""
    path = order.input("topics", Path(pydoc_data.topics.__file__))
    stride = max(1, c["context"] // 2)
    count = c["data"]["rows"] + c["data"]["rows"] // 5
    text = path.read_text(encoding="utf-8")[: count * stride + c["context"] + 1]
    characters = {character: at for at, character in enumerate(sorted(set(text)))}
    rows = torch.tensor([characters[one] for one in text]).unfold(0, c["context"] + 1, stride)[:count]
    if len(rows) < count:
        raise InputError(
            f"the text gives {len(rows)} rows, not {count}", where="data.rows", mend="take fewer"
        )
    return len(characters), rows[: c["data"]["rows"]], rows[c["data"]["rows"] :]


def loss_of(model: Guesser, rows: Tensor) -> Tensor:
    """Return the mean cross-entropy (nats) of the last character of rows (B, T + 1), given the others."""
    return F.cross_entropy(model(rows[:, :-1]).float(), rows[:, -1])


@torch.no_grad()
def evaluate(model: Guesser, rows: Tensor) -> Tensor:
    """Return the mean loss over all rows, without dropout."""
    model.eval()
    losses = [loss_of(model, part).double() * len(part) for part in torch.split(rows, 1024)]
    model.train()
    return torch.stack(losses).sum() / len(rows)


def train(keep: Keep = everything, kind: type[Epochs] = Epochs) -> None:
    """Train, with checkpoints of what `keep` names."""
    order = record.read_order(Path(__file__).with_name("train.toml"))
    c = order.config
    record.determinism.apply(order.mode, order.seed, order.threads)
    device = c["device"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch sees no GPU here", where="device", mend="take --set device=auto")
    alphabet, rows, unseen = load(order, c)
    rows, unseen = rows.to(device), unseen.to(device)
    parts = build(c, alphabet, device, order.seed, kind)
    model, optimizer, schedule, scaler, epochs = vars(parts).values()
    steps = c["epochs"] * epochs.steps

    recorder = record.start(
        order=order,
        total_steps=steps,
        tokens_per_step=c["batch"],
        parameters=sum(weight.numel() for weight in model.parameters()),
    )
    log = record.Lagged(recorder)
    step = recorder.restore(keep(parts))

    while step < steps and not recorder.stop_requested:
        step += 1
        drawn = epochs.draw()
        with torch.autocast(device, torch.float16, enabled=scaler.is_enabled()):
            loss = loss_of(model, rows[drawn.to(device)])
        # In 16 bits small gradients would be zero: the loss is multiplied, and the gradients divided again.
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), c["clip"])
        rate = optimizer.param_groups[0]["lr"]
        scaler.step(optimizer)  # left out where a gradient overflowed
        scaler.update()
        schedule.step()
        optimizer.zero_grad()

        batch = record.digest(drawn)
        log.record(step, loss=loss.detach(), lr=rate, grad_norm=norm, batch=batch, scale=scale)
        if step % epochs.steps == 0:
            seen = evaluate(model, unseen)
            log.record(step, eval_loss=seen)
            print(f"epoch {step // epochs.steps:3d}  step {step:5d}  eval {float(seen):.4f}", flush=True)
        if step % c["every"]["checkpoint"] == 0:
            recorder.save(step, keep(parts))

    recorder.save(step, keep(parts))
    recorder.finish(step, "done" if step == steps else "stop")


if __name__ == "__main__":
    train()
