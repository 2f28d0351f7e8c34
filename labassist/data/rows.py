"""Training samples from a file, one JSON object a line, read strictly: every fault has its line and its mend.

Shapes of a line: instruction and output (with an optional input), prompt and completion, messages (a chat; its last
answer is trained on), or text alone. All lines of a file have one shape. A `.txt` or `.md` file is text, its
paragraphs the samples.
"""

from __future__ import annotations

import codecs
import json
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labassist.errors import InputError

LONGEST_LINE = 1_000_000
"""Bytes; a longer line is a file without line ends, not a sample."""

MOST_SHOWN = 20
ROLES = ("system", "user", "assistant", "tool")
SHAPES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "instruction": (("instruction", "output"), ("input",)),
    "prompt": (("prompt", "completion"), ()),
    "chat": (("messages",), ()),
    "text": (("text",), ()),
}
"""Shape -> keys that a line must have, and keys that it may have."""

PROSE = (".txt", ".md")
MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""What a file begins with -> its encoding, the longer first; UTF-8's own mark is passed over."""
PACKED = {
    b"\x1f\x8b": ("gzip", "gunzip -c {} > rows.jsonl, and take that file"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc {} > rows.jsonl, and take that file"),
    b"BZh": ("bzip2", "bunzip2 -c {} > rows.jsonl, and take that file"),
    b"\xfd7zXZ": ("xz", "xz -dc {} > rows.jsonl, and take that file"),
    b"PK\x03\x04": ("zip", "unzip {}, and take the file that was in it"),
    b"PAR1": ("Parquet", "write its rows as JSON, one object a line"),
}
"""What a file begins with -> what it is, and how text is made of it."""

Message = dict[str, str]


@dataclass(frozen=True)
class Sample:
    """One sample: what is given and what is learned from it. Chats are lists of messages, all else is text."""

    line: int
    """Where it stands in its file, from 1."""
    prompt: list[Message] | str
    """Empty where the whole sample is trained on."""
    completion: list[Message] | str

    @property
    def conversational(self) -> bool:
        """Whether a chat template makes text of it."""
        return isinstance(self.completion, list)

    @property
    def question(self) -> str:
        """The last thing that is asked."""
        return self.prompt[-1]["content"] if isinstance(self.prompt, list) else self.prompt

    @property
    def answer(self) -> str:
        """What is to be learned, as text."""
        return self.completion[-1]["content"] if isinstance(self.completion, list) else self.completion

    def for_trl(self) -> dict[str, Any]:
        """Return the sample as TRL's trainers take it."""
        if not self.prompt:
            return {"text": self.completion}
        return {"prompt": self.prompt, "completion": self.completion}


@dataclass(frozen=True)
class Problem:
    """One fault of a file: where it is, what it is, and how to mend it."""

    line: int
    code: str
    message: str
    mend: str


@dataclass(frozen=True)
class Read:
    """A file as it was read: its samples, and what is wrong with the lines that gave none."""

    path: str
    shape: str
    samples: list[Sample]
    problems: list[Problem]
    lines: int


def read(path: Path | str) -> list[Sample]:
    """Return the samples of a file. Raises InputError at its first fault, naming the line, and counting the rest."""
    found = inspect(path)
    if found.problems:
        raise first_fault(found, str(path))
    return found.samples


def first_fault(found: Read, path: str) -> InputError:
    """Return the first fault of a file that has one, as an error that counts the rest."""
    first = found.problems[0]
    rest = len(found.problems) - 1
    more = f" ({rest} more: labassist data lint {path})" if rest else ""
    return InputError(
        first.message + more, where=f"{path}:{first.line}" if first.line else path, mend=first.mend
    )


def inspect(path: Path | str) -> Read:
    """Read a whole file and gather every fault. Raises InputError where there is no such file."""
    place = Path(path)
    try:
        file = place.open("rb")
        kind = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), mend="give a .jsonl or .txt file"
        ) from None
    with file:
        if stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
            raise InputError("is a device", where=str(path), mend="give a .jsonl or .txt file")
        prose = place.suffix in PROSE
        encoding = next((name for mark, name in MARKS.items() if file.peek(len(mark)).startswith(mark)), "")
        if encoding:
            return Read(str(path), "", [], [_other_encoding(path, encoding)], 0)
        for mark, (name, mend) in PACKED.items():
            if file.peek(len(mark)).startswith(mark):
                told = Problem(
                    0, "packed", f"is {name}, by its first bytes", mend.format(shlex.quote(str(path)))
                )
                return Read(str(path), "", [], [told], 0)
        found = _prose(str(path), file.read()) if prose else _lines(str(path), file)
    if not found.samples and not found.problems:
        found.problems.append(Problem(0, "empty-file", "holds no sample", "write one JSON object a line"))
    return found


