"""Attention by hand: what it computes, then its gradient. The first place filled in.

    python attention.py              shows who looks at whom among four characters
    python attention.py --check      compares with PyTorch's own attention and its autograd, as JSON

Sizes in the comments: N heads of all windows together, T characters, D numbers a head.
"""

# ruff: noqa: ARG001, F841 - what waits for your lines is not used yet

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

NOT_WRITTEN = torch.empty(0)
"""Stands where your lines are still missing."""


def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each character gathers (N, T, D) and the weights it gathered with (N, T, T).

    All three are (N, T, D). Row t of the weights says how much character t takes of each character.
    """
    scale = 1 / math.sqrt(query.shape[-1])
    ahead = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)  # True: comes later
    scores = query @ key.mT * scale
    scores = scores.masked_fill(ahead, -math.inf)
    weights = F.softmax(scores, dim=-1)
    gathered = weights @ value
    return gathered, weights


def attention_backward(
    d_gathered: Tensor, query: Tensor, key: Tensor, value: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss's gradients to query, key and value, each (N, T, D), from the one to `gathered`."""
    scale = 1 / math.sqrt(query.shape[-1])
    # Gradient, your turn: replace the next line. Walk `attention` backwards, one of its lines at a time.
    #   d_value, d_weights   of C = A B: the gradient to A is dC B^T, the one to B is A^T dC
    #   d_scores             of a softmax row w: w * (dw - the sum of dw * w over the row)
    #   d_query, d_key       the product rule again, and the scale
    d_query = d_key = d_value = NOT_WRITTEN
    return d_query, d_key, d_value


# ---------------------------------------------------------------------------- the comparison


def distance(ours: Tensor, theirs: Tensor) -> float | None:
    """Return the largest difference over the largest value; None where nothing of that shape is there."""
    if ours is NOT_WRITTEN or ours.shape != theirs.shape:
        return None
    return float(((ours - theirs).abs().max() / theirs.abs().max()).detach())


def check() -> dict[str, Any]:
    """Compare both functions with PyTorch's, in 64 bits, where rounding is about 1e-16."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(6, 9, 5, dtype=torch.float64, requires_grad=True) for _ in range(3))
    d_gathered = torch.randn(6, 9, 5, dtype=torch.float64)
    theirs = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    gradients = torch.autograd.grad(theirs, (query, key, value), d_gathered)
    with torch.no_grad():
        ours, weights = attention(query, key, value)
        # The characters from the fifth on become others: what the first four gathered may not move.
        others = [torch.cat((t[:, :4], torch.randn_like(t[:, 4:])), dim=1) for t in (query, key, value)]
        moved, _ = attention(*others)
        scores = (query @ key.mT / math.sqrt(5)).masked_fill(torch.ones(9, 9).triu(1) > 0, -math.inf)
        backward = attention_backward(d_gathered, query, key, value, F.softmax(scores, dim=-1))
    same = distance(ours, theirs)
    names = ("d_query", "d_key", "d_value")
    return {
        "written": {
            "attention": ours is not NOT_WRITTEN and weights is not NOT_WRITTEN,
            "attention_backward": backward[0] is not NOT_WRITTEN,
        },
        "forward": same,
        "leak": None if same is None else float((ours[:, :4] - moved[:, :4]).abs().max()),
        **{name: distance(a, b) for name, a, b in zip(names, backward, gradients, strict=True)},
    }


def show() -> None:
    """Print the weights of four characters with random queries and keys."""
    torch.manual_seed(0)
    _, weights = attention(*torch.randn(3, 1, 4, 8))
    if weights is NOT_WRITTEN:
        print("attention is not written yet: look for `your turn`")
        return
    print("takes from:      1st    2nd    3rd    4th")
    for place, row in enumerate(weights[0].tolist(), 1):
        print(f"character {place}  " + "".join(f"{weight:7.2f}" for weight in row))


if __name__ == "__main__":
    if "--check" in sys.argv:
        print(json.dumps(check()))
    else:
        show()
