"""`labassist import`: a bundle, or another workspace's ledger as it lies on some disk."""

from __future__ import annotations

from pathlib import Path

from labassist.errors import InputError
from labassist.ledger.store import Ledger
from labassist.runs.merge import Merged, Place, copied, merge, moved
from labassist.runs.parcel import collect, read
from labassist.runs.scratch import scratch
from labassist.workspace import Workspace


def bring(
    workspace: Workspace, ledger: Ledger, path: Path, *, checkpoints: str = "all", place: Place = copied
) -> Merged:
    """Import what lies at `path`: a bundle, or the folder of a workspace or ledger, which is only read.

    `checkpoints` and `place` say which of a folder's checkpoints are taken and how. Raises InputError for
    anything else or a clash, LedgerError for damage.
    """
    if path.is_file():
        with scratch(workspace, "import") as work:
            return merge(read(path, work / "bundle"), workspace.root, ledger, moved)
    folder = path.resolve()
    root = folder.parent if folder.name == "ledger" and (folder / "journal.jsonl").is_file() else folder
    if not (root / "ledger" / "journal.jsonl").is_file():
        what = "there is no such file" if not path.exists() else "there is no ledger in it"
        raise InputError(what, where=str(path), mend="give a bundle, or the folder of a workspace")
    other = Workspace(root)
    if other.ledger.resolve() == ledger.folder.resolve():
        raise InputError("this is the ledger itself", where=str(path))
    with scratch(workspace, "import") as work, Ledger.open(other.ledger, readonly=True) as theirs:
        parcel = collect(other, theirs, (), checkpoints=checkpoints, scratch=work)
        return merge(parcel, workspace.root, ledger, place)
