"""Should one train at all: four conditions with thresholds to edit, and what to try before.

The answer is a record of reasons, not a verdict: what is not known is said with the way to find it out.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.planner.arch import DATA

Z95 = 1.959964
"""Two-sided 95% of the normal distribution."""


@dataclass(frozen=True)
class Facts:
    """What is known; None is not known."""

    examples: int | None = None
    sample: int | None = None
    """Labels looked at by hand."""
    errors: int | None = None
    """Of them wrong."""
    prompt_score: float | None = None
    """Share right of the best prompt, few-shot included, 0 to 1."""
    target_score: float | None = None
    eval_size: int | None = None
    """Examples that the score was measured on."""
    people_hours: float | None = None
    machine_hours: float | None = None
    budget_hours: float | None = None
    """People's hours that there are."""
    facts_change: bool | None = None
    """Whether what must be known changes every month or more often."""


@dataclass(frozen=True)
class Condition:
    """One condition: met, not met, or not known."""

    name: str
    met: bool | None
    threshold: float
    source: str
    reason: str


def wilson(errors: int, sample: int) -> tuple[float, float]:
    """Return the 95% interval of a share (Wilson, 1927), which holds for few and for no errors too.

    Raises InputError unless 0 <= errors <= sample and sample > 0.
    """
    if sample < 1 or not 0 <= errors <= sample:
        raise InputError(
            f"{errors} of {sample} is no share", where="--errors", mend="give --sample and --errors"
        )
    p, n, z = errors / sample, sample, Z95
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def thresholds(path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the thresholds and their sources, from a file of one's own or the one that comes along.

    Raises InputError on a file that lacks one.
    """
    chosen = path or DATA / "decide.toml"
    try:
        values = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=str(chosen), mend="give --thresholds FILE") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"is no TOML: {error}", where=str(chosen), mend="mend it") from error
    for name in ("gap", "examples", "label_errors", "hours"):
        row = values.get(name)
        if not isinstance(row, dict) or not isinstance(row.get("value"), (int, float)) or "source" not in row:
            raise InputError(
                f"[{name}] needs a value and a source",
                where=str(chosen),
                mend="see the table that comes along",
            )
    return values


def conditions(facts: Facts, limits: dict[str, dict[str, Any]]) -> list[Condition]:
    """Return the four conditions under the given thresholds. Raises InputError on numbers that cannot be."""
    checks = (("gap", _gap), ("examples", _examples), ("label_errors", _labels), ("hours", _hours))
    found = []
    for name, check in checks:
        value = float(limits[name]["value"])
        met, reason = check(facts, value)
        found.append(Condition(name, met, value, str(limits[name]["source"]), reason))
    return found


def _gap(facts: Facts, least: float) -> tuple[bool | None, str]:
    got, wanted, n = facts.prompt_score, facts.target_score, facts.eval_size
    if got is None or wanted is None:
        return None, "not known: write 200 examples and score the best prompt on them"
    for name, score in (("--prompt-score", got), ("--target-score", wanted)):
        if not 0 <= score <= 1:
            raise InputError(f"{score:g} is not from 0 to 1", where=name)
    gap = wanted - got
    side = f"{100 * gap:.1f} points short" if gap > 0 else f"good enough already, by {-100 * gap:.1f} points"
    if not n:
        return gap >= least, f"the best prompt is {side}; on how many examples is not said"
    error = math.sqrt(got * (1 - got) / n)
    clear = gap >= least and gap > Z95 * error
    return clear, (
        f"the best prompt is {side}, with a standard error of {100 * error:.1f} points on {n} examples"
    )


def _examples(facts: Facts, least: float) -> tuple[bool | None, str]:
    if facts.examples is None:
        return None, "not known: count them after duplicates are gone"
    if facts.examples < 0:
        raise InputError(f"{facts.examples} is no number of examples", where="--examples")
    return facts.examples >= least, f"{facts.examples:,} examples"


def _labels(facts: Facts, most: float) -> tuple[bool | None, str]:
    if facts.sample is None or facts.errors is None:
        return None, "not known: check 100 labels by hand"
    low, high = wilson(facts.errors, facts.sample)
    share = f"{facts.errors} of {facts.sample} labels wrong: {100 * low:.1f} to {100 * high:.1f}% (95%)"
    if high <= most:
        return True, share
    if low > most:
        return False, share
    return None, f"{share}; the sample is too small to say, check more"


def _hours(facts: Facts, factor: float) -> tuple[bool | None, str]:
    if facts.people_hours is None or facts.budget_hours is None:
        return (
            None,
            "not known: count people's hours for data, debugging and evaluation, not only the machine's",
        )
    if facts.people_hours < 0 or facts.budget_hours < 0:
        raise InputError("hours are not negative", where="--people-hours")
    machine = f" beside {facts.machine_hours:g} machine hours" if facts.machine_hours is not None else ""
    need = factor * facts.people_hours
    return need <= facts.budget_hours, (
        f"{facts.people_hours:g} people's hours{machine}, times {factor:g} is {need:g} of {facts.budget_hours:g}"
    )


def alternatives(facts: Facts, found: list[Condition]) -> list[dict[str, str]]:
    """Return what to try, the most sensible first, each with the lab that shows it, empty where there is none."""
    met = {one.name: one.met for one in found}
    ranked: list[tuple[float, str, str, str]] = []

    def add(rank: float, name: str, why: str, lab: str = "") -> None:
        ranked.append((rank, name, why, lab))

    prompt = "hours instead of days, and the measure that everything else must beat"
    add(
        0 if met["gap"] is not True else 6,
        "a better prompt, with examples in it",
        prompt,
    )
    if facts.facts_change is not False:
        add(
            1 if facts.facts_change else 5,
            "retrieval",
            "what changes is looked up, not trained in"
            if facts.facts_change
            else "if what must be known changes often",
        )
    if met["label_errors"] is not True or met["examples"] is not True:
        add(2, "cleaner and more data first", "a model learns the errors of its labels too")
    ready = all(value is True for value in met.values())
    add(
        3 if not ready else -1,
        "QLoRA on one card",
        "all four conditions are met" if ready else "once all four conditions are met",
        "07-qlora",
    )
    add(7, "a larger base with the same prompt", "costs answers, not training: compare by the same set")
    add(8, "distil a large model that is good enough", "when only the price of an answer is wrong")
    return [{"name": name, "why": why, "lab": lab} for _, name, why, lab in sorted(ranked)]


def record(facts: Facts, path: Path | None = None) -> dict[str, Any]:
    """Return the record: facts, conditions with their reasons and sources, alternatives in order."""
    found = conditions(facts, thresholds(path))
    words = {True: "met", False: "not met", None: "open"}
    return {
        "facts": asdict(facts),
        "conditions": [{**asdict(one), "state": words[one.met]} for one in found],
        "met": sum(one.met is True for one in found),
        "open": sum(one.met is None for one in found),
        "alternatives": alternatives(facts, found),
    }
