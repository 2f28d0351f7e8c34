"""What `data lint` answers: every fault of a file with its line, and how long its samples are."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from labassist.data.rows import MOST_SHOWN, Read, Sample
from labassist.errors import counted

BAR = 30


def answer(found: Read) -> dict[str, Any]:
    """Return CONTRACT's document of `data lint`, without what needs a tokenizer."""
    counts = Counter(problem.code for problem in found.problems)
    return {
        "path": found.path,
        "ok": not found.problems,
        "shape": found.shape,
        "lines": found.lines,
        "samples": len(found.samples),
        "problems": [
            {"line": one.line, "code": one.code, "message": one.message, "mend": one.mend}
            for one in found.problems
        ],
        "counts": dict(counts),
        "warnings": warnings(found.samples),
        "characters": _spread([characters(one) for one in found.samples]),
    }


def warnings(samples: list[Sample]) -> list[str]:
    """Return what can be trained on and may not be meant: the same sample or question more than once."""
    told = []
    whole = Counter((_text(one.prompt), _text(one.completion)) for one in samples)
    again = sum(count - 1 for count in whole.values())
    if again:
        are, others = (
            ("is an exact copy", "another: it counts twice")
            if again == 1
            else ("are exact copies", "others: they count that much more")
        )
        told.append(f"{counted(again, 'samples')} {are} of {others} in training")
    if any(one.prompt for one in samples):
        answers: dict[str, set[str]] = {}
        for one in samples:
            answers.setdefault(_text(one.prompt), set()).add(_text(one.completion))
        unlike = sum(len(some) > 1 for some in answers.values())
        if unlike:
            have = "has" if unlike == 1 else "have"
            told.append(
                f"{counted(unlike, 'questions')} {have} more than one answer: the model can learn only a mixture"
            )
    return told


def characters(sample: Sample) -> int:
    """Return the characters of a sample, prompt and all."""
    return len(_text(sample.prompt)) + len(_text(sample.completion))


def text(told: dict[str, Any]) -> str:
    """Return the answer as a person reads it."""
    lines = [
        f"{told['path']}: {counted(told['samples'], 'samples')} of {counted(told['lines'], 'lines')}"
        + (f", shape {told['shape']}" if told["shape"] else "")
    ]
    folded: dict[tuple[str, str], list[int]] = {}
    for one in told["problems"]:
        folded.setdefault((one["message"], one["mend"]), []).append(one["line"])
    for (message, mend), where in list(folded.items())[:MOST_SHOWN]:
        place = f"{told['path']}:{where[0]}" if where[0] else told["path"]
        again = f" (and {len(where) - 1} more alike)" if len(where) > 1 else ""
        lines.append(f"  {place}: {message}{again}; {mend}")
    left = sum(map(len, list(folded.values())[MOST_SHOWN:]))
    if left > 0:
        lines.append(f"  and {left} more: --json has them all")
    lines += [f"  note: {warning}" for warning in told["warnings"]]
    if "tokens" in told:
        lines += _tokens(told)
    elif told["characters"]:
        spread = told["characters"]
        lines.append(
            f"  characters a sample: median {spread['median']:.0f}, longest {spread['max']:,}; "
            "--model says how many tokens that is"
        )
    lines.append("OK" if told["ok"] else _to_mend(told["problems"]))
    if "tokens" in told:
        lines[-1] += (
            f", with a limit of {told['tokens']['limit']} tokens a sample; a job has its own, its `length`: "
            "give that with --limit"
        )
    return "\n".join(lines)


def _to_mend(problems: list[dict[str, Any]]) -> str:
    if not problems[0]["line"]:
        return "THE FILE TO MEND"
    return f"{counted(len(problems), 'LINES')} TO MEND"


def _tokens(told: dict[str, Any]) -> list[str]:
    spread = told["tokens"]
    lines = [
        f"  tokens by {told['model']}: {spread['tokens']:,} in all, {spread['trained_tokens']:,} trained on; "
        f"a sample median {spread['median']:.0f}, 95% below {spread['p95']}, longest {spread['max']}"
    ]
    most = max(count for _, _, count in spread["histogram"])
    for low, high, count in spread["histogram"]:
        bar = "#" * round(BAR * count / most)
        over = "  > limit" if low > spread["limit"] else ""
        lines.append(f"  {low:>7} to {high:<7}{count:>7}  {bar}{over}".rstrip())
    if spread["over"]:
        are = "is" if spread["over"] == 1 else "are"
        lines.append(
            f"  {counted(spread['over'], 'samples')} {are} longer than {spread['limit']} tokens and would be cut"
        )
    return [*lines, "", *told["shown"].splitlines(), ""]


def _text(part: Any) -> str:
    return part if isinstance(part, str) else "\n".join(f"{one['role']}: {one['content']}" for one in part)


def _spread(numbers: list[int]) -> dict[str, float] | None:
    if not numbers:
        return None
    return {"min": min(numbers), "median": statistics.median(numbers), "max": max(numbers)}
