"""Start the terminal app, or say in one line why it cannot be started here."""

from __future__ import annotations

import argparse
import gc
import locale
import os
import sys
import traceback

from labassist.errors import InputError, LabError
from labassist.workspace import Workspace

SMALL_COMMANDS = "the commands work without one: labassist --help"


def main(args: argparse.Namespace) -> int:
    """Run the app and return its exit status. Raises InputError where there is no workspace or no terminal."""
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if stream is None or not stream.isatty():
            raise InputError(f"the app needs a terminal, and {name} is none", mend=SMALL_COMMANDS)
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise InputError(
            f"the app cannot draw on this terminal (TERM={os.environ.get('TERM', '')})",
            mend=f"set TERM, as TERM=xterm-256color; {SMALL_COMMANDS}",
        )
    plain = args.ascii or not speaks_unicode()
    if plain and args.app_lang == "zh":
        mend = "leave --ascii out" if args.ascii else "use a terminal and a locale of UTF-8"
        raise InputError("Chinese texts cannot be drawn in ASCII", where="--lang zh", mend=mend)
    workspace = Workspace.find(args.workspace)
    if os.environ["TERM"] in NO_COLOUR:
        os.environ["NO_COLOR"] = "1"
    for name in ("COLUMNS", "LINES"):
        # Some shells export them; they would be believed over the terminal, and no resize would be seen.
        os.environ.pop(name, None)
    # Collecting garbage while modules load costs a tenth of the start and frees nothing.
    gc.disable()
    # asyncio takes ssl along where it is there; nothing here speaks TLS, and it is a twentieth of the start.
    tls = sys.modules.get("ssl")
    if tls is None:
        sys.modules["ssl"] = None  # type: ignore[assignment]
    from labassist.app.app import LabApp

    if tls is None:
        del sys.modules["ssl"]

    app = LabApp(workspace, plain=plain, slow=args.slow_link)
    if args.app_lang:
        app.lang = args.app_lang
    status = app.run(mouse=not (args.no_mouse or args.slow_link))
    if app._exception is not None:
        raise _bug(workspace, app._exception)
    if app.farewell:
        print(app.farewell)
    return status if isinstance(status, int) else app.return_code or 0


def _bug(workspace: Workspace, error: Exception) -> LabError:
    """Keep the traceback of what ended the app, and return the line that says so."""
    path = workspace.cache / "app-error.txt"
    kept = f"its traceback is in {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError as unwritten:
        kept = f"its traceback could not be kept ({unwritten.strerror})"
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return LabError(
        f"a bug in labassist ended the app: {said}", mend=f"start it again, runs and replays go on; {kept}"
    )


FEW_GLYPHS = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25")
"""Terminals whose fonts lack braille and most signs, whatever the locale says."""

NO_COLOUR = ("vt100", "vt102", "vt220", "xterm-mono", "screen-mono")
"""Terminals that show no colours."""


def speaks_unicode() -> bool:
    """Tell whether the terminal and its locale can show more than ASCII."""
    if os.environ.get("TERM", "") in FEW_GLYPHS:
        return False
    encoding = (locale.getencoding() or "").lower().replace("-", "")
    return encoding == "utf8" and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
