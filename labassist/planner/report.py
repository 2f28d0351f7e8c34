"""The plans as a person reads them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from labassist.errors import counted
from labassist.planner.answer import settings_line

WIDTH = 100


def span(pair: Sequence[float | str], form: str = "{:.1f}") -> str:
    """Return a range, or one number where both ends show the same."""
    low, high = (form.format(one) for one in pair)
    return low if low == high else f"{low} to {high}"


def duration(seconds: float) -> str:
    """Return seconds in the unit a person would choose."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"


def room_lines(answer: dict[str, Any]) -> list[str]:
    """Return what a plan of time or cost says of memory: nothing where the card holds it."""
    lines = [f"  note: {one}" for one in answer["warnings"]]
    if answer["fits"] is False:
        lines.insert(
            0,
            f"  DOES NOT FIT {answer['card']}: needs {answer['total_gib']:.1f} of {answer['usable_gib']:.1f} GiB, "
            "so it will not run as planned; see labassist plan memory",
        )
    return lines


def time_text(answer: dict[str, Any]) -> str:
    """Return `plan time`."""
    lines = []
    if "calibration" in answer:
        pace = answer["calibration"]
        lines.append(
            f"run {pace['run']}: {duration(pace['step_s'])} a step, by the median of {pace['steps']} steps "
            f"(half of them within {100 * pace['spread']:.0f}%)"
        )
        run = answer["run"]
        if run["total_steps"]:
            lines.append(
                f"  all {run['total_steps']} steps: {duration(run['whole_s'])} without evaluation and checkpoints; "
                f"left: {duration(run['left_s'])}"
            )
    if "asked" in answer:
        (what, amount), (_, seconds) = answer["asked"].items()
        lines.append(f"  {amount:,.0f} {what}: {duration(seconds)}")
    if "hours" not in answer:
        return "\n".join(lines)
    low, high = answer["hours"]
    settings = answer["settings"]
    lines += [
        f"{settings['model']} {settings['method']} on {settings['gpus']} x {answer['card']}: "
        f"{span([duration(low * 3600), duration(high * 3600)], '{}')}",
        "  " + settings_line(settings),
        f"  {counted(round(answer['tokens']), 'tokens')} in {counted(round(answer['steps']), 'steps')} of "
        f"{span([duration(one) for one in answer['step_s']], '{}')}",
        f"  {answer['flops_a_token'] / 1e9:.1f} GFLOP a token, {answer['flops']:.3g} in all; "
        + (
            f"{answer['tflops']:g} TFLOP/s dense at an MFU of {span(answer['mfu'], '{:g}')}"
            if answer["mfu"]
            else "pace from the run"
        ),
    ]
    lines += room_lines(answer)
    traffic = answer["communication"]
    if settings["gpus"] > 1:
        lines.append(
            f"  between cards: {traffic['bytes'] / 1e9:.1f} GB a step, {duration(traffic['seconds'])}: "
            f"{100 * traffic['share_overlapped']:.0f}% of a step if it overlaps, "
            f"{100 * traffic['share_exposed']:.0f}% if not; measure the link (nccl-tests: all_reduce_perf)"
        )
    if not answer.get("calibration"):
        lines.append("  a range until real steps say: run it for 30 steps, then add --run @last")
    return "\n".join(lines)


