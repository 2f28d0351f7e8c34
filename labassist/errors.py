"""One class hierarchy for everything that can go wrong in front of a person.

An error says what happened, where, and how to mend it, in one line. The command line prints that
line on stderr and exits with `status`; the app shows the same line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class LabError(Exception):
    """Something a person can mend: `what` happened, `where`, and the `mend`."""

    status = 2
    """Exit status of the command that meets this error (CONTRACT: 2 is bad usage or input)."""

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        """Return the one line that a person reads: `where: what; mend`."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        if self.mend:
            line = f"{line}; {self.mend}"
        return harmless(" ".join(line.split()))


class InputError(LabError):
    """A file, option or value that a person gave cannot be used."""


class LedgerError(LabError):
    """The ledger cannot be read or written as asked (damaged, read-only, newer version, no locks)."""


class CodeError(LabError):
    """The code of a run cannot be captured or restored (no git, no commit, a secret in the change)."""


class NoRepositoryError(CodeError):
    """There is no git program, or no repository around the workspace."""


class RestoreError(CodeError):
    """Recorded code or inputs could not be brought back exactly."""


class CheckpointError(LabError):
    """A checkpoint is torn, corrupt, or lacks a state that is needed."""


class AnswerNo(LabError):
    """The command worked and the answer is no (a check failed, a problem was found)."""

    status = 1


def harmless(text: str) -> str:
    """Return text whose control characters stand escaped: names in a stranger's file would steer the terminal."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else sign.encode("unicode_escape").decode()
        for sign in text
    )


def counted(number: int, words: str) -> str:
    """Return a number with its words, which are given for many: `1 run`, `3 runs`, `1 journal entry`."""
    if number == 1:
        words = f"{words[:-3]}y" if words.endswith("ies") else words.removesuffix("s").removesuffix("S")
    return f"{number:,} {words}"


def some(names: Sequence[str], most: int) -> str:
    """Return names for a message, of too many the first ones and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `, did you mean …?` with the nearest of `names`, or nothing where none is near.

    The last part of a dotted name is tried alone too: `lr` is meant to be `optim.lr`.
    """
    import difflib

    candidates = list(names)
    last = name.rsplit(".", 1)[-1]
    near = difflib.get_close_matches(name, candidates, n=2) or [
        one for one in candidates if one.rsplit(".", 1)[-1] == last
    ]
    return f", did you mean {' or '.join(near)}?" if near else ""
