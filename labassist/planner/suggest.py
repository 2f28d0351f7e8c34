"""The cheapest changes that make a plan fit, each with its price in speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from labassist.planner.cards import Card, known
from labassist.planner.memory import Estimate, estimate
from labassist.planner.plan import Plan


@dataclass(frozen=True)
class Step:
    """One change: its kind, the option to give, what it costs in speed, what else it changes."""

    kind: str
    option: str
    speed: str
    effect: str
    apply: Callable[[Plan], Plan]


def suggestions(plan: Plan, card: Card) -> list[dict[str, Any]]:
    """Return single changes that make the plan fit, cheapest first; where none does, the shortest row of changes.

    A plan that fits has none.
    """
    if estimate(plan).fits(card):
        return []
    steps = list(_steps(plan))
    single: dict[str, tuple[Step, Estimate]] = {}
    for step in steps:
        changed = estimate(step.apply(plan))
        if step.kind not in single and changed.fits(card):
            single[step.kind] = step, changed
    if single:
        return [_document([step], changed) for step, changed in single.values()]
    # Over 4 bits nothing is sharded, so more cards are tried without that step, where it alone does not do.
    return _row(plan, card, [step for step in steps if step.kind != "gpus"]) or _row(
        plan, card, [step for step in steps if step.kind != "qlora"]
    )


def _row(plan: Plan, card: Card, steps: list[Step]) -> list[dict[str, Any]]:
    """Return the changes that together make the plan fit as one document, nothing where all of them do not."""
    taken: list[Step] = []
    current = plan
    for step in steps:
        # A change of method is taken only when all that keeps it has been: the list is in order of price.
        next_plan = step.apply(current)
        before, after = estimate(current), estimate(next_plan)
        if after.total_gib < before.total_gib - 0.005:
            taken = [one for one in taken if one.kind != step.kind] + [step]
            current = next_plan
            if after.fits(card):
                needed = _needed(plan, taken, card)
                return [_document(needed, estimate(_applied(plan, needed)))]
    return []


def _needed(plan: Plan, taken: list[Step], card: Card) -> list[Step]:
    """Return the changes without those that later ones made needless."""
    kept = list(taken)
    for step in taken:
        rest = [one for one in kept if one is not step]
        if estimate(_applied(plan, rest)).fits(card):
            kept = rest
    return kept


def _applied(plan: Plan, steps: list[Step]) -> Plan:
    for step in steps:
        plan = step.apply(plan)
    return plan


def _document(steps: list[Step], changed: Estimate) -> dict[str, Any]:
    return {
        "options": [step.option for step in steps],
        "total_gib": changed.total_gib,
        "speed": "; ".join(step.speed for step in steps),
        "effect": "; ".join(step.effect for step in steps),
    }


def _steps(plan: Plan) -> Iterator[Step]:
    """Yield changes in order of price: free ones, slower ones, then those that train something else."""
    if not plan.trains:
        yield from _inference_steps(plan)
        return
    if plan.loss == "full":
        yield Step(
            "loss", "--loss chunked", "no slower", "the same loss, its logits in tiles", _set(loss="chunked")
        )
    if plan.attention == "eager":
        yield Step("attention", "--attention sdpa", "faster", "the same attention", _set(attention="sdpa"))
    if plan.padded:
        yield Step(
            "padded",
            "--no-padded",
            "faster",
            "batches of equal length or packed: no mask",
            _set(padded=False),
        )
    if plan.optimizer.label == "adamw_torch":
        yield Step(
            "optim", "--optim adamw_torch_fused", "as fast or faster", "the same update without temporaries",
            _set(optim="adamw_torch_fused"),
        )  # fmt: skip
    if not plan.optimizer.eight_bit and plan.optimizer.name == "adamw":
        yield Step(
            "optim",
            "--optim paged_adamw_8bit",
            "about as fast",
            "moments in 8 bits",
            _set(optim="paged_adamw_8bit"),
        )
    if not plan.checkpointing:
        cost = "about 1.3x slower (8 instead of 6 FLOPs a parameter and token)"
        if plan.adapted:
            cost = "about 1.5x slower (6 instead of 4 FLOPs a parameter and token)"
        yield Step("checkpointing", "--checkpointing", cost, "the same result", _set(checkpointing=True))
    batch = plan.batch
    while batch > 1:
        batch //= 2
        accumulate = plan.accumulate * -(-plan.batch // batch)
        yield Step(
            "batch",
            f"--batch {batch} --accumulate {accumulate}",
            "a few percent slower, more where the card is then not full",
            "the same number of examples a step",
            _set(batch=batch, accumulate=accumulate),
        )
    if plan.dtype != "bf16":
        yield Step(
            "dtype", "--dtype bf16", "as fast or faster", "weights in bf16: no fp32 copy", _set(dtype="bf16")
        )
    if plan.gpus > 1 and plan.strategy != "fsdp" and plan.method != "qlora":
        yield Step(
            "strategy",
            "--strategy fsdp",
            "slower by its communication",
            "weights are sharded",
            _set(strategy="fsdp"),
        )
    if plan.method == "full":
        yield Step("lora", "--method lora", "faster", "trains low-rank pairs only", _set(method="lora"))
    if plan.method in ("full", "lora"):
        also = "" if plan.dtype == "bf16" else " --dtype bf16"
        also += " --strategy ddp" if plan.gpus > 1 and plan.strategy != "ddp" else ""
        yield Step(
            "qlora", f"--method qlora{also}", "as fast as lora to 1.3x slower (4% on an H200 at 7B)",
            "trains low-rank pairs over a 4-bit base", _over_4_bits,
        )  # fmt: skip
    yield from _shorter(plan)
    if plan.method != "qlora":
        for gpus in (2, 4, 8, 16, 32, 64):
            if gpus > plan.gpus:
                yield Step(
                    "gpus", f"--gpus {gpus} --strategy fsdp", "slower by its communication: `plan time` says how much",
                    f"weights and states are sharded over {gpus} cards", _set(gpus=gpus, strategy="fsdp"),
                )  # fmt: skip


def _inference_steps(plan: Plan) -> Iterator[Step]:
    batch = plan.batch
    while batch > 1:
        batch //= 2
        yield Step(
            "batch", f"--batch {batch}", "fewer tokens a second", "fewer sequences at once", _set(batch=batch)
        )
    if plan.dtype != "bf16":
        yield Step("dtype", "--dtype bf16", "faster", "half the weights", _set(dtype="bf16"))
    yield from _shorter(plan)


def _shorter(plan: Plan) -> Iterator[Step]:
    seq = plan.seq
    while seq > 256:
        seq //= 2
        effect = "longer examples are cut or split" if plan.trains else "longer texts do not go in"
        yield Step("seq", f"--seq {seq}", "faster", effect, _set(seq=seq))


def _over_4_bits(plan: Plan) -> Plan:
    """Return the plan over a 4-bit base, in the dtype that goes with it and with nothing sharded."""
    return plan.with_(method="qlora", dtype="bf16", strategy="ddp")


def _set(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: plan.with_(**changes)


def holders(plan: Plan) -> list[str]:
    """Return the cards of the table that hold a plan as it is, smallest first."""
    made = estimate(plan)
    cards = sorted(known(), key=lambda card: card.usable_mib)
    return [card.name for card in cards if made.fits(card)]


MOST_SEQUENCES = 4096
"""Larger batches than this are not looked for."""


def largest_batch(plan: Plan, card: Card) -> int:
    """Return the largest batch a step that fits, 0 where not even one sequence does."""
    low, high = 0, 1
    while high <= MOST_SEQUENCES and estimate(plan.with_(batch=high)).fits(card):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if estimate(plan.with_(batch=middle)).fits(card):
            low = middle
        else:
            high = middle
    return low
