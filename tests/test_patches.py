"""The lines that a patch adds, in which secrets are looked for."""

from __future__ import annotations

from labassist.ledger import patches


def test_added_lines_that_look_like_headers() -> None:
    patch = (
        b"diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,4 @@ def f\n a\n"
        b"++++ b/evil\n+@@ -1 +1 @@\n+diff --git a/y b/y\n-b\n\\ No newline at end of file\n"
    )
    (change,) = patches.read(patch)
    assert change.path == "x"
    assert change.lines == [(2, "+++ b/evil"), (3, "@@ -1 +1 @@"), (4, "diff --git a/y b/y")]
