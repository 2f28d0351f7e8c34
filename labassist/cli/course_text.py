"""The course's answers as a person reads them: 80 columns, one thing below the other."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import Any

from labassist.cli.output import paint, table

WIDTH = 80
STEP_SIGNS = {"done": "✓", "failed": "✗", "locked": "·", "open": "·"}
PLAIN = str.maketrans(
    {"✓": "+", "✗": "x", "▸": ">", "·": "-", "…": "~", "×": "x", "≤": "<", "–": "-", "~": "~"}
)


def shown(text: str) -> str:
    """Return a text with signs that this terminal's encoding has."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return text.translate(PLAIN)
    return text


def labs_text(answer: dict[str, Any]) -> str:
    """Return the list of labs: what is done, and what comes next."""
    if not answer["labs"]:
        return "no labs here"
    rows = []
    for lab in answer["labs"]:
        here = answer["next"].startswith(f"{lab['id']}/")
        sign = (
            "!"
            if lab["problem"]
            else "✓"
            if lab["total"] and lab["done"] == lab["total"]
            else "▸"
            if here
            else "·"
        )
        name = lab["id"] if lab["problem"] else f"{lab['short']} {lab['title']}"
        rows.append([_weeks(lab), f"{sign} {name}", lab["needs"], _done(lab), _time(lab)])
    lines = [table(["wk", "  lab", "needs", "done", "hours"], rows, width=WIDTH)]
    lines += [f"! {lab['problem']}" for lab in answer["labs"] if lab["problem"]]
    return shown("\n".join([*lines, "", *_coming(answer)]))


def map_text(answer: dict[str, Any]) -> str:
    """Return the route by weeks: what each lab needs, and what was spent against the plan."""
    lines = [
        paint(
            f"week {answer['week']} of {answer['weeks']}   {answer['hours']:.1f} of {answer['plan_hours']:.1f} h"
            f"   rented {answer['plan_rent_hours']:g} h planned, {answer['money']:.2f} spent",
            "bold",
        )
    ]
    weeks = sorted(
        {
            week
            for lab in answer["labs"]
            if not lab["problem"]
            for week in range(lab["weeks"][0], lab["weeks"][1] + 1)
        }
    )
    for week in weeks:
        now = " (you are here)" if week == answer["week"] and answer["next"] else ""
        lines += ["", paint(f"week {week}{now}", "bold")]
        for lab in answer["labs"]:
            if lab["problem"] or not lab["weeks"][0] <= week <= lab["weeks"][1]:
                continue
            sign = (
                "✓"
                if lab["done"] == lab["total"]
                else "▸"
                if answer["next"].startswith(f"{lab['id']}/")
                else "·"
            )
            rent = f", {lab['rent_hours']:g} h rented" if lab["rent_hours"] else ""
            again = " (goes on)" if week > lab["weeks"][0] else ""
            lines.append(f"  {sign} {lab['id']}: {lab['title']}{again}")
            if not again:
                lines += _wrapped(lab["summary"], "      ")
                lines.append(f"      needs {lab['needs']}; {_done(lab)} done, {_time(lab)} h{rent}")
    return shown("\n".join([*lines, "", *_coming(answer)]))


def lab_text(answer: dict[str, Any]) -> str:
    """Return one step of a lab: its text, the guess, what to run, the check, and how it goes on."""
    lab = answer["lab"]
    step = next(one for one in answer["steps"] if one["id"] == answer["step"])
    bar = "".join(
        "▸" if one["id"] == step["id"] and one["standing"] != "done" else STEP_SIGNS[one["standing"]]
        for one in answer["steps"]
    )
    short = lab["short"]
    title = f"{short} {lab['title']}, step {step['number']} of {lab['total']}: {step['title']}"
    gap = " " * max(2, WIDTH - len(title) - len(bar))
    name = f"{short}/{step['id']}"
    parts = [
        [paint(title, "bold") + gap + bar],
        markdown(step["text"]),
        [*_guess_lines(step, name), *_do_lines(step)],
        verdict_lines(step["check"]) if step["check"] else [],
        _onward(answer, step, name),
    ]
    return shown("\n\n".join("\n".join(lines) for lines in parts if lines))


def check_text(answer: dict[str, Any]) -> str:
    """Return each step's criteria."""
    lines = []
    for step in answer["steps"]:
        lines.append(paint(f"{step['number']} {step['title']}", "bold"))
        if step["check"]:
            lines += verdict_lines(step["check"])
        elif step["standing"] == "done":
            lines.append("✓ done" + (f": run {step['run']['newest']}" if step["run"] else ""))
        else:
            lines.append(f"· not done: it is done when {step['how']}")
        lines += _measured_lines(step)
    if not answer["steps"]:
        lines.append("nothing to check yet: no step that is checked has been begun")
    if answer["ok"] and answer["lab"]["next"]:
        after = answer["lab"]["next"]
        short = answer["lab"]["short"]
        lines.append(f"next: labassist lab {short}/{after['id']}   ({after['title']})")
    return shown("\n".join(lines))


def hint_text(answer: dict[str, Any]) -> str:
    """Return the hints that were taken, the last one last."""
    lines = []
    for at, hint in enumerate(answer["hints"], 1):
        lines.append(paint(f"hint {at} of {answer['total']}", "dim"))
        lines += _wrapped(hint, "  ")
    return shown("\n".join(lines))


