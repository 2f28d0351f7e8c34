"""LoRA's parameters, by hand. The place filled in.

python adapters.py              prints them for Qwen2.5-7B
python adapters.py --check      counts the two cases that were measured on a GPU, as JSON
"""

from __future__ import annotations

import json
import sys

from sizes import MODELS, matrices

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def adapter_numbers(model: dict[str, int], rank: int, targets: tuple[str, ...]) -> int:
    """Return how many numbers LoRA trains.

    Beside a matrix of (in, out) stand two small ones: A takes `in` numbers to `rank`, B takes `rank` to `out`.
    """
    block = matrices(model)
    return model["layers"] * sum(rank * (block[name][0] + block[name][1]) for name in targets)


def check() -> dict[str, int]:
    """Return what comes out for the two cases."""
    return {
        "adapters_7b": adapter_numbers(MODELS["qwen2.5-7b"], 16, ATTENTION),
        "adapters_05b": adapter_numbers(MODELS["qwen2.5-0.5b"], 64, ALL),
    }


if __name__ == "__main__":
    found = check()
    if "--check" in sys.argv:
        print(json.dumps(found))
    else:
        print(f"LoRA of rank 16 on Qwen2.5-7B's attention: {found['adapters_7b']:,} numbers")
