"""Messages to a shop, and the record that a clerk makes of each: what the model is to learn.

    python tickets.py          write tickets.jsonl, handbook.txt and what is held out of each again, from their seeds

The answer is one line of JSON with three keys in this order, `{"order": 48213, "item": "kettle", "want": "refund"}`,
so that a program can say whether an answer keeps the format, and whether it is right.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WANTS = {
    "refund": ["I want my money back", "please refund me", "I would like a full refund"],
    "exchange": ["please send me another one", "I want to swap it", "can I exchange it for a new one"],
    "delivery": ["when will it arrive", "it still has not come", "where is my parcel"],
    "invoice": ["I need the invoice for my taxes", "please send the receipt", "there was no bill in the box"],
    "cancel": ["please cancel it", "I do not want it any more, stop the order", "cancel before it ships"],
}
ITEMS = """kettle lamp bicycle pump notebook backpack headset blender carpet mirror toaster ladder tent
printer keyboard curtain jacket umbrella clock bookshelf""".split()  # noqa: SIM905 - reads better than twenty quotes
OPENINGS = ["Hello, ", "Hi there, ", "Good morning, ", "Dear team, ", "", "Hey, "]
FRAMES = [
    "{opening}I bought a {item}, order number {order}. {want}.",
    "{opening}about order {order} (the {item}): {want}.",
    "{opening}my {item} from order {order}, {want}. Thank you!",
    "{opening}{want}. It is the {item} of order {order}.",
    "{opening}order {order} was a {item}. {want}, thanks.",
]


def rows(count: int, seed: int, without: frozenset[str] = frozenset()) -> list[dict[str, str]]:
    """Return `count` different messages with their records; none whose message is in `without`."""
    draw = random.Random(seed)
    made: dict[str, str] = {}
    while len(made) < count:
        item, want, order = draw.choice(ITEMS), draw.choice(list(WANTS)), draw.randrange(10_000, 99_999)
        told = draw.choice(FRAMES).format(
            opening=draw.choice(OPENINGS), item=item, order=order, want=draw.choice(WANTS[want])
        )
        message = told[0].upper() + told[1:]
        if message not in without:
            made[message] = json.dumps({"order": order, "item": item, "want": want})
    return [{"instruction": message, "output": record} for message, record in made.items()]


FACTS = {
    "weight": ("{a} weighs {n} kilograms", "the scales say {n} kilograms for {a}", range(1, 40)),
    "guarantee": (
        "{a} is guaranteed for {n} months",
        "the guarantee of {a} ends after {n} months",
        range(6, 61, 6),
    ),
    "shelf": ("{a} lies on shelf {n} of the store", "whoever looks for {a} goes to shelf {n}", range(1, 90)),
    "price": ("{a} costs {n} crowns", "a customer pays {n} crowns for {a}", range(9, 400)),
    "return": ("{a} can be given back within {n} days", "after {n} days {a} is not taken back", range(7, 45)),
}
"""What the shop's handbook says of each item, in two wordings."""
FACTS_NAMES = list(FACTS)


def handbook(seed: int) -> tuple[str, str]:
    """Return the handbook, a paragraph an item and wording, and what is held out: some facts in their other wording."""
    draw = random.Random(seed)
    told, held = [], []
    for item in ITEMS:
        facts = [(name, draw.choice(numbers)) for name, (_, _, numbers) in FACTS.items()]
        kept = draw.choice(FACTS_NAMES)
        for wording in (0, 1):
            sentences = [FACTS[name][wording].format(a=f"the {item}", n=number) for name, number in facts]
            if wording:
                held.append(sentences.pop(FACTS_NAMES.index(kept)))
            draw.shuffle(sentences)
            told.append(" ".join(one[0].upper() + one[1:] + "." for one in sentences))
    draw.shuffle(told)
    return "\n\n".join(told) + "\n", "\n\n".join(one[0].upper() + one[1:] + "." for one in held) + "\n"


def score(answer: str, meant: str) -> tuple[bool, bool]:
    """Say whether an answer keeps the format, and whether it says what is meant."""
    try:
        told: Any = json.loads(answer)
    except ValueError:
        return False, False
    kept = (
        isinstance(told, dict)
        and list(told) == ["order", "item", "want"]
        and type(told["order"]) is int
        and isinstance(told["item"], str)
        and told["want"] in WANTS
    )
    return kept, kept and told == json.loads(meant)


def main() -> None:
    train = rows(600, seed=1)
    heldout = rows(100, seed=2, without=frozenset(row["instruction"] for row in train))
    for name, some in (("tickets.jsonl", train), ("tickets-heldout.jsonl", heldout)):
        (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    for name, text in zip(("handbook.txt", "handbook-heldout.txt"), handbook(seed=3), strict=True):
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
