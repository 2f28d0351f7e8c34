"""Hold files against the seals that were journalled over their beginnings, reading each file once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from labassist.errors import LedgerError
from labassist.ledger.problems import Problem

if TYPE_CHECKING:
    from labassist.ledger.store import Ledger

_BLOCK = 1 << 20


class Sealed(NamedTuple):
    """A promise about the first `bytes` bytes of a file."""

    bytes: int
    sha256: str
    when: str
    """In words: `at the end`, `at step 100`."""


def broken(folder: Path, path: Path, seals: Sequence[Sealed], run: str) -> Problem | None:
    """Return the first of a file's seals that it does not keep, None where it keeps all of them.

    `folder` is the ledger, which the problem's path is relative to.
    """
    name = str(path.relative_to(folder))
    kind = "curve" if path.name.startswith("metrics-") else "file"
    digest, read = hashlib.sha256(), 0
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            for seal in sorted(seals):
                if size < seal.bytes:
                    message = f"has {size} bytes and {seal.bytes} were sealed {seal.when}"
                    return Problem(f"{kind}-altered", message, run, name)
                while read < seal.bytes and (block := file.read(min(_BLOCK, seal.bytes - read))):
                    digest.update(block)
                    read += len(block)
                if digest.hexdigest() != seal.sha256:
                    message = f"the bytes that were sealed {seal.when} have changed"
                    return Problem(f"{kind}-altered", message, run, name)
    except OSError as error:
        code = "altered" if path.exists() else "missing"
        return Problem(f"{kind}-{code}", f"cannot be read: {error.strerror}", run, name)
    return None


def altered_curves(ledger: Ledger, runs: Iterable[dict[str, Any]]) -> list[str]:
    """Say in a line each which curves of these runs are gone, or not as they were sealed at the end."""
    found = []
    for run in runs:
        try:
            sealed = ledger.objects.get_json(run["seals"]) if run.get("seals") else {}
        except LedgerError as error:
            found.append(f"whether the curve of run {run['id']} is what was recorded cannot be told: {error}")
            continue
        for name in sorted(name for name in sealed if name.startswith("metrics-")):
            seal = Sealed(**sealed[name], when="at the end")
            problem = broken(ledger.folder, ledger.run_folder(run["id"]) / name, [seal], run["id"])
            if problem:
                found.append(
                    f"{problem.path} is not what was recorded: {problem.message}; see labassist audit"
                )
    return found
