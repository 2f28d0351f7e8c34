"""Hold files against the seals that were journalled over their beginnings, reading each file once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labassist.ledger.problems import Problem

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
