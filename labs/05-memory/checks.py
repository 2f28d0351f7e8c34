"""What the checks of this lab read."""

from __future__ import annotations

from labassist.course.evidence import Evidence
from labassist.course.model import Criterion, Measured

TRAINED = {"adapters_7b": 10_092_544, "adapters_05b": 35_192_832}
"""Trainable parameters that peft reported in the steps measured on an H200 (docs/accuracy.md)."""

LOADED_GIB = {"gib_7b": 5.178, "gib_05b": 0.426}
"""What the allocator held when the 4-bit model was loaded, in the same steps."""

NEAR = 0.01
"""Share by which bytes counted by hand may be off what the allocator holds: it rounds each tensor up."""

AGREE = 0.05
"""Share by which the two engines may differ."""


def adapters(found: Evidence) -> list[Criterion]:
    """LoRA's parameters, to the last one."""
    got = found.program(["adapters.py", "--check"])
    titles = {
        "adapters_7b": "rank 16 on the attention of a 7B",
        "adapters_05b": "rank 64 on all linear layers of a 0.5B",
    }
    return [
        Criterion(title, got[name] == TRAINED[name], f"{TRAINED[name]:,}", f"{got[name]:,.0f}", "adapters.py")
        for name, title in titles.items()
    ]


def weights(found: Evidence) -> list[Criterion]:
    """The bytes of two 4-bit models, as they were measured."""
    got = found.program(["weights.py", "--check"])
    titles = {"gib_7b": "the bytes of a 7B", "gib_05b": "the bytes of a 0.5B"}
    return [
        Criterion(
            title,
            abs(got[name] / LOADED_GIB[name] - 1) <= NEAR,
            f"{LOADED_GIB[name]:.3f} GiB as measured, within {NEAR:.0%}",
            f"{got[name]:.3f} GiB",
            "weights.py",
        )
        for name, title in titles.items()
    ]


def length(found: Evidence) -> list[Criterion]:
    """How what a block keeps grows with the length."""
    run = found.run("length")
    fused, eager, kept = (dict(found.series(run, f"{how}_kib")) for how in ("fused", "eager", "checkpoint"))
    short, long = min(fused), max(fused)
    longer = long / short
    source = f"run {run['id'].rpartition('-')[2]} step {long}"
    c = run["config"]
    token = 4 * c["hidden"] * c["batch"] / 1024
    growth = {name: one[long] / one[short] for name, one in (("fused", fused), ("eager", eager))}
    # Both ways keep the same outside of attention, so that what eager has more is its tables of weights.
    more = eager[long] - eager[short] * longer
    tables = 4 * c["heads"] * c["batch"] * (long**2 - short**2 * longer) / 1024
    return [
        Criterion(
            "one kernel: in proportion to the length",
            abs(growth["fused"] / longer - 1) <= 0.01 and fused[short] > 12 * token * short,
            f"{longer:g} times for {longer:g} times the tokens, over {12 * token * short:,.0f} KiB",
            f"{growth['fused']:.2f} times, from {fused[short]:,.0f} KiB",
            source,
        ),
        Criterion(
            "spelled out: more than in proportion",
            more >= 0.9 * tables,
            f"{tables:,.0f} KiB and more beyond it: a table of length x length a head",
            f"{more:,.0f} KiB",
            source,
        ),
        Criterion(
            "checkpointing keeps the block's input alone",
            abs(kept[long] / (token * long) - 1) <= 0.01,
            f"{token * long:,.0f} KiB: tokens x width x 4 bytes",
            f"{kept[long]:,.0f} KiB",
            source,
        ),
    ]


def measured_length(found: Evidence) -> Measured:
    """How much more the longest text keeps than one half as long."""
    run = found.run("length")
    ratio = {}
    for how in ("fused", "eager"):
        sizes = dict(found.series(run, f"{how}_kib"))
        longest = max(sizes)
        ratio[how] = sizes[longest] / sizes[longest // 2]
    text = f"{ratio['fused']:.2f} times in one kernel, {ratio['eager']:.2f} times spelled out"
    return Measured(text, f"run {run['id'].rpartition('-')[2]}", option="c")


def dry(found: Evidence) -> list[Criterion]:
    """The two engines agree, and the formula's parts are its whole."""
    run = found.run("dry")
    names = ("formula", "dry", "weights", "gradients", "optimizer", "activations", "logits", "workspace")
    got = {name: found.series(run, name)[-1][1] for name in names}
    source = f"run {run['id'].rpartition('-')[2]} step 1"
    whole = sum(got[name] for name in names[2:])
    apart = abs(got["dry"] / whole - 1)
    return [
        Criterion(
            "formula and dry run agree",
            apart <= AGREE,
            f"the dry run within {AGREE:.0%} of {whole:.2f} GiB",
            f"{got['dry']:.2f} GiB, {apart:.1%} apart",
            source,
        ),
        Criterion(
            "the parts are the whole",
            abs(got["formula"] / whole - 1) <= 0.001,
            f"{whole:.3f} GiB",
            f"{got['formula']:.3f} GiB",
            source,
        ),
    ]


def measured_dry(found: Evidence) -> Measured:
    """What the dry run counted, and a GPU where there was one."""
    run = found.run("dry")
    counted = found.series(run, "dry")[-1][1]
    return Measured(f"{counted:.2f} GiB", f"run {run['id'].rpartition('-')[2]} step 1")


def fit(found: Evidence) -> list[Criterion]:
    """The batch is the largest that fits."""
    run = found.run("fit")
    names = ("room_gib", "next_room_gib", "total_gib", "usable_gib")
    got = {name: found.series(run, name)[-1][1] for name in names}
    source = f"run {run['id'].rpartition('-')[2]} step 1"
    total = f"{got['total_gib']:.2f} of {got['usable_gib']:.2f} GiB"
    batch = run["config"]["batch"]
    return [
        Criterion(
            "it fits", got["room_gib"] >= 0, "fits, with 2% to spare", f"batch {batch}: {total}", source
        ),
        Criterion(
            "one more does not",
            got["next_room_gib"] < 0,
            f"batch {batch + 1} lacks memory",
            f"room for {got['next_room_gib']:+.2f} GiB",
            source,
        ),
    ]


def measured_fit(found: Evidence) -> Measured:
    """The largest batch that was found."""
    run = found.run("fit")
    return Measured(f"{run['config']['batch']} sequences", f"run {run['id'].rpartition('-')[2]}")


def claims(found: Evidence) -> list[Criterion]:
    """All that can be computed agrees."""
    run = found.run("claims")
    computed, agree = (found.series(run, name)[-1][1] for name in ("computed", "agree"))
    return [
        Criterion(
            "every claim that can be computed agrees with the table",
            agree == computed > 0,
            f"{computed:.0f}",
            f"{agree:.0f}",
            f"run {run['id'].rpartition('-')[2]} step 1",
        )
    ]


def measured_claims(found: Evidence) -> Measured:
    """What the table says of the claim that was guessed at."""
    run = found.run("claims")
    text = "wrong: 13.5 to 15.2 GB in bf16, and 24 - 18.6 would leave 5.4 GB"
    return Measured(text, f"run {run['id'].rpartition('-')[2]}, claim weights-7b", option="b")
