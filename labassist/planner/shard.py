"""What each GPU holds under data parallelism, and the buffers that it costs.

DDP copies everything. ZeRO (Rajbhandari et al., 2020): stage 1 shards the optimizer, stage 2 the gradients too,
stage 3 (and FSDP) the weights too; a unit is gathered whole while it is used. Activations and logits belong to a
GPU's own batch and never shard.
"""

from __future__ import annotations

from labassist.planner.plan import Plan

DDP_BUCKET = 25 * 1024**2
"""torch.nn.parallel.DistributedDataParallel's bucket_cap_mb; its buckets hold a second copy of all gradients
unless gradient_as_bucket_view is set, which transformers' Trainer does not."""

ZERO_BUCKET = 500_000_000
"""DeepSpeed's reduce_bucket_size, in numbers: one buffer of it holds gradients on their way to their owner."""

ZERO_GROUP = 1_000_000_000
"""DeepSpeed's sub_group_size: numbers of a shard that stage 3 updates at once."""

ZERO_LIVE = 1_000_000_000
"""DeepSpeed's stage3_max_live_parameters: gathered weights that a GPU keeps at most."""


def _share(plan: Plan, total: int, strategies: tuple[str, ...]) -> int:
    return -(-total // plan.gpus) if plan.gpus > 1 and plan.strategy in strategies else total


def _masters(plan: Plan) -> bool:
    """Whether the strategy keeps trained weights in fp32 although the plan's are 16-bit.

    DeepSpeed's bf16 optimizer keeps an fp32 master copy and fp32 moments of its shard; accelerate casts trained
    parameters to fp32 before FSDP shards them (accelerate/utils/fsdp_utils.py).
    """
    return plan.gpus > 1 and plan.strategy != "ddp" and plan.method == "full" and plan.dtype == "bf16"


def weights(plan: Plan, total: int) -> int:
    """Return the bytes of weights on one GPU, of `total` without sharding."""
    if _masters(plan) and plan.strategy == "fsdp":
        total *= 2
    return _share(plan, total, ("zero3", "fsdp"))


def gradients(plan: Plan, total: int) -> int:
    """Return the bytes of gradients on one GPU."""
    if _masters(plan) and plan.strategy == "fsdp":
        total *= 2
    return _share(plan, total, ("zero2", "zero3", "fsdp"))


def optimizer(plan: Plan, total: int) -> int:
    """Return the bytes of optimizer state on one GPU, an fp32 master copy included where there is one."""
    if _masters(plan) and not plan.optimizer.eight_bit:
        total *= 2
        total += 4 * plan.trainable if plan.strategy != "fsdp" else 0
    return _share(plan, total, ("zero1", "zero2", "zero3", "fsdp"))


def update(plan: Plan, total: int) -> int:
    """Return the temporaries of the update on one GPU: those of its shard, and ZeRO's fp32 copy of its gradients.

    Stage 3 goes through its shard in groups and has those of one group at a time.
    """
    if _masters(plan):
        total *= 2
        total += 4 * plan.trainable if plan.strategy != "fsdp" else 0
    share = _share(plan, total, ("zero1", "zero2", "zero3", "fsdp"))
    if plan.gpus > 1 and plan.strategy == "zero3" and plan.trainable:
        share = min(share, share * ZERO_GROUP * plan.gpus // plan.trainable)
    return share


def unit(plan: Plan) -> int:
    """Return the bytes of the weights gathered at once: a block's, twice where the next is fetched ahead."""
    if plan.gpus == 1 or plan.strategy not in ("zero3", "fsdp"):
        return 0
    each = 4 if plan.dtype == "fp32" else 2
    blocks = 2 * each * sum(matrix.count for matrix in plan.model.matrices)
    return blocks + each * plan.model.head


def buffers(plan: Plan) -> int:
    """Return the communication buffers of one GPU."""
    if plan.gpus == 1:
        return 0
    each = plan.trained_bytes
    if plan.strategy == "ddp":
        return each * plan.trainable + DDP_BUCKET
    if plan.strategy in ("zero1", "zero2", "zero3"):
        return each * min(ZERO_BUCKET, plan.trainable)
    return each * sum(matrix.count for matrix in plan.model.matrices)


def unusable(plan: Plan, transient: int) -> int:
    """Return the bytes that sharding reserves and the rest of a step cannot use.

    FSDP gathers and scatters on streams of their own, and the allocator gives a stream's blocks to no other. Its
    largest unit holds the embedding and the head: gathered in 16 bits and scattered in fp32 (2 + 4 bytes a number), each
    beside this GPU's part of it. ZeRO-3's flat fp32 shards fit into no block that the forward and backward
    left: not into activations, gathered weights, nor the whole gradients of embedding and head.
    """
    if plan.gpus == 1 or plan.method != "full":
        return 0
    if plan.strategy == "fsdp":
        tables = plan.model.head * (1 if plan.model.tied else 2)
        return 6 * tables + 6 * tables // plan.gpus
    if plan.strategy == "zero3":
        return transient + 2 * min(ZERO_LIVE, plan.model.parameters) + 2 * 2 * plan.model.head
    return 0
