"""Runs as one page of HTML that needs nothing else: curves, where they come from, verdicts, checks and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from labassist.export import svg
from labassist.export.facts import Facts
from labassist.export.tables import flat
from labassist.ledger.curve_table import numbers
from labassist.ledger.curves import encode, held_out
from labassist.ledger.entries import Head
from labassist.ledger.records import why_gone

LONGEST_PATCH = 200_000
"""Signs of an uncommitted change that are shown."""

STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#16191d;background:#fff;max-width:52rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem;border-bottom:1px solid #c8ccd2}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{padding:.15rem .6rem .15rem 0;text-align:left;vertical-align:top;overflow-wrap:anywhere}
th{font-weight:600;white-space:nowrap}tr+tr td,tr+tr th{border-top:1px solid #e6e8eb}
code,pre,.hash{font:13px/1.4 ui-monospace,monospace}pre{white-space:pre-wrap;background:#f4f5f7;padding:.6rem}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}svg .grid{stroke:#dfe2e6;fill:none}
svg .mark{stroke:#777;stroke-dasharray:3 3;fill:none}svg .lost{stroke-width:2;fill:none}
.state{font-weight:600}.small{color:#555c66;font-size:.85rem}article+article{margin-top:4rem}
@media print{body{max-width:none;margin:0;font-size:11px}h2,svg,tr{break-inside:avoid;break-after:auto}
article+article{break-before:page;margin-top:0}details>*{display:block}pre{background:none;border:1px solid #ccc}}
"""


def page(found: Sequence[Facts], head: Head, made: str) -> str:
    """Return the page. `head` is the journal's, which says of which ledger and when; `made` is the time."""
    title = found[0].run["job"] if len(found) == 1 else f"{len(found)} runs"
    body = "".join(_run(one) for one in found)
    foot = (
        f'<p class="small">Made {escape(made)} by labassist from a ledger of {head.entries:,} entries with the head '
        f'<span class="hash">{head.hash}</span>. <code>labassist audit</code> verifies what it says.</p>'
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}{foot}</body></html>\n"
    )


def _run(one: Facts) -> str:
    run = one.run
    return "".join(
        [
            f"<article><h1>{escape(run['job'])}</h1>",
            f'<p><span class="state">{escape(run["state"])}</span> · run <span class="hash">{run["id"]}</span>'
            f" · {escape(run['created'][:19].replace('T', ' '))} UTC · {escape(run['mode'])} mode</p>",
            "".join(f"<p>{escape(line)}</p>" for line in run.get("note", "").splitlines()),
            _section("Outcome", _pairs(_outcome(run))),
            _section("Curves", _curves(one)),
            _section("Verdicts of replays", _verdicts(one)),
            _section("Checks of the course", _checks(one)),
            _section("Configuration", _pairs(run.get("config", {}))),
            _section("Where it comes from", _pairs(_provenance(run)) + _patch(one)),
            _section(
                "Data", _table(("name", "path", "bytes", "SHA-256"), map(_input, run.get("inputs", [])))
            ),
            _section("What it made", _outputs(run)),
            _section("From its answers back to the data", _steps(one.chain)),
            _section("Answers", _table(("asked", "answered", "model", "ended"), map(_answer, one.answers))),
            _section("Checkpoints", _table(("step", "bytes", "tensors", "manifest", ""), _checkpoints(one))),
            _section("Randomness", _pairs(flat(one.randomness.get("flags", {})))),
            _section("Environment", _pairs(_environment(one))),
            _section("Not to be had", "".join(f"<p>{escape(line)}</p>" for line in one.notes)),
            "</article>",
        ]
    )


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{title}</h2>{inside}</section>" if inside else ""


def _pairs(values: dict[str, Any]) -> str:
    shown = {key: value for key, value in values.items() if value not in ("", None, [], {})}
    rows = "".join(
        f"<tr><th>{escape(str(key))}</th><td>{_cell(value)}</td></tr>" for key, value in shown.items()
    )
    return f"<table>{rows}</table>" if rows else ""


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    return f"<table><tr>{head}</tr>{body}</table>" if body else ""


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    text = escape(str(value))
    long = len(text) >= 32 and " " not in text
    return f'<span class="hash">{text}</span>' if long else text


def _outcome(run: dict[str, Any]) -> dict[str, Any]:
    steps = f"{run.get('step', 0):,}" + (f" of {run['total_steps']:,}" if run.get("total_steps") else "")
    status = run.get("exit") if run.get("signal") is None else f"signal {run['signal']}"
    cost = f"{run['cost']:.2f} {run.get('currency', '')}".rstrip() if run.get("cost") else ""
    last = {f"last {name}": encode(value) for name, value in run.get("last", {}).items()}
    return {
        "steps": steps,
        "exit status": status,
        "why": run.get("reason", ""),
        "health": run.get("health") or "nothing was wrong with the loss",
        "ended": run.get("ended", ""),
        "seconds": run.get("seconds", ""),
        "tokens a second": run.get("tokens_per_s") or "",
        "cost": cost,
        "idle": "; ".join(run.get("idle", [])),
        **last,
    }


