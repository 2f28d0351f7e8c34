"""What was not committed, in short lines."""

from __future__ import annotations

from pathlib import Path

from code_repo import change_everything, write

from labassist.ledger import patches
from labassist.ledger.code import capture
from labassist.ledger.objects import Objects
from labassist.ledger.patches import describe_change
from labassist.ledger.records import Code


def test_a_change_is_described_in_short_lines(repo: Path, objects: Objects) -> None:
    change_everything(repo)
    write(repo, ".env", "A=1\n")
    lines = describe_change(capture(repo, objects, "r"), objects)
    for line in (
        "train.py +2 -2",
        "staged.py +1 -0 added",
        "old.txt +0 -1 deleted",
        "data/weights.bin binary",
        "run.sh +0 -0 mode 755 -> 644",
        "untracked.py kept whole, 4 bytes",
        ".env recorded by name only",
    ):
        assert line in lines
    assert describe_change(Code(vcs="none"), objects) == []


def test_added_lines_that_look_like_headers() -> None:
    patch = (
        b"diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,4 @@ def f\n a\n"
        b"++++ b/evil\n+@@ -1 +1 @@\n+diff --git a/y b/y\n-b\n\\ No newline at end of file\n"
    )
    (change,) = patches.read(patch)
    assert (change.path, change.removed) == ("x", 1)
    assert change.lines == [(2, "+++ b/evil"), (3, "@@ -1 +1 @@"), (4, "diff --git a/y b/y")]
