"""Save and load a checkpoint in memory, and say of each state whether it came back. Prints JSON."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import torch
from train import Epochs, Keep, Parts, build, loss_of

STEPS, ALPHABET = 7, 20


def rehearse(keep: Keep, kind: type[Epochs]) -> None:
    """Train a few steps, hand what `keep` names to fresh parts, and compare both sides."""
    c = tomllib.loads(Path(__file__).with_name("train.toml").read_text())
    c |= {"batch": 8, "epochs": 9, "growth": 3, "data": {"rows": 40}}
    c |= {"model": {"width": 4, "hidden": 8, "dropout": 0.1}, "optim": {"lr": 0.01, "warmup": 3}}
    torch.manual_seed(1)
    trained = build(c, ALPHABET, "cpu", 1, kind)
    rows = torch.randint(ALPHABET, (40, c["context"] + 1))
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(trained.model, rows[trained.epochs.draw()])
        trained.scaler.scale(loss).backward()
        trained.scaler.step(trained.optimizer)
        trained.scaler.update()
        trained.schedule.step()
        trained.optimizer.zero_grad()
    kept = {
        name: copy.deepcopy(owner.state_dict()) for name, owner in keep(trained).items() if owner is not None
    }
    torch.manual_seed(2)
    fresh = build(c, ALPHABET, "cpu", 1, kind)
    for name, owner in keep(fresh).items():
        if owner is not None:
            owner.load_state_dict(kept[name])
    print(json.dumps(compare(trained, fresh)))


def compare(trained: Parts, fresh: Parts) -> dict[str, bool]:
    """Return for each state whether the fresh parts go on as the trained ones would."""
    owners = {"model": "model", "optimizer": "optimizer", "scheduler": "schedule", "scaler": "scaler"}
    found = {
        state: same(getattr(trained, part).state_dict(), getattr(fresh, part).state_dict())
        for state, part in owners.items()
    }
    draws = [(trained.epochs.draw(), fresh.epochs.draw()) for _ in range(STEPS)]
    return found | {"data_position": all(torch.equal(ours, theirs) for ours, theirs in draws)}


def same(a: Any, b: Any) -> bool:
    """Say whether two states are equal; functions of a schedule are its settings and not its state."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(one, other) for one, other in zip(a, b, strict=True))
    return bool(a == b)
