"""Where the course content lies: labs/, templates/ and the ledger's page.

A wheel carries it inside the package as `_content`; in a checkout (and an editable install, which points
at one) it stands beside the package.
"""

from __future__ import annotations

from pathlib import Path

from labassist.errors import InputError


def root() -> Path:
    """Return the folder that holds `labs/`, `templates/` and `ledger/README.md`.

    Raises InputError when this installation has no content (a package folder copied by hand).
    """
    package = Path(__file__).resolve().parent
    for place in (package / "_content", package.parent):
        if (place / "labs").is_dir() and (place / "templates").is_dir():
            return place
    raise InputError(
        "this labassist has no labs",
        where=str(package),
        mend="install it again from its wheel, or run it from a whole checkout",
    )
