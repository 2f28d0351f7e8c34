"""What one block of a language model keeps for its backward, counted in real steps at several lengths.

    labassist run 05-memory/length

Autograd keeps, from the forward to the backward, every tensor that the backward will need. Each of them is seen
here as it is kept, and its storage counted once. Series, at the step of each length: fused_kib (attention in one
kernel), eager_kib (attention spelled out), checkpoint_kib (the block's input alone), fused_bytes_a_token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.checkpoint import checkpoint

from labassist import record
from labassist.errors import InputError


class Block(nn.Module):
    """Attention, then a gated MLP; both read a normalised copy and add to the stream (as Llama and Qwen do)."""

    def __init__(self, hidden: int, ffn: int, heads: int) -> None:
        super().__init__()
        self.heads, self.eager = heads, False
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream (batch, length, hidden) after this block."""
        b, t, c = x.shape
        y = self.norm1(x)
        split = [
            layer(y).view(b, t, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = spelled_out(*split) if self.eager else F.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return x


def spelled_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention step by step: its weights are a table of length x length for every head."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1) @ value


class Kept:
    """Counts the storages that autograd keeps, those of the weights aside."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.sizes: dict[int, int] = {}
        self.held: list[Tensor] = []

    def pack(self, tensor: Tensor) -> Tensor:
        """Note a tensor that is kept. It is held on to, so that no other storage takes its place."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.sizes[storage.data_ptr()] = storage.nbytes()
            self.held.append(tensor)
        return tensor

    @property
    def total(self) -> int:
        """Bytes that are kept."""
        return sum(self.sizes.values())


def kept(block: Block, x: Tensor, how: str) -> int:
    """Return the bytes that a forward keeps; the backward is run too, to see that they are enough."""
    block.eager = how == "eager"
    counted = Kept(block)
    with torch.autograd.graph.saved_tensors_hooks(counted.pack, lambda tensor: tensor):
        y = checkpoint(block, x, use_reentrant=False) if how == "checkpoint" else block(x)
    total = counted.total
    y.sum().backward()
    return total


def main() -> None:
    """Count at each length."""
    order = record.read_order("labs/05-memory/length.toml")
    record.determinism.apply(order.mode, order.seed, order.threads)
    c = order.config
    if c["hidden"] % c["heads"]:
        raise InputError(
            f"{c['hidden']} does not divide into {c['heads']} heads", where="hidden", mend="change one"
        )
    lengths = sorted(set(c["lengths"]))
    block = Block(c["hidden"], c["ffn"], c["heads"])
    recorder = record.start(total_steps=lengths[-1], order=order)
    print("length   one kernel   spelled out   checkpointed (KiB)")
    for length in lengths:
        x = torch.randn(c["batch"], length, c["hidden"], requires_grad=True)
        sizes = {how: kept(block, x, how) for how in ("fused", "eager", "checkpoint")}
        recorder.record(
            length,
            **{f"{how}_kib": size / 1024 for how, size in sizes.items()},
            fused_bytes_a_token=sizes["fused"] / (c["batch"] * length),
        )
        print(f"{length:6}" + "".join(f"{size / 1024:13,.0f}" for size in sizes.values()))
    recorder.finish(lengths[-1])


if __name__ == "__main__":
    main()
