"""Files of another machine copied below a folder here: small ones in one stream, large ones from where they were cut off."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labassist.errors import LedgerError
from labassist.runs.remote import LOST, Remote, fetch_rest, unwritten

Say = Callable[[str], None]

PRINTF = "%s %T@ %{name}\\0"
"""What find prints of a file for `listed`; `{name}` is P, relative to where it starts, or p, as it was asked."""

LARGE = 8 << 20
"""Files from this size on are brought alone, so that each can go on where it was cut off."""


@dataclass(frozen=True)
class There:
    """A file there, as it was listed: it may have grown since."""

    name: str
    """Relative to the folder that is mirrored."""
    size: int
    time: int


def listed(out: bytes) -> Iterator[There]:
    """Yield the files of what find printed there with PRINTF; their names are as that machine gave them, unchecked."""
    for record in out.split(b"\0")[:-1]:
        size, time, name = os.fsdecode(record).split(" ", 2)
        yield There(name, int(size), int(float(time)))


def joined(names: Iterable[str]) -> bytes:
    """Return names as `xargs -0` and `tar --null` take them."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def is_here(mirror: Path, there: There) -> bool:
    """Say whether a file was mirrored as it was listed."""
    try:
        facts = (mirror / there.name).stat()
    except OSError:
        return False
    return facts.st_size == there.size and int(facts.st_mtime) == there.time


def copy(folder: Remote, mirror: Path, files: Iterable[There], say: Say) -> None:
    """Copy files, of each at least the bytes that were listed. Raises LedgerError; what came is kept."""
    small = {one.name: one for one in files if one.size < LARGE}
    if small:
        # Status 1: a file grew while it was read, as one does that somebody still writes.
        script = f"cd {folder.quoted} && {{ tar -chf - --null --no-recursion -T - || [ $? -eq 1 ]; }}"
        came: set[str] = set()
        folder.stream(script, joined(small), lambda out: _unpack(out, small, mirror, came))
        for name in small.keys() - came:
            raise LedgerError(f"{name} did not come over", where=folder.host, mend=LOST)
    for one in files:
        if one.size >= LARGE:
            say(f"{one.name}, {one.size / 2**20:,.1f} MiB")
            fetch_rest(folder / one.name, mirror / one.name, one.size)
            os.utime(mirror / one.name, (one.time, one.time))


def _unpack(out: IO[bytes], wanted: dict[str, There], mirror: Path, came: set[str]) -> None:
    """Write the files of a tar stream as they come; each appears under its name when it is whole."""
    try:
        with tarfile.open(fileobj=out, mode="r|") as tar:
            for member in tar:
                one = wanted.get(member.name.removeprefix("./"))
                data = tar.extractfile(member) if member.isfile() else None
                if one is None or data is None or member.size < one.size:
                    continue
                target = mirror / one.name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(target.name + ".part")
                partial.write_bytes(data.read())
                os.utime(partial, (one.time, one.time))
                os.replace(partial, target)
                came.add(one.name)
    except tarfile.ReadError:
        return  # the stream was cut: whoever opened it knows why, and what is missing is seen
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise LedgerError(what, where=str(mirror), mend=unwritten(error)) from error
