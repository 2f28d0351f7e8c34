"""1,200 labelled messages to a shop, made here: most labels are right, some are not, and this file knows which.

    python messages.py 60        a random sample of 60 as a sheet to mark, on standard output

A real set has no such file. Then a person's marks are all there is, which is what this lab practises.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

ROWS, WRONG = 1200, 0.12
"""How many messages there are, and the share of labels that were made wrong."""

SENTENCES = {
    "delivery": (
        "Where is my parcel {n}? It should have come on {day}.",
        "Order {n} says delivered, but nothing is here.",
        "Can the courier bring {thing} to my office instead?",
        "How long does {thing} take to reach the islands?",
        "The tracking of {n} has not moved since {day}.",
    ),
    "refund": (
        "I sent {thing} back on {day}, when is the money returned?",
        "Please refund order {n}, I changed my mind.",
        "I was charged twice for {n} and want one payment back.",
        "You cancelled {n}, but the amount is still gone from my account.",
        "Half of {n} never came. Give me that half of the price back.",
    ),
    "exchange": (
        "{thing} is too small, can I have the next size?",
        "I got the blue one, but ordered red. Please swap it.",
        "Can I change {thing} for the model without a cable?",
        "The zip of {thing} broke on {day}, send me another one.",
        "Wrong colour in order {n}, please replace it.",
    ),
    "invoice": (
        "I need an invoice for {n} with our company's name.",
        "The tax number on the bill of {n} is wrong.",
        "Please send the receipt of {day} as a PDF.",
        "Our bookkeeping misses the bill for {thing}.",
        "Can I have one invoice for {n} and the one before?",
    ),
    "account": (
        "I cannot log in since {day}, the code never arrives.",
        "How do I change the e-mail address of my account?",
        "Please delete my account and my data.",
        "Your site says my password is wrong, it is not.",
        "Can two people share one customer account?",
    ),
}
THINGS = ("the lamp", "the backpack", "the tent", "the kettle", "the winter jacket", "the keyboard")
DAYS = ("Monday", "Tuesday", "3 May", "12 June", "Friday", "Sunday")
LABELS = tuple(SENTENCES)

HEADER = """\
# minutes: ?
# Write the minutes that the marking took above. Then in the first column of every row: a dot where the label
# says what the message wants, an x where another label would be right. A question mark is not judged yet.
"""


@dataclass(frozen=True)
class Message:
    """One row of the set."""

    number: int
    label: str
    """As it stands in the set."""
    text: str
    truth: str
    """What the message is about."""


def messages() -> list[Message]:
    """Return the set, the same one every time."""
    draw = random.Random(20240501)
    found = []
    for number in range(1, ROWS + 1):
        truth = draw.choice(LABELS)
        text = draw.choice(SENTENCES[truth]).format(
            n=draw.randint(10_000, 99_999), day=draw.choice(DAYS), thing=draw.choice(THINGS)
        )
        others = [label for label in LABELS if label != truth]
        label = draw.choice(others) if draw.random() < WRONG else truth
        found.append(Message(number, label, text[0].upper() + text[1:], truth))
    return found


def sample(size: int, seed: int = 0) -> list[Message]:
    """Return `size` messages, each as likely as any other."""
    return sorted(random.Random(seed).sample(messages(), size), key=lambda one: one.number)


def sheet(size: int) -> str:
    """Return a sheet of a random sample, nothing marked."""
    return HEADER + "".join(f"?\t{one.number}\t{one.label}\t{one.text}\n" for one in sample(size))


@dataclass(frozen=True)
class Marks:
    """A sheet as a person left it."""

    minutes: float | None
    marks: dict[int, str]
    """Number of a message -> `.`, `x` or `?`."""

    @property
    def wrong(self) -> int:
        """Labels marked wrong."""
        return sum(mark == "x" for mark in self.marks.values())

    @property
    def left(self) -> int:
        """Rows not judged."""
        return sum(mark not in (".", "x") for mark in self.marks.values())


def read_sheet(path: Path) -> Marks:
    """Return what a sheet says; a line that is no row of it is left out."""
    minutes, marks = None, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# minutes:"):
            try:
                minutes = float(line.partition(":")[2])
            except ValueError:
                minutes = None
        cells = line.split("\t")
        if len(cells) == 4 and cells[1].isdigit():
            marks[int(cells[1])] = cells[0].strip().lower()
    return Marks(minutes, marks)


if __name__ == "__main__":
    print(sheet(int(sys.argv[1]) if len(sys.argv) > 1 else 60), end="")