def cost_text(answer: dict[str, Any]) -> str:
    """Return `plan cost`."""
    sign = answer["currency"]
    form = "{:,.2f}"
    lines = [
        f"{span(answer['total'], form)} {sign} in all",
        f"  machine  {span(answer['machine'], form)} {sign}: "
        f"{span([duration(one * 3600) for one in answer['hours']], '{}')} x {answer['gpus']} "
        f"x {answer['price']:.2f} an hour",
        f"  buffer   x {answer['buffer']:g} for runs that fail or are repeated: "
        f"{span(answer['machine_buffered'], form)} {sign}",
        f"  people   {answer['people']:,.2f} {sign}: {answer['people_hours']:g} h, "
        f"{100 * answer['people_share']:.0f}% of it all",
    ]
    if answer["time"] and "asked" in answer["time"]:
        pace, (what, amount) = answer["time"]["calibration"], next(iter(answer["time"]["asked"].items()))
        lines.insert(
            1,
            f"  run      {pace['run']}: {amount:,.0f} {what} at {duration(pace['step_s'])} a step, by the median "
            f"of {pace['steps']}",
        )
    elif answer["time"]:
        settings = answer["time"]["settings"]
        lines[1:1] = [
            f"  planned  {settings['model']}, {settings_line(settings)}",
            *room_lines(answer["time"]),
        ]
    if not answer["people_hours"]:
        lines.append(
            "           (none counted: cleaning, debugging and evaluating take most hours; --people-hours)"
        )
    even = answer["break_even"]
    if even:
        if even["hours"] is None:
            lines.append("  buying   never pays: renting is cheaper than the current and the idle hours")
        else:
            lines.append(
                f"  buying   at {even['purchase']:,.0f} (sold for {even['resale']:,.0f}) pays after "
                f"{even['hours']:,.0f} h of use, {even['months']:.1f} months at {even['hours_a_month']:g} h"
            )
    lines.append(f"  prices as of {answer['as_of']} from {answer['prices']}: yours to edit, not live")
    lines += [f"  renting: {trap}" for trap in answer["traps"]]
    return "\n".join(lines)


def power_text(answer: dict[str, Any]) -> str:
    """Return `plan power`."""
    lines = [
        f"peak {answer['peak_w']:.0f} W, {answer['amps_12v']:.0f} A at 12 V; "
        f"for milliseconds up to {answer['excursion_w']:.0f} W"
    ]
    if answer["fits"] is not None:
        word = "CARRIES IT" if answer["fits"] else "DOES NOT CARRY IT"
        load = f": {100 * answer['load']:.0f}% of {answer['supply_w']:.0f} W" if answer["supply_w"] else ""
        lines.append(f"  the supply {word}{load}")
    if answer["energy_kwh"]:
        lines.append(
            f"  energy {answer['energy_kwh']:.1f} kWh, {answer['energy_cost']:.2f} {answer['currency']} "
            f"(price as of {answer['as_of']}, {answer['prices']})"
        )
    return "\n".join(lines + [f"  {warning}" for warning in answer["warnings"]])


def decide_text(answer: dict[str, Any]) -> str:
    """Return `plan decide`."""
    lines = [f"{answer['met']} of 4 conditions met, {answer['open']} open"]
    titles = {
        "gap": "prompting falls short",
        "examples": "enough examples",
        "label_errors": "labels are right",
        "hours": "people's hours suffice",
    }
    for one in answer["conditions"]:
        lines.append(f"  {one['state']:<8} {titles[one['name']]}: {one['reason']}")
        lines.append(f"           threshold {one['threshold']:g}: {one['source']}")
    lines.append("what to try, in this order:")
    for number, one in enumerate(answer["alternatives"], 1):
        lab = f" (lab {one['lab']})" if one["lab"] else ""
        lines.append(f"  {number}. {one['name']}: {one['why']}{lab}")
    return "\n".join(lines)


def claims_text(answer: dict[str, Any]) -> str:
    """Return `plan claims`."""
    checked = {one["id"]: one for one in answer.get("checked", [])}
    lines = []
    for one in answer["claims"]:
        lines += textwrap.wrap(one["claim"], WIDTH)
        lines += textwrap.wrap(
            f"{one['verdict'].upper()}: {one['corrected']}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
        )
        lines += textwrap.wrap(f"how: {one['how']}", WIDTH, initial_indent="  ", subsequent_indent="  ")
        if one["command"]:
            lines.append(f"  $ {one['command']}")
        if one["id"] in checked:
            found = checked[one["id"]]
            numbers = ", ".join(f"{number:.4g}" for number in found["computed"])
            lines.append(
                f"  computed again: {numbers}: {'agrees' if found['agrees'] else 'DISAGREES with the table'}"
            )
        lines.append("")
    if checked:
        bad = [name for name, one in checked.items() if not one["agrees"]]
        lines.append(
            f"{len(checked)} claims computed again, "
            + (f"{len(bad)} disagree: {', '.join(bad)}" if bad else "all agree with the table")
        )
    return "\n".join(lines).rstrip()
