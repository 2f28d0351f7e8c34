"""`labassist pull HOST:PATH`: bring another machine's runs home over ssh.

The ledger there is mirrored into the cache here, the journal first, so that whatever it names is there when
it is copied. A file that is here already, by size and time, is not copied again, and a large one goes on where
it was cut off. What was mirrored is then imported as from any folder, with every hash checked.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from labassist.errors import CodeError, InputError, LedgerError
from labassist.ledger import codestore
from labassist.ledger.store import Ledger
from labassist.runs.bring import bring
from labassist.runs.merge import Merged, linked
from labassist.runs.remote import LOST, Remote, command, fetch_rest
from labassist.workspace import Workspace

Say = Callable[[str], None]

LARGE = 8 << 20
"""Files from this size on are brought alone, so that each can go on where it was cut off."""
_CHECKPOINT = re.compile(r"runs/([^/]+)/checkpoints/step-(\d{8})/(.+)")
_FACTS = """
cd {path} 2>/dev/null || {{ [ -f {path} ] && printf 'file %s' "$(stat -c %s {path})"; exit 0; }}
[ -f ledger/journal.jsonl ] || {{ printf none; exit 0; }}
printf 'lab %s\\n%s\\n' "$(pwd -P)" "$(git rev-parse --show-toplevel 2>/dev/null)"
"""
_LISTING = "cd {path}/ledger && find -L . -type f ! -name '*.tmp' ! -path './aside/*' ! -path '*/step-*.tmp/*' -printf '%s %T@ %P\\0'"


@dataclass(frozen=True)
class There:
    """A file of the ledger there."""

    name: str
    """Relative to its ledger."""
    size: int
    time: int


def pull(workspace: Workspace, ledger: Ledger, source: Remote, *, checkpoints: str, say: Say) -> Merged:
    """Mirror what lies at `source`, a workspace or a bundle, and import it.

    Raises InputError when nothing of ours lies there, LedgerError for a lost link, with the way to go on.
    """
    key = re.sub(r"[^A-Za-z0-9]+", "-", str(source)).strip("-")[-60:]
    mirror = workspace.cache / "pull" / f"{key}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    kind, _, rest = source.run(_FACTS.format(path=source.quoted)).decode().partition(" ")
    if kind == "file":
        target = mirror / PurePosixPath(source.path).name
        say(f"bringing {source}, {int(rest) / 2**20:,.1f} MiB")
        fetch_rest(source, target, int(rest))
        merged = bring(workspace, ledger, target)
        target.unlink()
        return merged
    if kind != "lab":
        raise InputError(
            "no workspace and no bundle lies there", where=str(source), mend="name its folder, as HOST:my-lab"
        )
    folder, top, *_ = rest.split("\n")
    home = Remote(source.host, folder)
    _mirror_journal(home, mirror / "ledger")
    _mirror_files(home, mirror / "ledger", checkpoints, say)
    notes = _mirror_code(home, top, mirror / "ledger")
    merged = bring(workspace, ledger, mirror, checkpoints=checkpoints, place=linked)
    merged.notes = notes + merged.notes
    return merged


def _mirror_journal(home: Remote, mirror: Path) -> None:
    """Bring the new lines of the journal; start again where the one here is not a beginning of it."""
    there, here = home / "ledger/journal.jsonl", mirror / "journal.jsonl"
    mirror.mkdir(parents=True, exist_ok=True)
    have = here.stat().st_size if here.exists() else 0
    if have:
        start = there.run(f"head -c {have} {there.quoted} | sha256sum").decode().split(" ")[0]
        if start != hashlib.sha256(here.read_bytes()).hexdigest():
            here.unlink()
            have = 0

    def take(out: IO[bytes]) -> None:
        with here.open("ab") as file:
            while block := out.read(1 << 20):
                file.write(block)

    there.stream(f"tail -c +{have + 1} {there.quoted}", b"", take)
    # A line that was still being written, or was cut off with the link, is brought whole the next time.
    whole = here.read_bytes().rfind(b"\n") + 1
    os.truncate(here, whole)


def _mirror_files(home: Remote, mirror: Path, checkpoints: str, say: Say) -> None:
    listing = list(_listing(home, checkpoints))
    missing = [one for one in listing if not _is_here(mirror / one.name, one)]
    total = sum(one.size for one in missing)
    say(f"{len(listing)} files there, {len(missing)} to bring, {total / 2**20:,.1f} MiB")
    small = {one.name: one for one in missing if one.size < LARGE}
    if small:
        names = b"".join(name.encode() + b"\0" for name in small)
        script = f"cd {home.quoted}/ledger && tar -chf - --null --no-recursion -T -"
        home.stream(script, names, lambda out: _unpack(out, small, mirror))
    for one in missing:
        if one.size < LARGE:
            if not _is_here(mirror / one.name, one):
                raise LedgerError(f"{one.name} did not come over", where=home.host, mend=LOST)
            continue
        say(f"{one.name}, {one.size / 2**20:,.1f} MiB")
        fetch_rest(home / f"ledger/{one.name}", mirror / one.name, one.size)
        os.utime(mirror / one.name, (one.time, one.time))


def _listing(home: Remote, checkpoints: str) -> Iterator[There]:
    """Yield the files to mirror: of each run the checkpoints that are wanted, whole ones only."""
    found = []
    for record in home.run(_LISTING.format(path=home.quoted)).split(b"\0")[:-1]:
        size, time, name = os.fsdecode(record).split(" ", 2)
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            raise LedgerError(f"the ledger there has a file named {name!r}", where=str(home))
        found.append(There(name, int(size), int(float(time))))
    newest: dict[str, int] = {}
    whole = set()
    for one in found:
        match = _CHECKPOINT.fullmatch(one.name)
        if match and match[3] == "COMMIT":
            whole.add((match[1], int(match[2])))
            newest[match[1]] = max(newest.get(match[1], -1), int(match[2]))
    for one in found:
        match = _CHECKPOINT.fullmatch(one.name)
        if match:
            key = (match[1], int(match[2]))
            if (
                key not in whole
                or checkpoints == "none"
                or (checkpoints == "last" and key[1] != newest[key[0]])
            ):
                continue
        if one.name not in ("journal.jsonl", "head", "view.json") and not one.name.startswith("code.git/"):
            yield one


def _is_here(path: Path, there: There) -> bool:
    try:
        facts = path.stat()
    except OSError:
        return False
    return facts.st_size == there.size and int(facts.st_mtime) == there.time


def _unpack(out: IO[bytes], wanted: dict[str, There], mirror: Path) -> None:
    """Write the files of a tar stream as they come; each appears under its name when it is whole."""
    try:
        with tarfile.open(fileobj=out, mode="r|") as tar:
            for member in tar:
                one = wanted.get(member.name.removeprefix("./"))
                data = tar.extractfile(member) if member.isfile() else None
                if one is None or data is None:
                    continue
                target = mirror / one.name
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_name(target.name + ".part")
                partial.write_bytes(data.read())
                os.utime(partial, (one.time, one.time))
                os.replace(partial, target)
    except tarfile.ReadError:
        return  # the stream was cut: whoever opened it knows why, and what is missing is seen
    except OSError as error:
        raise LedgerError(f"cannot be written: {error.strerror}", where=str(mirror), mend=LOST) from error


def _mirror_code(home: Remote, top: str, mirror: Path) -> list[str]:
    """Fetch the recorded commits into the mirror's own repository; return a note where that cannot be."""
    sources = [top] if top else []
    if home.run(f"[ ! -f {home.quoted}/ledger/{codestore.NAME}/HEAD ] || echo yes"):
        sources.append(f"{home.path}/ledger/{codestore.NAME}")
    notes = []
    for path in sources:
        try:
            codestore.fetch(mirror, f"{home.host}:{path}", command())
        except CodeError as error:
            notes.append(f"the code of its runs did not come over: {error}")
    inner = os.path.relpath(home.path, top) if top else "."
    if inner != ".":
        runs = [path.name for path in (mirror / "runs").iterdir()] if (mirror / "runs").is_dir() else []
        codestore.set_places(mirror, dict.fromkeys(runs, inner))
    return notes
