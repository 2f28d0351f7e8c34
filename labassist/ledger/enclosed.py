"""A restored tree is a git repository of its own, as the recorded one was when its run began.

What a script asks git there (its commit, the top of its tree), commits, checks out or stashes then concerns the
copy. Without it git would find the user's repository around the scratch folder, and work in that.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from labassist.ledger.gitcmd import Private, Repository, run_git
from labassist.ledger.records import Code

_KEPT = ("user.", "filter.", "core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.ignorecase")
"""Settings of the user's repository that a copy of it needs; remotes are none of them."""


def enclose(code: Code, repo: Repository, tree: Path) -> None:
    """Make `tree`, which holds the restored `code`, a repository that borrows the objects of `repo`.

    It has the recorded branch, at the recorded commit, and no other, no tag and no remote: nobody recorded those.
    Raises CodeError.
    """
    folder = tree / ".git"
    for inside in ("refs/heads", "info", "objects/info"):
        (folder / inside).mkdir(parents=True)
    (folder / "objects" / "info" / "alternates").write_bytes(bytes(repo.objects) + b"\n")
    (folder / "HEAD").write_text(code.commit + "\n")
    wide = len(code.commit) == 64
    (folder / "config").write_text(
        f"[core]\n\trepositoryformatversion = {int(wide)}\n\tbare = false\n"
        + ("[extensions]\n\tobjectformat = sha256\n" if wide else "")
    )
    for name in ("exclude", "attributes"):
        if (repo.common_dir / "info" / name).is_file():
            shutil.copyfile(repo.common_dir / "info" / name, folder / "info" / name)
    if (repo.common_dir / "shallow").is_file():
        shutil.copyfile(repo.common_dir / "shallow", folder / "shallow")
    git = Private(folder, tree, wide)
    for key, value in repo.config.items():
        if key.startswith(_KEPT):
            git.run("config", "--local", key, value)
    branch = f"refs/heads/{code.branch}"
    # A branch whose name held a secret was recorded without it, and may be no branch's name any more.
    if code.branch and run_git(tree, "check-ref-format", branch)[0] == 0:
        git.run("update-ref", branch, code.commit)
        git.run("symbolic-ref", "HEAD", branch)
    git.run("read-tree", code.commit)
    git.run("update-index", "-q", "--refresh")
