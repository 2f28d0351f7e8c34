"""What a serving benchmark asks: texts of its own with varied lengths, or those of a file."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.serving.bench_client import CHAT, Target

SHORTEST, LONGEST = 12, 240
"""Words of our own prompts; a word is about 1.4 tokens."""
TOKENS_A_WORD = 2.0
"""Held free for each word, so that no prompt of ours is too long for a small context."""
WORDS = """clerk harbour letter winter bridge order lamp market river window garden ticket engine paper shelf morning
carpet station kettle mirror answer number street parcel ladder orange silver summer forest bottle pocket corner
travels finds writes carries opens counts sells mends forgets remembers loses paints follows measures sends borrows
slowly quietly again often never twice early late near under beside without because before after while until""".split()  # noqa: SIM905 - reads better than sixty quotes

Prompt = list[dict[str, str]]
"""The messages of a chat; plain text is one message of the user."""


def longest(context: int, max_tokens: int) -> int:
    """Return how many words a prompt of ours may have, `context` being how many tokens a server takes (0: not known).

    Raises InputError where an answer leaves no room for any.
    """
    room = int((context - max_tokens) / TOKENS_A_WORD) - SHORTEST if context else LONGEST
    if room < SHORTEST:
        raise InputError(
            f"an answer of {max_tokens} tokens leaves no room for a prompt in a context of {context}",
            where=f"--max-tokens {max_tokens}",
            mend=f"take at most {max(1, int(context - 2 * SHORTEST * TOKENS_A_WORD))}",
        )
    return min(LONGEST, room)


def own(count: int, seed: int, most: int) -> list[Prompt]:
    """Return seeded prompts of SHORTEST to `most` words, lengths drawn evenly on a logarithmic scale.

    Each begins with another number, so that no two share a beginning that a server could have kept (prefix caching).
    """
    draw = random.Random(seed)
    numbers = draw.sample(range(max(10**6, count)), count)
    prompts = []
    for number in numbers:
        words = round(math.exp(draw.uniform(math.log(SHORTEST), math.log(most))))
        text = " ".join(draw.choice(WORDS) for _ in range(words))
        prompts.append(_user(f"{number:06d}. Go on with this story: {text}"))
    return prompts


def of_file(path: Path, seed: int) -> list[Prompt]:
    """Return the prompts of a file in a seeded order.

    A `.jsonl` or `.json` file has one object a line with `messages`, `prompt`, `instruction` or `question`; any other
    is text with a prompt a line. Raises InputError naming the line that cannot be used.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), mend="name a file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"is no UTF-8: {error.reason}", where=str(path), mend="convert it") from error
    rows = path.suffix in (".jsonl", ".json")
    found = [
        _row(line, f"{path}:{number}") if rows else _user(line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise InputError("holds no prompt", where=str(path), mend="give a prompt a line")
    random.Random(seed).shuffle(found)
    return found


def _user(text: str) -> Prompt:
    return [{"role": "user", "content": text}]


def _row(line: str, where: str) -> Prompt:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise InputError(f"is no JSON: {error}", where=where, mend="one object a line") from error
    if isinstance(row, dict):
        messages = row.get("messages")
        if isinstance(messages, list) and messages and all(_message(one) for one in messages):
            given = messages[:-1] if messages[-1]["role"] == "assistant" else messages
            if given:
                return [{"role": one["role"], "content": one["content"]} for one in given]
        for key in ("prompt", "instruction", "question"):
            if isinstance(row.get(key), str) and row[key].strip():
                return _user(row[key])
    raise InputError(
        "holds no prompt", where=where, mend='give "messages", "prompt", "instruction" or "question"'
    )


def _message(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)


def body(prompt: Prompt, where: Target, model: str, max_tokens: int, *, ignore_eos: bool) -> bytes:
    """Return the request: streamed, the likeliest token each time, with usage at its end where the server knows that."""
    told: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if where.api == CHAT:
        told["messages"] = prompt
    else:
        told["prompt"] = "\n".join(one["content"] for one in prompt)
    if ignore_eos:
        told["ignore_eos"] = True
    return json.dumps(told).encode()
