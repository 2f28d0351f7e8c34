"""A serving benchmark's result as a table for a person."""

from __future__ import annotations

from typing import Any

from labassist.serving.bench_stats import PERCENTS

LINES = (
    ("ttft_ms", "first token (TTFT)"),
    ("tpot_ms", "a token after it (TPOT)"),
    ("itl_ms", "between two parts (ITL)"),
    ("e2el_ms", "whole answer (E2EL)"),
)
WIDTH = 25


def text(result: dict[str, Any]) -> str:
    """Return all loads of a result, each with its table and its warnings."""
    head = f"{result['url']}  model {result['model']}, answers of at most {result['max_tokens']} tokens"
    parts = [head, f"prompts: {result['prompts']}"]
    parts += [one for load in result["loads"] for one in ("", *_load(load))]
    if len(result["loads"]) > 1:
        parts += ["", *_side_by_side(result["loads"])]
    return "\n".join(parts)


def title(load: dict[str, Any]) -> str:
    """Return what a load is called."""
    return f"{load['rate']:g}/s, open loop" if load["rate"] else f"{load['concurrency']} at a time"


def _load(load: dict[str, Any]) -> list[str]:
    failed = sum(load["errors"].values())
    kinds = f" ({', '.join(f'{count} {kind}' for kind, count in load['errors'].items())})" if failed else ""
    lines = [
        f"{title(load)}: {load['requests']} request{'' if load['requests'] == 1 else 's'} in {load['duration_s']:.1f} s, {failed} failed{kinds}",
    ]
    if load["failure"]:
        lines.append(f"  FAILED: {load['failure']}")
    if load["completed"]:
        lines.append(f"  {'ms':<{WIDTH}}" + "".join(f"{f'P{percent}':<22}" for percent in PERCENTS).rstrip())
        for key, name in LINES:
            if load[key]:
                cells = [f"{_span(load[key][f'p{percent}']):<22}" for percent in PERCENTS]
                lines.append(f"  {name:<{WIDTH}}{''.join(cells)}".rstrip())
        lines.append(
            f"  written {_span(load['output_throughput'])} tokens/s, "
            f"{load['request_throughput']:.2f} requests/s"
            + (f"; {load['tokens_in']:,} tokens read, " if load["counted"] == "usage" else "; ")
            + f"{load['tokens_out']:,} written (by {_COUNTED[load['counted']]})"
        )
        late = f", requests left up to {load['client']['late_ms']:.1f} ms late" if load["rate"] else ""
        lines.append(f"  measuring took {load['client']['core']:.1%} of a core{late}")
    lines += [f"  {kind}: {detail}" for kind, detail in load["details"].items()]
    return lines + [f"  warning: {line}" for line in load["warnings"]]


_COUNTED = {"usage": "the server's count", "parts": "parts of the streams"}


def _span(found: dict[str, Any]) -> str:
    """Return a value with its 95% interval, to three digits; a dash for what the sample is too small for."""
    if found.get("few"):
        return "-"
    if found["low"] is None:
        return f"{_short(found['value'])} (-)"
    return f"{_short(found['value'])} ({_short(found['low'])}-{_short(found['high'])})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _side_by_side(loads: list[dict[str, Any]]) -> list[str]:
    """Return a line a load: what one reads off a sweep."""
    lines = [
        f"{'':<18}{'TTFT P50':>10}{'TTFT P95':>10}{'E2EL P50':>10}{'E2EL P95':>10}{'tokens/s':>10}{'failed':>8}"
    ]
    for load in loads:
        cells = [
            _short(load[key][f"p{percent}"]["value"])
            if load[key] and not load[key][f"p{percent}"]["few"]
            else "-"
            for key in ("ttft_ms", "e2el_ms")
            for percent in (50, 95)
        ]
        cells.append(_short(load["output_throughput"]["value"]) if load["output_throughput"] else "-")
        failed = sum(load["errors"].values())
        lines.append(f"{title(load):<18}" + "".join(f"{cell:>10}" for cell in cells) + f"{failed:>8}")
    return lines
