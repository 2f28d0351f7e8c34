"""The entry point: reads the command line, calls the command, and turns errors into one line and a status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

import labassist
from labassist.cli import (
    bench_serve,
    ckpt,
    course,
    curve,
    data,
    doctor,
    finetune,
    home,
    ledger,
    plan,
    runs,
    serving,
    store,
    workspace,
)
from labassist.cli.parsing import Parser, UsageError, common
from labassist.errors import LabError

GROUPS = (
    workspace,
    doctor,
    course,
    runs,
    ledger,
    curve,
    store,
    home,
    ckpt,
    plan,
    data,
    finetune,
    serving,
    bench_serve,
)
"""The command groups, in the order of the help."""

BROKEN_PIPE = 141
"""128 + SIGPIPE, as a shell would report a writer whose reader has gone."""


def build_parser() -> Parser:
    """Return the parser of the whole command line, with every command group."""
    parser = Parser(
        prog="labassist",
        description=labassist.__doc__,
        epilog="example:\n  labassist new my-lab\n  cd my-lab\n  labassist run 01-first-loop/train --profile tiny",
    )
    parser.add_argument("--version", action="version", version=f"labassist {labassist.__version__}")
    parser.add_argument("--ascii", action="store_true", help="the app draws with ASCII signs only")
    parser.add_argument("--no-mouse", action="store_true", help="the app leaves the mouse to the terminal")
    parser.add_argument("--slow-link", action="store_true", help="the app draws seldom; no mouse either")
    language = "language of the labs' texts in the app (default: the locale's, else English)"
    parser.add_argument("--lang", choices=("en", "zh"), dest="app_lang", help=language)
    common(parser, top=True)
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for group in GROUPS:
        group.register(sub)
    parser.set_defaults(handler=None, takes_rest=False, rest=None)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Raises UsageError, or SystemExit for --help and --version.

    Everything after the first `--` belongs to the command that asked for it (`run -- CMD …`), whatever it
    looks like; argparse's own treatment of `--` differs between Python versions.
    """
    parser = build_parser()
    words = list(argv)
    if "--" in words:
        cut = words.index("--")
        try:
            args = parser.parse_args(words[:cut])
        except UsageError:
            args = None
        if args is not None and args.takes_rest:
            args.rest = words[cut + 1 :]
            return args
    return parser.parse_args(words)


def start(args: argparse.Namespace) -> int:
    """Run the parsed command; without one start the terminal app."""
    if args.handler is None:
        from labassist.app.main import main as app

        return app(args)
    status: int = args.handler(args)
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run labassist and return its exit status (CONTRACT: 0 yes, 1 no, 2 bad input, 130 ctrl-c)."""
    words = sys.argv[1:] if argv is None else argv
    # A closed stream (`>&-`) is None in Python: what is printed there has no reader anyway.
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    debug = "--debug" in (words[: words.index("--")] if "--" in words else words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = start(parse(words))
        sys.stdout.flush()
        return status
    except UsageError as error:
        return complain(str(error), 2)
    except BrokenPipeError:
        # The reader has gone (`labassist runs | head`): what is left in the buffer has no place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except LabError as error:
        if debug:
            trace()
        return complain(f"labassist: {error}", error.status)
    except OSError as error:
        if debug:
            trace()
        where = f"{error.filename}: " if error.filename else ""
        return complain(f"labassist: {where}{error.strerror or error}", 2)
    except Exception as error:  # noqa: BLE001 - the last place that can turn a bug into one line
        if debug:
            trace()
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        return complain(
            f"labassist: internal error, a bug in labassist: {detail}; run again with --debug for the traceback",
            2,
        )


def complain(line: str, status: int) -> int:
    """Print one line on stderr and return the status."""
    print(line, file=sys.stderr)
    return status


def trace() -> None:
    """Print the traceback of the error being handled."""
    import traceback

    traceback.print_exc()
