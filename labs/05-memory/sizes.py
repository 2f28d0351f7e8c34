"""Sizes of two models, and of the linear layers in their blocks."""

from __future__ import annotations

MODELS = {
    "qwen2.5-7b": {
        "hidden": 3584,
        "ffn": 18944,
        "layers": 28,
        "heads": 28,
        "kv_heads": 4,
        "vocabulary": 152064,
        "tied": False,
    },
    "qwen2.5-0.5b": {
        "hidden": 896,
        "ffn": 4864,
        "layers": 24,
        "heads": 14,
        "kv_heads": 2,
        "vocabulary": 151936,
        "tied": True,
    },
}
"""From the models' config.json. `tied`: the output head is the embedding's own matrix."""


def matrices(model: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return the linear layers of one block: name -> (numbers in, numbers out)."""
    hidden, ffn = model["hidden"], model["ffn"]
    narrow = hidden // model["heads"] * model["kv_heads"]  # keys and values have fewer heads than queries
    return {
        "q_proj": (hidden, hidden),
        "k_proj": (hidden, narrow),
        "v_proj": (hidden, narrow),
        "o_proj": (hidden, hidden),
        "gate_proj": (hidden, ffn),
        "up_proj": (hidden, ffn),
        "down_proj": (ffn, hidden),
    }
