"""Choose runs by expressions such as `lr>1e-4`, `job=01-first-loop/train` or `last.loss<2`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from labassist.errors import InputError, did_you_mean
from labassist.ledger.canonical import decode_number
from labassist.ledger.records import Run

_EXPRESSION = re.compile(r"\s*([\w.-]+)\s*(<=|>=|!=|==?|<|>|~)\s*(.*?)\s*$", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, text: str(text).lower() in str(value).lower(),
}


def select(
    documents: Iterable[dict[str, Any]], where: Sequence[str] = (), sort: str | None = None
) -> list[dict[str, Any]]:
    """Return the documents that match every expression, in order, or sorted by a key.

    A key is dotted (`config.optim.lr`); its last part alone is enough where that is found in the
    configuration or among the last values (`lr`, `loss`). `~` means contains. Raises InputError for an
    expression that cannot be read, and for a key that no record has and none could have: a typing error would
    read as an answer.
    """
    documents = list(documents)
    tests = []
    for expression in where:
        key, test = _test(expression)
        _must_know(key, documents, f"--where {expression}")
        tests.append(test)
    found = [document for document in documents if all(test(document) for test in tests)]
    if sort:
        _must_know(sort, documents, f"--sort {sort}")
        found.sort(key=lambda document: _sort_key(value_of(document, sort)))
    return found


def _must_know(key: str, documents: Sequence[dict[str, Any]], where: str) -> None:
    whole, inside, _ = key.partition(".")
    fields = Run.__struct_fields__
    # What is in these three differs by job; the rest may be absent of every run and still be meant.
    if whole in fields and not (inside and whole in ("config", "last", "versions")):
        return
    if not documents or any(value_of(document, key) is not None for document in documents):
        return
    names = {name for run in documents for part in ("config", "last") for name in run.get(part, {})}
    raise InputError(
        f"no run has a {key!r}{did_you_mean(key.removeprefix('config.'), sorted(names | set(fields)))}",
        where=where,
        mend="`labassist show @last` lists what a record has",
    )


def _test(expression: str) -> tuple[str, Callable[[dict[str, Any]], bool]]:
    """Return the key of an expression, and what says whether a document fits it. Raises InputError."""
    read = _EXPRESSION.match(expression)
    if read is None:
        raise InputError(
            "not an expression",
            where=f"--where {expression}",
            mend="write KEY=VALUE, KEY>N, KEY<N or KEY~TEXT",
        )
    key, sign, text = read.groups()
    sign = sign.replace("==", "=")
    wanted = _value(text)
    compare = _COMPARE[sign]
    if sign in ("<", "<=", ">", ">=") and not isinstance(wanted, float):
        raise InputError(
            f"{text!r} is not a number" if text else f"there is no number after {sign}",
            where=f"--where {expression}",
            mend=f"write one, as {key}{sign}0.001",
        )

    def test(document: dict[str, Any]) -> bool:
        value = value_of(document, key)
        if value is None:
            return sign == "!="
        if sign == "~":
            return compare(value, text)
        if isinstance(wanted, float) and isinstance(value, int | float) and not isinstance(value, bool):
            return compare(float(value), wanted)
        if isinstance(wanted, float):
            return sign == "!=" or (sign == "=" and str(value) == text)
        return compare(str(value).lower() if isinstance(value, bool) else str(value), wanted)

    return key, test


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def value_of(document: dict[str, Any], key: str) -> Any:
    """Return what `key` names in a run document, None where it has no such value."""
    if key in document:
        value: Any = document[key]
        return value.get(key) if isinstance(value, dict) and key in value else value
    config = document.get("config", {})
    if key in config:
        return config[key]
    if key.startswith("config.") and key[7:] in config:
        return config[key[7:]]
    value = document
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        ends = [name for name in config if name.rsplit(".", 1)[-1] == key]
        value = config[ends[0]] if ends else document.get("last", {}).get(key)
    if isinstance(value, str) and value.startswith(("nan:", "inf", "-inf")):
        return decode_number(value)
    return value


def _sort_key(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (2, 0.0, "")
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))
