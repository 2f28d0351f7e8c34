"""Optimizers by transformers' names, and the bytes that each keeps.

Sources: torch.optim.AdamW (two moments in the parameter's dtype; the foreach form makes one list of
temporaries as large as the parameters it updates, the fused form none) and bitsandbytes' optimizers (a tensor
of 4,096 numbers or more keeps two uint8 moments and an fp32 maximum of each for every 256; smaller ones fp32;
paged states of 100,000 numbers or more lie in managed memory that the driver may evict to the host).
"""

from __future__ import annotations

from dataclasses import dataclass

from labassist.errors import InputError, did_you_mean

EIGHT_BIT_FROM = 4096
PAGED_FROM = 100_000
BLOCK = 256


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer's name implies."""

    label: str
    name: str
    """adamw or sgd."""
    moments: int
    fused: bool = False
    eight_bit: bool = False
    paged: bool = False

    @property
    def in_place(self) -> bool:
        """Whether its update makes no temporaries."""
        return self.fused or self.eight_bit or self.paged or self.name == "sgd"

    def pages(self, count: int) -> bool:
        """Say whether the state of a tensor of `count` numbers lies in managed memory."""
        return self.paged and count >= PAGED_FROM

    def buffers(self, count: int) -> list[int]:
        """Return the bytes of each state buffer of an 8-bit optimizer for a tensor of `count` numbers."""
        if count < EIGHT_BIT_FROM:
            return [4 * count] * self.moments
        return [count] * self.moments + [4 * -(-count // BLOCK)] * self.moments


_ADAMW = {
    "adamw_torch": Optimizer("adamw_torch", "adamw", 2),
    "adamw_torch_fused": Optimizer("adamw_torch_fused", "adamw", 2, fused=True),
    "adamw_bnb_8bit": Optimizer("adamw_bnb_8bit", "adamw", 2, eight_bit=True),
    "adamw_8bit": Optimizer("adamw_8bit", "adamw", 2, eight_bit=True),
    "paged_adamw_8bit": Optimizer("paged_adamw_8bit", "adamw", 2, eight_bit=True, paged=True),
    "paged_adamw_32bit": Optimizer("paged_adamw_32bit", "adamw", 2, paged=True),
    "sgd": Optimizer("sgd", "sgd", 0),
}

NAMES = tuple(_ADAMW)


def describe(name: str) -> Optimizer:
    """Return an optimizer by transformers' name. Raises InputError with the nearest names."""
    try:
        return _ADAMW[name]
    except KeyError:
        raise InputError(
            f"the memory of the optimizer {name!r} is not known here{did_you_mean(name, NAMES)}",
            where="--optim",
            mend=f"choose from {', '.join(NAMES)}",
        ) from None
