"""One block of the model by hand, and its gradient. Three places wait for you: look for `your turn`.

    python block.py              says how far it is
    python block.py --check      compares with the Block of train.py and its autograd, as JSON

It stands on your attention.py. Sizes: B windows, T characters, C numbers a character, H heads.
"""

# ruff: noqa: ARG001 - what waits for your lines is not used yet

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from attention import NOT_WRITTEN, attention, attention_backward, distance
from torch import Tensor
from train import Block

Weights = dict[str, Tensor]
EPSILON = 1e-5  # of LayerNorm: keeps the square root away from 0


def norm(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return x with mean 0 and variance 1, times the gain; and what the way back needs, n and r."""
    centred = x - x.mean(dim=-1, keepdim=True)
    r = (centred.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt()
    n = centred * r
    return n * gain, n, r


def norm_backward(dy: Tensor, gain: Tensor, n: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients to x (B, T, C) and to the gain (C,)."""
    # Norm, your turn: replace the next line.
    #   d_gain   dy * n, added up over windows and characters
    #   dn       dy * gain
    #   dx       r * (dn - mean of dn - n * mean of dn * n), both means over the last dimension:
    #            the mean and the size of x were taken out, so nothing flows back along them
    dx = d_gain = NOT_WRITTEN
    return dx, d_gain


def linear_backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients to x and to the weight of y = x weight^T."""
    return dy @ weight, dy.flatten(0, 1).mT @ x.flatten(0, 1)


def gelu(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x times the chance that a normal number is below x, and the slope of that."""
    below = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return x * below, below + x * torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)


def apart(x: Tensor, heads: int) -> Tensor:
    """Return (B, T, C) as (B H, T, C/H), so that every head is a sequence of its own."""
    b, t, c = x.shape
    return x.view(b, t, heads, c // heads).transpose(1, 2).reshape(b * heads, t, c // heads)


def together(x: Tensor, heads: int) -> Tensor:
    """Undo `apart`."""
    bh, t, d = x.shape
    return x.view(bh // heads, heads, t, d).transpose(1, 2).reshape(bh // heads, t, heads * d)


def block(x: Tensor, w: Weights, heads: int) -> tuple[Tensor, dict[str, Any]]:
    """Return the stream after the block, (B, T, C), and everything that the way back needs."""
    a, n1, r1 = norm(x, w["norm1.weight"])
    qkv = [apart(part, heads) for part in (a @ w["attention.query_key_value.weight"].mT).chunk(3, dim=-1)]
    gathered, weights = attention(*qkv)
    mixed = together(gathered, heads)
    middle = x + mixed @ w["attention.out.weight"].mT
    b, n2, r2 = norm(middle, w["norm2.weight"])
    wide = b @ w["widen.weight"].mT
    bent, slope = gelu(wide)
    y = middle + bent @ w["out.weight"].mT
    kept = {"a": a, "n1": n1, "r1": r1, "qkv": qkv, "weights": weights, "mixed": mixed}
    kept |= {"b": b, "n2": n2, "r2": r2, "bent": bent, "slope": slope}
    return y, kept


def block_backward(dy: Tensor, w: Weights, k: dict[str, Any], heads: int) -> tuple[Tensor, Weights]:
    """Return the gradients to x and to each weight. `k` is what `block` kept."""
    g: Weights = {}
    # The second half: middle + out(gelu(widen(norm2(middle)))).
    d_bent, g["out.weight"] = linear_backward(dy, k["bent"], w["out.weight"])
    d_b, g["widen.weight"] = linear_backward(d_bent * k["slope"], k["b"], w["widen.weight"])
    through, g["norm2.weight"] = norm_backward(d_b, w["norm2.weight"], k["n2"], k["r2"])
    # Sum, your turn: `middle` reached y on two ways. The gradient of a sum goes back along both.
    d_middle = through
    # The first half: x + out(attention(norm1(x))).
    d_mixed, g["attention.out.weight"] = linear_backward(d_middle, k["mixed"], w["attention.out.weight"])
    d_qkv = attention_backward(apart(d_mixed, heads), *k["qkv"], k["weights"])
    joined = torch.cat([together(part, heads) for part in d_qkv], dim=-1)
    name = "attention.query_key_value.weight"
    d_a, g[name] = linear_backward(joined, k["a"], w[name])
    through, g["norm1.weight"] = norm_backward(d_a, w["norm1.weight"], k["n1"], k["r1"])
    # Sum, your turn: the same for x.
    dx = through
    return dx, g


# ---------------------------------------------------------------------------- the comparison


def missing() -> str:
    """Return what must be written before a block can be run, in words; empty when all is there."""
    some = torch.ones(1, 2, 2)
    if attention(some, some, some)[0] is NOT_WRITTEN:
        return "attention in attention.py is not written yet"
    if attention_backward(some, some, some, some, some)[0] is NOT_WRITTEN:
        return "attention_backward in attention.py is not written yet"
    if norm_backward(some, some[0, 0], some, some)[0] is NOT_WRITTEN:
        return "norm_backward is not written yet"
    return ""


def check() -> dict[str, Any]:
    """Compare with the Block that train.py trains, with the same weights, in 64 bits."""
    why = missing()
    if why:
        return {"missing": why}
    torch.manual_seed(0)
    heads = 2
    theirs = Block(d_model=12, heads=heads, dropout=0.0).double()
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    x = torch.randn(3, 7, 12, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(3, 7, 12, dtype=torch.float64)
    y = theirs(x)
    y.backward(dy)
    gradients = {name: weight.grad for name, weight in theirs.named_parameters() if weight.grad is not None}
    with torch.no_grad():
        w = {name: weight.detach() for name, weight in theirs.named_parameters()}
        ours, kept = block(x, w, heads)
        dx, g = block_backward(dy, w, kept, heads)
    assert x.grad is not None
    return {
        "missing": "",
        "forward": distance(ours, y),
        "dx": distance(dx, x.grad),
        "weights": {name: distance(g[name], gradients[name]) for name in gradients},
    }


if __name__ == "__main__":
    if "--check" in sys.argv:
        print(json.dumps(check()))
    else:
        print(missing() or "all is written: python block.py --check compares it")