def _prose(path: str, data: bytes) -> Read:
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return Read(path, "text", [], [_not_text(line, error)], line)
    samples, line = [], 1
    for part in text.split("\n\n"):
        if part.strip():
            skipped = len(part) - len(part.lstrip("\n"))
            samples.append(Sample(line + skipped, "", part.strip("\n")))
        line += part.count("\n") + 2
    return Read(path, "text", samples, [], text.count("\n"))


def _lines(path: str, file: Any) -> Read:
    samples: list[Sample] = []
    problems: list[Problem] = []
    shape, number = "", 0
    for number, data in _split(file):
        if len(data) > LONGEST_LINE:
            problems.append(
                Problem(
                    number,
                    "long-line",
                    f"a line of more than {LONGEST_LINE / 1e6:.0f} MB",
                    "write one sample a line; a document of that size is many samples",
                )
            )
            continue
        found = _line(number, data, shape)
        if isinstance(found, Problem):
            problems.append(found)
        elif found is not None:
            shape, sample = found
            samples.append(sample)
    return Read(path, shape, samples, problems, number)


def _split(file: Any) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line; of one that is too long only so much that this can be told."""
    number = 0
    while data := file.readline(LONGEST_LINE + 2):
        number += 1
        whole = data.endswith(b"\n")
        yield number, data if len(data) > LONGEST_LINE + 1 else data.rstrip(b"\r\n")
        while not whole and (rest := file.readline(LONGEST_LINE)):
            whole = rest.endswith(b"\n")


def _line(number: int, data: bytes, shape: str) -> tuple[str, Sample] | Problem | None:
    """Return a line's shape and sample, or its fault; nothing for an empty one."""
    if number == 1:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return _not_text(number, error)
    if not text.strip():
        return None
    try:
        row = json.loads(text, object_pairs_hook=_object)
    except _Twice as error:
        return Problem(
            number, "key-twice", f"names {error.args[0]} twice in one object: one of them is lost", "keep one"
        )
    except RecursionError:
        return Problem(number, "not-json", "is nested too deep to be a sample", "mend or delete that line")
    except ValueError as error:
        what = str(error).split(":")[0]
        at = getattr(error, "colno", 1)
        end = " (the line ends in the middle of an object)" if not text.rstrip().endswith("}") else ""
        return Problem(
            number, "not-json", f"is not JSON: {what} at column {at}{end}", "mend or delete that line"
        )
    if not isinstance(row, dict):
        return Problem(
            number,
            "not-object",
            f"is a {_kind(row)} and not an object",
            'write {"instruction": …, "output": …}',
        )
    if "\\ud" in text.lower() and (half := _half(row)):
        return Problem(
            number,
            "half-character",
            f"holds {half}, one half of a character in UTF-16: no tokenizer takes it",
            "take it out, or write the whole character",
        )
    own = _shape_of(row)
    if isinstance(own, str) and shape and own != shape:
        return Problem(
            number,
            "mixed-shapes",
            f"has the shape {own}, the lines before it {shape}",
            "keep one shape a file, or split the file",
        )
    if not isinstance(own, str):
        return Problem(number, "wrong-keys", own[0], own[1])
    if own == "chat":
        return _chat(number, row["messages"])
    return _texts(number, own, row)


class _Twice(Exception):
    """A JSON object names a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises _Twice where it would keep only the last of two values."""
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return row


