"""The text to learn from, and the alphabet that turns it into numbers."""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.record import Order

CACHE = Path(".labassist/cache")
PATIENCE = 10  # seconds to wait for a download before the built-in text is taken
SPLIT = {"train": 0.9, "val": 0.1}


class Alphabet:
    """One number a character: its place among the sorted characters of the text."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        self.number = {character: at for at, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """Return the number of each character."""
        return [self.number[character] for character in text]

    def decode(self, numbers: list[int]) -> str:
        """Return the text of these numbers."""
        return "".join(self.characters[number] for number in numbers)


def load(order: Order, data: dict[str, Any]) -> tuple[Alphabet, list[int], list[int]]:
    """Return the alphabet and the numbers of the training and the validation part (the last tenth)."""
    # A replay must read what the recorded run read, so it does not look for a text of its own.
    found = order.inputs["corpus"]["path"] if "corpus" in order.inputs else find(data)
    path = order.input("corpus", found, SPLIT)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError("this is not UTF-8 text", where=str(path), mend="give a text file") from error
    text = text[: data["limit"] or None]
    alphabet = Alphabet(text)
    numbers = alphabet.encode(text)
    cut = int(len(numbers) * SPLIT["train"])
    return alphabet, numbers[:cut], numbers[cut:]


def find(data: dict[str, Any]) -> Path:
    """Return the file to read: the given one, else the downloaded one, else text that Python carries."""
    if data["path"]:
        return Path(data["path"])
    if data["url"]:
        cached = CACHE / f"corpus-{data['sha256'][:12]}.txt"
        if cached.is_file() and hashlib.sha256(cached.read_bytes()).hexdigest() == data["sha256"]:
            return cached
        try:
            content = download(data["url"], data["sha256"])
        except (OSError, ValueError) as error:
            print(f"corpus: no download ({error}); taking Python's own help texts instead", file=sys.stderr)
        else:
            return keep(cached, content)
    from pydoc_data.topics import topics

    content = "\n".join(topics[name] for name in sorted(topics)).encode()
    return keep(CACHE / f"python-topics-{hashlib.sha256(content).hexdigest()[:12]}.txt", content)


def download(url: str, sha256: str) -> bytes:
    """Return what lies at `url`. Raises OSError, or ValueError when it is not what was expected."""
    if not url.startswith("https://"):
        raise ValueError("data.url must begin with https://")
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        content: bytes = answer.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("its SHA-256 is not data.sha256")
    return content


def keep(path: Path, content: bytes) -> Path:
    """Write a cache file in one piece, so that another run never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_bytes(content)
    return partial.replace(path)
