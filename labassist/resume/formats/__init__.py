"""The formats that `ckpt check` knows, one module a family. Each has a `detect` and a `read`.

`detect(path)` says whether a folder or file is of this family, from names alone where that is enough.
`read(path, verify)` returns its description; with `verify`, checksums are compared too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from labassist.resume.description import Description


class Format(Protocol):
    """What a format's module offers."""

    def detect(self, path: Path) -> bool:
        """Say whether `path` is a checkpoint of this family."""

    def read(self, path: Path, verify: bool) -> Description:
        """Return what it holds."""


def known() -> list[Format]:
    """Return the formats, the most particular first."""
    from labassist.resume.formats import (
        accelerate,
        composer,
        dcp,
        deepspeed,
        hf_trainer,
        lightning,
        nanochat,
        nanogpt,
        ours,
        plain,
        torchtune,
    )

    return [
        ours,
        hf_trainer,
        accelerate,
        dcp,
        deepspeed,
        torchtune,
        nanochat,
        lightning,
        nanogpt,
        composer,
        plain,
    ]
