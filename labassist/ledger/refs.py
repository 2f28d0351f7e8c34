"""Which objects the documents of a ledger name: those that must be there, and all that belong to them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from labassist.errors import LedgerError
from labassist.ledger import room
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects

_SHA256 = re.compile(r"[0-9a-f]{64}")

_OF_RUN = ("env", "environment", "hardware", "randomness", "more_inputs", "seals")
_OF_CODE = ("patch", "extra", "changed", "package")


class Needed(NamedTuple):
    """An object that a run cannot do without."""

    sha: str
    what: str
    """In a word or two: `patch`, `input corpus`."""
    run: str


def needed(run: dict[str, Any], objects: Objects) -> Iterator[Needed]:
    """Yield the objects that a run document names, and those that its lists of files name."""
    code, run_id = run.get("code", {}), str(run.get("id", ""))
    for holder, names in ((run, _OF_RUN), (code, _OF_CODE)):
        for name in names:
            if holder.get(name):
                yield Needed(holder[name], name, run_id)
    with contextlib.suppress(LedgerError):  # an object that cannot be read was named above
        for given in room.inputs(run, objects):
            if given.get("stored"):
                yield Needed(given["sha256"], f"input {given['name']}", run_id)
    try:
        files = listing(code.get("extra", ""), objects)
    except LedgerError:
        return  # the list itself was named above
    for kept in files:
        if kept.stored:
            yield Needed(kept.sha256, f"file {kept.path}", run_id)


def closure(documents: Iterable[Any], objects: Objects) -> set[str]:
    """Return every object that is named anywhere in these JSON values, or in an object that they name.

    Any SHA-256 counts for which an object is there, so whatever a later version keeps is found too.
    """
    found: set[str] = set()
    waiting: list[Any] = list(documents)
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            for sha in _SHA256.findall(value) if len(value) >= 64 else ():
                if sha not in found and objects.has(sha):
                    found.add(sha)
                    waiting += _inside(sha, objects)
    return found


def _inside(sha: str, objects: Objects) -> list[Any]:
    """Return the content of an object that is JSON; nothing of any other."""
    with objects.path(sha).open("rb") as file:
        if file.read(1) not in (b"[", b"{"):
            return []
    try:
        return [objects.get_json(sha)]
    except LedgerError:
        return []  # damaged, or a file of the user's that only begins like JSON