def lint_text(answer: dict[str, Any]) -> str:
    """Return what the linter found, lab by lab."""
    lines = []
    for lab in answer["labs"]:
        kept = " (kept from an earlier run)" if lab["kept"] else ""
        lines.append(f"{'✓' if lab['ok'] else '✗'} {lab['lab']}{kept}")
        lines += [f"  {problem['place']}: {problem['message']}" for problem in lab["problems"]]
        lines += [
            f"  {one['step']}: {one['what']} makes fail: {', '.join(one['failed'])}" for one in lab["altered"]
        ]
    return shown("\n".join(lines or ["no labs here"]))


def verdict_lines(verdict: dict[str, Any]) -> list[str]:
    """Return a check's criteria, aligned: sign, name, expected, got, source."""
    if verdict["missing"]:
        return ["Check  · not yet: " + verdict["missing"]]
    stale = " (what it read has changed since: check again)" if verdict["stale"] else ""
    lines = [f"Check{stale}"]
    for one in verdict["criteria"]:
        sign = paint("✓", "green") if one["ok"] else paint("✗", "red")
        lines.append(f"  {sign} {one['name']}")
        facts = f"expected {one['expected']}   got {one['got']}   {one['source']}"
        if len(facts) + 6 <= WIDTH:
            lines.append(f"      {facts}")
        else:
            for label, key in (("expected", "expected"), ("got     ", "got"), ("source  ", "source")):
                lines += _wrapped(f"{label} {one[key]}", "      ", "               ")
    return lines


def markdown(text: str) -> list[str]:
    """Return a step's Markdown as plain lines: marks taken off, links with their address."""
    lines = []
    fenced = False
    for line in text.strip("\n").split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced:
            lines.append(f"    {line}")
            continue
        heading = re.match(r"#+\s+(.*)", line)
        if heading:
            lines.append(paint(_inline(heading[1]), "bold"))
        else:
            lines.append(_inline(line))
    return lines


def _inline(line: str) -> str:
    line = re.sub(r"\[([^\]]+)\]\((\S+?)\)", r"\1 (\2)", line)
    return re.sub(r"\*\*(.+?)\*\*", r"\1", line)


def _guess_lines(step: dict[str, Any], name: str) -> list[str]:
    predict = step["predict"]
    if not predict:
        return []
    lines = _wrapped(f"Predict: {predict['question']}", "")
    lines += [
        line
        for key, value in predict["options"].items()
        for line in _wrapped(f"[{key}] {value}", "  ", "      ")
    ]
    if step["guess"]:
        lines.append(f"Your guess: {_said(step['guess'])}")
        lines += _measured_lines(step)
    else:
        choices = "|".join(predict["options"]) or ("NUMBER" if predict["unit"] else "TEXT")
        waits = "   (the run waits for it)" if step["standing"] == "locked" else ""
        lines.append(f"$ labassist lab {name} --predict {choices}{waits}")
    return lines


def _measured_lines(step: dict[str, Any]) -> list[str]:
    if not step["measured"]:
        return []
    measured = step["measured"]
    lines = _wrapped(f"Measured:   {measured['text']}   ({measured['source']})", "", "            ")
    if step["guess"] and measured["option"]:
        right = step["guess"]["value"] == measured["option"]
        lines.append(
            f"            you guessed {step['guess']['value']}, it was {measured['option']}"
            if not right
            else "            as you guessed"
        )
    return lines


def _said(guess: dict[str, Any]) -> str:
    value, text = guess["value"], guess["text"]
    return text if text.startswith(value) else f"{value}, {text}"


def _do_lines(step: dict[str, Any]) -> list[str]:
    lines = []
    if step["edit"]:
        lines.append(f"edit {step['edit']['file']}:{step['edit']['line']}")
    if step["run"] and step["standing"] != "locked":
        lines.append(f"$ {step['run']['line']}")
    return lines


def _onward(answer: dict[str, Any], step: dict[str, Any], name: str) -> list[str]:
    lines = []
    if step["standing"] != "done" and step["hints"]["total"]:
        lines.append(
            f"hint: labassist hint {name}   ({len(step['hints']['taken'])} of {step['hints']['total']} taken)"
        )
    if step["standing"] != "done":
        lines.append(f"done when {step['how']}")
    elif answer["next"]:
        lines.append(f"✓ done. next: labassist lab {name.split('/')[0]}/{answer['next']}")
    else:
        lines.append("✓ done, and with it the whole lab")
    return lines


def _coming(answer: dict[str, Any]) -> list[str]:
    if not answer["next"]:
        return ["every step is done"]
    lab_id, _, step = answer["next"].partition("/")
    lab = next(lab for lab in answer["labs"] if lab["id"] == lab_id)
    return [f"next: labassist lab {lab['short']}/{step}   ({lab['next']['title']})"]


def _weeks(lab: dict[str, Any]) -> str:
    first, last = lab["weeks"]
    return "" if not first else str(first) if first == last else f"{first}-{last}"


def _done(lab: dict[str, Any]) -> str:
    return f"{lab['done']}/{lab['total']}" if lab["total"] else "-"


def _time(lab: dict[str, Any]) -> str:
    spent = lab["spent"]["hours"]
    return f"{spent:.1f} of ~{lab['hours']:g}" if spent >= 0.05 else f"~{lab['hours']:g}"


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
    )