def _curves(one: Facts) -> str:
    names = numbers(one.curve)
    together = [name for name in ("loss", held_out(names)) if name in names]
    groups = ([together] if together else []) + [[name] for name in names if name not in together]
    origin = one.run.get("resumed_from")
    marks = {origin["step"]: "resumed"} if origin and origin["step"] in set(one.curve.steps) else {}
    parts = []
    for group in groups:
        parts.append(svg.chart({name: one.curve.series[name] for name in group}, marks))
        parts.append(f'<p class="small">{"; ".join(_said(name, one) for name in group)}</p>')
    return "".join(parts)


def _said(name: str, one: Facts) -> str:
    """Return a series in words, for whoever does not see the chart."""
    series = [(step, float(value)) for step, value in one.curve.series[name].items()]
    bad = [(step, value) for step, value in series if not math.isfinite(value)]
    ends = series if len(series) == 1 else (series[0], series[-1])
    said = f"{escape(name)}: " + ", ".join(f"{value:.6g} at step {step:,}" for step, value in ends)
    return said + (f", not finite at {len(bad):,} steps, first at {bad[0][0]:,}" if bad else "")


def _verdicts(one: Facts) -> str:
    rows = []
    own = one.run.get("verdict")
    for run, of in [(run, "replayed by") for run in one.replays] + ([(one.run, "replays")] if own else []):
        verdict = run["verdict"]
        counts = f"{verdict.get('steps', 0):,} steps, {verdict.get('series', 0)} series, {verdict.get('tensors', 0)} tensors"
        other = run["id"] if of == "replayed by" else run.get("replay_of", "")
        first = verdict.get("first_difference")
        where = ", ".join(f"{key} {value}" for key, value in first.items()) if first else ""
        rows.append((verdict["verdict"], f"{of} {other}", counts, where))
    return _table(("verdict", "", "compared", "first difference"), rows)


def _checks(one: Facts) -> str:
    rows = [
        (f"{mark.lab}/{mark.step}", "yes" if line.ok else "NO", line.name, line.expected, line.got)
        for mark in one.checks
        for line in mark.criteria
    ]
    return _table(("step", "met", "criterion", "expected", "got"), rows)


def _provenance(run: dict[str, Any]) -> dict[str, Any]:
    code, origin = run["code"], run.get("resumed_from") or {}
    return {
        "command": " ".join(run["argv"]),
        "folder": run["cwd"],
        "seed": run["seed"],
        "threads": run.get("threads", ""),
        "commit": code.get("commit") or "none: outside a repository",
        "branch": code.get("branch", ""),
        "uncommitted": "a change, below" if code.get("patch") else "none",
        "code digest": code.get("digest", ""),
        "labassist": code.get("package", ""),
        "submodules": ", ".join(code.get("submodules", [])),
        "resumed from": f"run {origin['run']} at step {origin['step']:,}" if origin else "",
        "replay of": run.get("replay_of", ""),
        "machine": f"{run['machine']['host']} ({run['machine']['id']})",
    }


def _patch(one: Facts) -> str:
    if not one.patch:
        return ""
    cut = "" if len(one.patch) <= LONGEST_PATCH else f"\n… {len(one.patch) - LONGEST_PATCH:,} more signs"
    return f"<details><summary>the uncommitted change</summary><pre>{escape(one.patch[:LONGEST_PATCH])}{cut}</pre></details>"


def _input(row: dict[str, Any]) -> tuple[object, ...]:
    return row["name"], row["path"], row["bytes"], row["sha256"]


def _outputs(run: dict[str, Any]) -> str:
    rows = [(row["path"], row["bytes"], row["sha256"] or "not there") for row in run.get("outputs", [])]
    return _table(("path", "bytes", "SHA-256"), rows)


def _steps(links: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(link)}</li>" for link in links)
    return f"<ol>{items}</ol>" if items else ""


def _answer(row: dict[str, Any]) -> tuple[object, ...]:
    messages = row.get("messages") or [{}]
    return (
        messages[-1].get("content", ""),
        row.get("answer", ""),
        row.get("model", ""),
        row.get("finish_reason", ""),
    )


def _checkpoints(one: Facts) -> list[tuple[object, ...]]:
    return [
        (row["step"], row["bytes"], row["tensors"], row["manifest"], why_gone(row)) for row in one.checkpoints
    ]


def _environment(one: Facts) -> dict[str, Any]:
    memory = one.hardware.get("memory_bytes", 0)
    return {
        **one.run.get("versions", {}),
        "system": one.environment.get("os", {}).get("name", ""),
        "cores": one.hardware.get("cpu", {}).get("usable", ""),
        "memory": f"{memory / 2**30:.1f} GiB" if memory else "",
        "packages": f"{len(one.environment.get('distributions', []))}, digest {one.environment.get('digest', '')}",
    }
