"""Rehearse a small card on a big one: the allocator gets no more than the small card would give it."""

from __future__ import annotations

from labassist.errors import InputError
from labassist.planner import cards
from labassist.planner.memory import CONTEXT_GIB

GIB = 1024**3


def allowed_gib(name: str) -> float:
    """Return what PyTorch's allocator can have on a card (`24GB`, `4090`): its usable memory less the context."""
    return cards.find(name).usable_gib - CONTEXT_GIB


def peak() -> str:
    """Return what this process has taken of the card at most, in words; empty without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return ""
    held, reserved = torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB
    return f"at most {held:.2f} GiB in tensors, {reserved:.2f} GiB reserved, {reserved + CONTEXT_GIB:.2f} GiB of the card"


def rehearse(name: str) -> None:
    """Cap this process's allocator as on the card `name`; nothing where it is empty.

    Paged optimizer states lie outside the allocator and are not capped: a small card would move them to the host.
    Raises InputError where there is no GPU, or a smaller one than that.
    """
    if not name:
        return
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "there is no GPU here to rehearse it on", where=f"--card {name}", mend="leave --card out"
        )
    total = torch.cuda.get_device_properties(0).total_memory / GIB
    allowed = allowed_gib(name)
    if allowed > total:
        raise InputError(
            f"this card has {total:.1f} GiB, less than that one",
            where=f"--card {name}",
            mend="leave --card out",
        )
    torch.cuda.set_per_process_memory_fraction(allowed / total, 0)
    print(f"labassist: rehearsing {name}: at most {allowed:.2f} GiB for tensors on this card", flush=True)
