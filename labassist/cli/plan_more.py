"""The rest of `plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labassist.cli.parsing import Subparsers


def register(inner: Subparsers) -> None:
    """Add the other plans."""
