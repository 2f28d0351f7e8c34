"""How commands are declared: one place for the common options, the examples and one-line usage errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from labassist.errors import did_you_mean

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction["Parser"]

Handler = Callable[[argparse.Namespace], int]

RUN = "id, the start of it or of its last part, @last, @-2 or @JOB"
"""How a run is named, for the help of every argument that takes one."""

THREADS = "CPU threads of the trainer (default: the job's, or every core)"


class UsageError(Exception):
    """The command line itself cannot be read; the message is the whole line."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, and which never guesses at abbreviated options."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self._mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, with options before, between and behind the arguments.

        argparse gives an optional argument its empty value as soon as the one before it is read, so that
        `chat RUN --system S MESSAGE` would have a word too many. Its intermixed parsing calls this method again.
        """
        optional = any(one.nargs in ("?", "*") for one in self._get_positional_actions())
        if self._mixing or not optional:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the message and where to read more."""
        raise UsageError(f"{self.prog}: {' '.join(message.split())}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Name the nearest command or choice, where argparse would print every one of them."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), names) or f"; choose from {', '.join(names)}"
        kind = "command" if isinstance(action, argparse._SubParsersAction) else "value"
        raise argparse.ArgumentError(
            None if kind == "command" else action, f"unknown {kind} {str(value)!r}{hint}"
        )


def common(parser: argparse.ArgumentParser, *, top: bool = False) -> None:
    """Add the options every command takes, before or after its name.

    Only the top parser has defaults: a default in a subparser would overwrite what stood before the name.
    """

    def default(value: object) -> object:
        return value if top else argparse.SUPPRESS

    group = parser.add_argument_group("common options")
    group.add_argument(
        "--json", action="store_true", default=default(False), help="one JSON document on stdout"
    )
    group.add_argument(
        "--workspace",
        metavar="DIR",
        default=default(None),
        help="the workspace (default: the enclosing one, or LABASSIST_WORKSPACE)",
    )
    group.add_argument(
        "--debug", action="store_true", default=default(False), help="show tracebacks of errors"
    )


def command(
    sub: Subparsers,
    name: str,
    handler: Handler,
    *,
    help: str,
    example: str,
    takes_rest: str = "",
) -> Parser:
    """Add a command and return its parser, for its own arguments.

    `help` is one line; `example` is one or more command lines shown at the end of `--help`. With
    `takes_rest`, what stands after the first `--` comes untouched as `args.rest` (None without a `--`);
    it says in the help what that is.
    """
    lines = "\n".join(f"  {line}" for line in example.strip().splitlines())
    parser = sub.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"example:\n{lines}",
    )
    common(parser)
    if takes_rest:
        parser.add_argument_group("after --", takes_rest)
    parser.set_defaults(handler=handler, takes_rest=bool(takes_rest))
    return parser
