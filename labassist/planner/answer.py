"""What `plan memory` answers: one document for machines, and the same as text."""

from __future__ import annotations

from typing import Any

from labassist.planner import arch, dry, inference
from labassist.planner.cards import Card
from labassist.planner.memory import PARTS, estimate
from labassist.planner.plan import Plan
from labassist.planner.suggest import holders, largest_batch, suggestions

BAR = 40

MOMENTS = {
    "head": "when the backward begins, with every kept activation",
    "forward": "at the end of the forward",
    "block": "in a block's backward",
    "last block": "at the end of the backward, with every gradient",
    "embedding": "with the embedding's gradient, when activations are gone",
    "update": "in the optimizer's update, when activations are gone",
    "prefill": "in the prefill",
}


def warnings(plan: Plan, card: Card | None) -> list[str]:
    """Return what a person should know of a plan that can be made, and may not do what was meant."""
    found = []
    longest = plan.model.config.get("max_position_embeddings")
    if isinstance(longest, int) and plan.seq > longest:
        found.append(
            f"{plan.model.name} was made for {longest:,} positions: {plan.seq:,} tokens a sequence are beyond them"
        )
    if plan.model.source.endswith("(its text part)"):
        found.append(f"{plan.model.name} holds a vision part too: planned is its text part, loaded alone")
    if card is not None and not card.bf16 and plan.dtype != "fp32":
        fp16 = "fp16 there (as large)"
        if plan.method == "full" and plan.dtype == "bf16":
            fp16 = "fp16 there, which keeps weights in fp32 when all are trained (plan it as --dtype mixed)"
        found.append(
            f"{card.name} has no native bf16, which this plan counts on: a trainer needs {fp16}, or fp32"
        )
    return found


def memory_answer(plan: Plan, card: Card | None, *, dry_run: bool = False) -> dict[str, Any]:
    """Return CONTRACT's document of `plan memory`.

    With `dry_run` the dry run's numbers are the answer, the formula's stand beside them under `formula`, and
    `disagree` says whether the two are more than 5% apart. The card fits only where both say so.
    """
    by_formula = estimate(plan)
    answer = by_formula.document(card)
    if dry_run:
        measured = dry.dry_estimate(plan)
        answer = measured.document(card)
        apart = dry.disagreement(by_formula, measured)
        answer |= {
            "formula": by_formula.document(card),
            "apart": apart,
            "disagree": apart > dry.DISAGREE,
        }
        if card is not None:
            answer["fits"] = by_formula.fits(card) and measured.fits(card)
    answer["settings"] = plan.settings()
    answer["parameters"] = plan.model.parameters
    answer["trainable"] = plan.trainable
    answer["warnings"] = warnings(plan, card)
    answer["suggestions"] = suggestions(plan, card) if card is not None and not answer["fits"] else []
    if card is not None:
        answer["largest_batch"] = largest_batch(plan, card)
        answer["holders"] = [] if answer["fits"] else holders(plan)
    if not plan.trains:
        serving = inference.serving(plan, card) if card is not None else None
        answer["cache_bytes_a_token"] = inference.cache_bytes_a_token(plan)
        answer["vllm"] = None if serving is None else {
            "utilisation": serving.utilisation,
            "takes_gib": serving.takes,
            "cache_gib": serving.cache,
            "sequences": serving.sequences,
        }  # fmt: skip
    return answer


def memory_text(answer: dict[str, Any]) -> str:
    """Return the answer as a person reads it."""
    settings = answer["settings"]
    lines = [
        f"{settings['model']}  {answer['parameters'] / 1e9:.2f} billion parameters"
        + (
            f", {answer['trainable'] / 1e6:,.1f} million trained" if settings["method"] != "inference" else ""
        ),
        "  " + settings_line(settings),
        "",
    ]
    total = answer["total_gib"]
    for name in PARTS:
        size = answer["parts"][name]
        lines.append(f"  {name:<14}{size:8.2f} GiB  {'#' * round(BAR * size / total)}".rstrip())
    lines.append(f"  {'total':<14}{total:8.2f} GiB  as nvidia-smi would show ({answer['method']})")
    lines.append(f"  {'':<14}     the peak comes {MOMENTS[answer['moment']]}")
    if "formula" in answer:
        other = answer["formula"]["total_gib"]
        word = "THE ENGINES DISAGREE" if answer["disagree"] else "the engines agree"
        lines.append(f"  {'':<14}{other:8.2f} GiB  by formula: {word}, {100 * answer['apart']:.1f}% apart")
    if answer["card"] is not None:
        lines += ["", *_verdict(answer)]
    lines += [f"  note: {one}" for one in answer["warnings"]]
    if answer.get("vllm"):
        vllm = answer["vllm"]
        lines += [
            "",
            f"  cache: {answer['cache_bytes_a_token'] / 1024:.0f} KiB a token",
            f"  vLLM takes {vllm['takes_gib']:.1f} GiB of this card whatever it needs (gpu_memory_utilization "
            f"{vllm['utilisation']}); cache {max(0.0, vllm['cache_gib']):.1f} GiB: {vllm['sequences']} sequences "
            f"of {settings['seq']} tokens at once",
        ]
    return "\n".join(lines)


def settings_line(settings: dict[str, Any]) -> str:
    """Return what was planned with, defaults filled in, on one line."""
    parts = []
    for name, value in settings.items():
        if name == "model" or (name == "strategy" and settings["gpus"] == 1):
            continue
        if isinstance(value, bool):
            value = "yes" if value else "no"
        shown = ",".join(value) if isinstance(value, list) else str(value)
        parts.append(shown if name == "method" else f"{name} {shown}")
    return ", ".join(parts)


def _verdict(answer: dict[str, Any]) -> list[str]:
    room = answer["usable_gib"] - answer["total_gib"]
    card = f"{answer['card']} ({answer['card_gib']:.2f} GiB as its driver reports, {answer['usable_gib']:.2f} usable)"
    if answer["fits"]:
        return [
            f"FITS    {card}: {room:.2f} GiB to spare; "
            f"the largest batch that fits is {answer['largest_batch']}"
        ]
    if room > 0:
        lines = [f"TOO CLOSE    {card}: {room:.2f} GiB to spare is within the estimate's error"]
    else:
        lines = [f"DOES NOT FIT    {card}: {-room:.2f} GiB too much"]
    held = answer["holders"]
    lines.append(
        f"  as it is, it needs {held[0]}" if held else "  as it is, no single card of the table holds it"
    )
    if not answer["suggestions"]:
        other = "take a smaller model"
        if answer["settings"]["method"] == "inference":
            other += (
                ", or a larger card; one model over several cards (tensor parallelism) is not covered here"
            )
        return [*lines, f"  no change of these settings makes it fit: {other}"]
    lines.append("  what would fit, cheapest first:")
    for one in answer["suggestions"]:
        lines.append(f"    {' '.join(one['options'])}  ->  {one['total_gib']:.2f} GiB")
        lines.append(f"        speed: {one['speed']}; {one['effect']}")
    return lines


def models_text() -> str:
    """Return the published models, one a line with their parameters and their source."""
    rows = [arch.load(name) for name in arch.names()]
    return "\n".join(f"{row.name:<18}{row.parameters / 1e9:8.2f}e9  {row.source}" for row in rows)
