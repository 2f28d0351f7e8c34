"""`labassist pull HOST:PATH`: bring another machine's runs home over ssh.

The ledger there is mirrored into the cache here, the journal first, so that whatever it names is there when
it is copied. A file that is here already, by size and time, is not copied again, and a large one goes on where
it was cut off. What was mirrored is then imported as from any folder, with every hash checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from labassist.errors import CodeError, InputError, LedgerError, counted
from labassist.ledger import codestore
from labassist.ledger.store import Ledger
from labassist.runs.belongings import digest_of
from labassist.runs.bring import bring
from labassist.runs.merge import Merged, linked, moved
from labassist.runs.mirror import PRINTF, Say, There, copy, is_here, listed
from labassist.runs.pull_work import mirror_work
from labassist.runs.remote import Remote, command, fetch_rest
from labassist.workspace import Workspace

_CHECKPOINT = re.compile(r"runs/([^/]+)/checkpoints/step-(\d{8})/(.+)")
_FACTS = """
cd {path} 2>/dev/null || {{ [ -f {path} ] && printf 'file %s' "$(stat -c %s {path})"; exit 0; }}
[ -f ledger/journal.jsonl ] || {{ printf none; exit 0; }}
printf 'lab %s\\n%s\\n' "$(pwd -P)" "$(git rev-parse --show-toplevel 2>/dev/null)"
"""
_LISTING = (
    "cd {path}/ledger && find -L . -type f ! -name '*.tmp' ! -path './aside/*' ! -path '*/step-*.tmp/*' "
    f"-printf '{PRINTF.format(name='P')}'"
)


def pull(
    workspace: Workspace,
    ledger: Ledger,
    source: Remote,
    *,
    checkpoints: str,
    say: Say,
    most: float | None = None,
) -> Merged:
    """Mirror what lies at `source`, a workspace or a bundle, and import it.

    Outputs of runs with a file above `most` bytes stay there, and a note names them. Raises InputError when nothing
    of ours lies there, LedgerError for a lost link, with the way to go on.
    """
    key = re.sub(r"[^A-Za-z0-9]+", "-", str(source)).strip("-")[-60:]
    mirror = workspace.cache / "pull" / f"{key}-{hashlib.sha256(str(source).encode()).hexdigest()[:8]}"
    mirror.mkdir(parents=True, exist_ok=True)
    mirror.chmod(0o700)
    kind, _, rest = source.run(_FACTS.format(path=source.quoted)).decode().partition(" ")
    if kind == "file":
        target = mirror / PurePosixPath(source.path).name
        say(f"bringing {source}, {int(rest) / 2**20:,.1f} MiB")
        with _private():
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
    with _private():
        _mirror_journal(home, mirror / "ledger")
        with Ledger.open(mirror / "ledger", readonly=True) as theirs:
            # What still runs is written while it is read; it comes when it has ended.
            ended = {row["id"] for row in theirs.runs if row.get("state", "running") != "running"}
            if not ended:
                mend = "pull again then; on it, `labassist leave` stops what runs"
                raise InputError("no run there has ended yet", where=str(source), mend=mend)
            _mirror_files(home, mirror / "ledger", ended, checkpoints, say)
            notes = mirror_work(home, mirror, workspace, theirs, checkpoints=checkpoints, most=most, say=say)
        notes += _mirror_code(home, top, mirror / "ledger")

    def place(origin: Path, target: Path) -> None:
        # The mirror keeps what the next pull compares with; what runs made is looked for in the workspace.
        (linked if origin.is_relative_to(mirror / "ledger") else moved)(origin, target)

    merged = bring(workspace, ledger, mirror, checkpoints=checkpoints, place=place)
    merged.notes = notes + merged.notes + list(_not_placed(mirror, workspace.root))
    return merged


def _not_placed(mirror: Path, workspace: Path) -> Iterator[str]:
    """Say where a file lies that came and found another one in its place; drop what is here twice."""
    for path in sorted(mirror.rglob("*")):
        inside = path.relative_to(mirror)
        if inside.parts[0] == "ledger" or not path.is_file() or path.suffix == ".part":
            continue
        if digest_of(workspace / inside) == digest_of(path):
            path.unlink()
        else:
            yield f"{inside} as it came lies at {path}, in a cache: put it where you want it"


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Make what is written meanwhile readable by nobody else: logs may hold anything that a script printed."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


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


def _mirror_files(home: Remote, mirror: Path, ended: set[str], checkpoints: str, say: Say) -> None:
    listing = list(_listing(home, ended, checkpoints))
    missing = [one for one in listing if not is_here(mirror, one)]
    total = sum(one.size for one in missing)
    say(f"{counted(len(listing), 'files')} there, {len(missing)} to bring, {total / 2**20:,.1f} MiB")
    copy(home / "ledger", mirror, missing, say)


def _listing(home: Remote, ended: set[str], checkpoints: str) -> Iterator[There]:
    """Yield the files to mirror: of each run that has ended the checkpoints that are wanted, whole ones only."""
    found = []
    for one in listed(home.run(_LISTING.format(path=home.quoted))):
        if ".." in PurePosixPath(one.name).parts or one.name.startswith("/"):
            raise LedgerError(f"the ledger there has a file named {one.name!r}", where=str(home))
        found.append(one)
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
        kind, *inside = PurePosixPath(one.name).parts
        # What another trainer keeps in a folder of its own comes with what runs made.
        own = len(inside) <= 2 or inside[1] == "checkpoints"
        if kind == "objects" or (kind == "runs" and inside[0] in ended and own):
            yield one


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
