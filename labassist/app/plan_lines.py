"""What the plan screen shows of a plan: the verdict, each part as a bar against the card, what would fit, time, cost."""

from __future__ import annotations

from typing import Any

from labassist.app.plan_form import Planned, short
from labassist.app.widgets.lines import folded
from labassist.app.words import Line, Signs
from labassist.errors import counted
from labassist.planner.answer import MOMENTS
from labassist.planner.cost import BUFFER, Prices
from labassist.planner.memory import PARTS
from labassist.planner.report import duration, span

LABEL = 14
"""Cells of a part's name."""
NUMBER = 8
"""Cells of its size."""


def plan_lines(
    planned: Planned, prices: Prices | None, marks: Signs, width: int, room: int, *, plain: bool
) -> list[Line]:
    """Return the lines, the most important first, with air between their parts where `room` lines leave some."""
    answer = planned.memory
    peak: Line = [(f"the peak comes {MOMENTS[answer['moment']]}", "dim")]
    parts = [
        verdict(answer, marks),
        [*bars(answer, marks, width, plain=plain), peak],
        [*_cache(answer), *_suggestions(answer, plain=plain)],
        _time(planned, prices),
    ]
    parts = [folded(part, width) for part in parts if part]
    tight = [line for part in parts for line in part]
    airy = [line for part in parts for line in (*part, [])][:-1]
    return airy if len(airy) <= room else tight


def verdict(answer: dict[str, Any], marks: Signs) -> list[Line]:
    """Return whether it fits, and by how much."""
    total, usable = answer["total_gib"], answer["usable_gib"]
    room = usable - total
    if answer["fits"]:
        word: tuple[str, str] = (f"{marks.yes} FITS", "good")
        more = f"{room:.1f} GiB to spare; the largest batch that fits is {answer['largest_batch']:,}"
    elif room > 0:
        word = (f"{marks.alarm} TOO CLOSE", "warn")
        more = f"{room:.1f} GiB to spare is within the estimate's error"
    else:
        word = (f"{marks.no} DOES NOT FIT", "bad")
        more = f"{-room:,.1f} GiB too much"
    if not answer["fits"]:
        held = answer["holders"]
        more += f"; as it is, it needs {held[0]}" if held else "; no single card holds it"
    return [[word, (f"  {total:,.1f} of {usable:.1f} GiB", "strong")], [(more, "plain")]]


def bars(answer: dict[str, Any], marks: Signs, width: int, *, plain: bool) -> list[Line]:
    """Return each part as a bar that begins where the one before it ended, with a line where the card ends."""
    cells = max(8, width - LABEL - NUMBER - 1)
    usable, total = answer["usable_gib"], answer["total_gib"]
    scale = cells / max(usable * 1.02, total)
    edge = min(cells - 1, round(usable * scale))
    lines: list[Line] = []
    before = 0.0
    for name in PARTS:
        size = answer["parts"][name]
        lines.append(_bar(name, size, (before, before + size), scale, (cells, edge), marks, plain))
        before += size
    lines.append(_bar("total", total, (0.0, total), scale, (cells, edge), marks, plain))
    return lines


def _bar(
    name: str,
    size: float,
    ends: tuple[float, float],
    scale: float,
    place: tuple[int, int],
    marks: Signs,
    plain: bool,
) -> Line:
    cells, edge = place
    first, last = round(ends[0] * scale), min(cells, round(ends[1] * scale))
    kind = "strong" if name == "total" else "plain"
    head: Line = [(f"{name:<{LABEL}}", kind), (f"{size:>{NUMBER - 1},.2f} ", kind)]
    signs = [" "] * cells
    for at in range(first, last):
        signs[at] = marks.full
    if first == last and size >= 0.005 and first < cells:
        signs[first] = marks.dot
    signs[edge] = "|" if plain else "│"
    inside, outside = "".join(signs[:edge]), "".join(signs[edge + 1 :])
    return [*head, (inside, "key"), (signs[edge], "dim"), (outside, "bad")]


def _cache(answer: dict[str, Any]) -> list[Line]:
    vllm = answer.get("vllm")
    if not vllm:
        return []
    length = answer["settings"]["seq"]
    return [
        [(f"cache: {answer['cache_bytes_a_token'] / 1024:.0f} KiB a token", "plain")],
        [
            (
                f"vLLM takes {vllm['takes_gib']:.1f} GiB whatever it needs; {vllm['sequences']:,} sequences of "
                f"{length:,} tokens at once",
                "plain",
            )
        ],
    ]


def _suggestions(answer: dict[str, Any], *, plain: bool) -> list[Line]:
    """Return the cheapest changes that make it fit, each with its price in speed."""
    if answer["fits"]:
        return []
    if not answer["suggestions"]:
        return [[("no change of these settings makes it fit: take a smaller model", "warn")]]
    lines: list[Line] = [[("what would fit, cheapest first", "head")]]
    arrow = "->" if plain else "→"
    for one in answer["suggestions"]:
        lines.append([(" ".join(one["options"]), "key"), (f" {arrow} {one['total_gib']:.1f} GiB", "plain")])
        lines.append([(f"  speed: {one['speed']}", "dim")])
    return lines


def _time(planned: Planned, prices: Prices | None) -> list[Line]:
    took = planned.time
    if took is None:
        return [[(planned.no_time, "dim")]] if planned.no_time else []
    low, high = took.hours
    lines: list[Line] = [
        [
            (f"{short(int(took.tokens))} tokens: ", "plain"),
            (f"{duration(low * 3600)} to {duration(high * 3600)}", "strong"),
            (f", {counted(round(took.steps), 'steps')}", "plain"),
        ]
    ]
    if planned.plan.gpus > 1:
        traffic = took.communication
        lines.append(
            [
                (
                    f"between cards {traffic.bytes / 1e9:.1f} GB a step: {100 * traffic.share_overlapped:.0f}% to "
                    f"{100 * traffic.share_exposed:.0f}% of it",
                    "plain",
                )
            ]
        )
    if planned.rent is not None and prices is not None:
        rent, sign = planned.rent, prices.currency
        lines.append(
            [
                (f"rented {span(rent.machine, '{:,.2f}')} {sign}", "plain"),
                (f", x {BUFFER:g} for runs that fail {span(rent.machine_buffered, '{:,.2f}')}", "plain"),
                (f"; prices as of {prices.as_of}", "dim"),
            ]
        )
    elif planned.no_rent:
        lines.append([(planned.no_rent, "dim")])
    return lines