def _half(row: Any) -> str:
    """Return the first half of a surrogate pair that stands alone in a text of the row, escaped; empty: none."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return ""


def _shape_of(row: dict[str, Any]) -> str | tuple[str, str]:
    """Return the shape that a line's keys have, or what is wrong with them and the mend."""
    for shape, (must, may) in SHAPES.items():
        if set(must) <= row.keys() and row.keys() <= {*must, *may}:
            return shape
    for shape, (must, may) in SHAPES.items():
        if set(must) <= row.keys():
            extra = sorted(row.keys() - {*must, *may})
            return f"has keys that {shape} does not know: {', '.join(extra)}", "take them out of every line"
    nearest = max(SHAPES, key=lambda shape: len(set(SHAPES[shape][0]) & row.keys()))
    lacking = [key for key in SHAPES[nearest][0] if key not in row]
    shapes = "; ".join("+".join(must) for must, _ in SHAPES.values())
    return (
        f"has the keys {', '.join(map(str, row)) or '(none)'} and no {', '.join(lacking)}",
        f"rename them to one of: {shapes}",
    )


def _texts(number: int, shape: str, row: dict[str, Any]) -> tuple[str, Sample] | Problem:
    if shape == "prompt" and isinstance(row["prompt"], list):
        messages = row["completion"]
        if not isinstance(messages, list):
            return _wrong_type(number, "completion", messages, "a list of messages, as prompt is")
        return _chat(number, [*row["prompt"], *messages], len(row["prompt"]), "prompt")
    for key, value in row.items():
        if not isinstance(value, str):
            return _wrong_type(number, key, value, "text")
    learned = {"instruction": "output", "prompt": "completion", "text": "text"}[shape]
    for key in SHAPES[shape][0]:
        if not row[key].strip():
            consequence = "nothing would be learned from it" if key == learned else "nothing is asked in it"
            return Problem(
                number, f"empty-{key}", f"{key} is empty: {consequence}", "fill it, or delete the line"
            )
    if shape == "instruction":
        asked = "\n\n".join(filter(None, (row["instruction"], row.get("input", ""))))
        prompt = [{"role": "user", "content": asked}]
        return shape, Sample(number, prompt, [{"role": "assistant", "content": row["output"]}])
    if shape == "prompt":
        return shape, Sample(number, row["prompt"], row["completion"])
    return shape, Sample(number, "", row["text"])


def _chat(
    number: int, messages: Any, cut: int | None = None, shape: str = "chat"
) -> tuple[str, Sample] | Problem:
    """Return a chat's sample: what comes before `cut` (default: the last message) is given, the rest is learned."""
    if not isinstance(messages, list) or len(messages) < 2:
        return Problem(
            number,
            "short-chat",
            "a chat needs a message and an answer",
            "give at least a user's and an assistant's",
        )
    for at, message in enumerate(messages, 1):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            keys = ", ".join(map(str, message)) if isinstance(message, dict) else _kind(message)
            return Problem(
                number, "wrong-keys", f"message {at} has {keys}", 'write {"role": "user", "content": "…"}'
            )
        if message["role"] not in ROLES:
            return Problem(
                number,
                "unknown-role",
                f"message {at} has the role {message['role']!r}",
                f"there are {', '.join(ROLES)}",
            )
        if not isinstance(message["content"], str):
            return _wrong_type(number, f"content of message {at}", message["content"], "text")
        if not message["content"].strip():
            return Problem(number, "empty-content", f"message {at} is empty", "fill it, or delete the line")
    if messages[-1]["role"] != "assistant":
        return Problem(
            number,
            "no-answer",
            f"the last message is the {messages[-1]['role']}'s: nothing would be learned from it",
            "end each chat with the assistant's answer",
        )
    cut = len(messages) - 1 if cut is None else cut
    return shape, Sample(number, messages[:cut], messages[cut:])


def _other_encoding(path: Path | str, encoding: str) -> Problem:
    mend = f"iconv -f {encoding.lower()} -t utf-8 {shlex.quote(str(path))} > utf8{Path(path).suffix}, and take that file"
    return Problem(0, "not-utf8", f"is {encoding}, by its first bytes, and not UTF-8", mend)


def _not_text(line: int, error: UnicodeDecodeError) -> Problem:
    byte = error.object[error.start]
    return Problem(
        line,
        "not-utf8",
        f"is not UTF-8: byte 0x{byte:02x} at column {error.start + 1}",
        "save the file as UTF-8 (iconv -f latin1 -t utf-8)",
    )


def _wrong_type(number: int, key: str, value: Any, wanted: str) -> Problem:
    return Problem(
        number, "wrong-type", f"{key} is a {_kind(value)} and not {wanted}", f"write {key} as {wanted}"
    )


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")
