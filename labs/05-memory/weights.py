"""The bytes of a 4-bit model, by hand. One place waits for you: look for `your turn`.

python weights.py               prints them for Qwen2.5-7B
python weights.py --check       counts the two models that were measured on a GPU, as JSON
"""

from __future__ import annotations

import json
import sys

from sizes import MODELS, matrices


def bytes_in_4_bit(model: dict[str, int]) -> int:
    """Return the bytes of the frozen weights under nf4 with double quantisation.

    Only the blocks' linear layers are 4-bit. The embedding and the head stay 16-bit, and so do the biases of q, k
    and v and the two norms of a block and one at the end, which are small.
    """
    # Half a byte; a byte for each 64 numbers; four bytes for each 256 of those.
    each = 0.5 + 1 / 64 + 4 / (64 * 256)
    hidden, narrow = model["hidden"], matrices(model)["k_proj"][1]
    small = model["layers"] * (hidden + 2 * narrow + 2 * hidden) + hidden
    # Weights, your turn. linear: the numbers in all blocks' matrices; tables: those of embedding and head
    # together, which are one table where they are tied.
    linear = tables = 0
    return int(linear * each) + 2 * (tables + small)


def check() -> dict[str, float]:
    """Return the GiB of the two models."""
    return {
        "gib_7b": bytes_in_4_bit(MODELS["qwen2.5-7b"]) / 1024**3,
        "gib_05b": bytes_in_4_bit(MODELS["qwen2.5-0.5b"]) / 1024**3,
    }


if __name__ == "__main__":
    found = check()
    if "--check" in sys.argv:
        print(json.dumps(found))
    else:
        print(f"Qwen2.5-7B in 4 bits: {found['gib_7b']:.2f} GiB")
