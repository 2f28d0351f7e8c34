"""A step's text as the app draws it: lines that fit, tables, wide characters."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from labassist.app import words
from labassist.app.markdown import drawn

pytestmark = pytest.mark.ci


def test_markdown_is_drawn_in_lines_that_fit() -> None:
    text = """\
# A heading

A paragraph with `code`, **strong** and *stressed* words and a [page](x.md), long enough
to be folded more than once.

- an item whose text goes on
  in a second line
1. first

      weights   14.2 GiB
      peak      71.2

```
labassist run x
```
> quoted
"""
    lines = drawn(text, 40, words.UNICODE)
    rows = ["".join(text for text, _ in line) for line in lines]
    assert rows[0] == "A heading"
    assert all(len(row) <= 40 for row in rows)
    assert "· an item whose text goes on in a second" in rows
    assert "  line" in rows
    assert "1. first" in rows
    assert "      weights   14.2 GiB" in rows
    assert drawn("  " + "x" * 38, 40, words.UNICODE) == [[("  " + "x" * 38, "code")]]
    assert "  labassist run x" in rows
    assert "| quoted" in rows
    kinds = {text: kind for line in lines for text, kind in line}
    assert (kinds["code"], kinds["strong"], kinds["stressed"]) == ("code", "strong", "strong")
    assert "*" not in "".join(rows)
    assert drawn("中文" * 30, 21, words.UNICODE)[0] == [("中文" * 5, "plain")]


def test_a_table_is_drawn_in_columns_and_its_last_one_is_folded() -> None:
    table = "Before\n| name | does |\n|------|------|\n| torch | numbers and their gradients |\n| 词 | text |\nAfter"
    rows = ["".join(part for part, _ in line).rstrip() for line in drawn(table, 24, words.UNICODE)]
    assert rows == [
        "Before",
        "name   does",
        "torch  numbers and their",
        "       gradients",
        "词     text",
        "After",
    ]
    tools = (Path(__file__).parent.parent / "labs/04-toolchain/steps/tools.md").read_text()
    said = ["".join(part for part, _ in line) for line in drawn(tools, 78, words.UNICODE)]
    assert not any("|" in row for row in said)


def test_a_text_in_wide_characters_is_drawn_by_its_own_rules() -> None:
    """No space between two rows of it, none around its stress, and no row that begins with a comma."""
    text = "把它们变\n小。一次*运行*（run）读入 train.py\n里的数字，字符、字符、字符、字符、（字符）和 x。"
    for width in range(12, 60):
        rows = ["".join(part for part, _ in line) for line in drawn(text, width, words.UNICODE)]
        assert "".join(rows).replace(" ", "") == text.replace("\n", "").replace(" ", "").replace("*", "")
        assert max(map(cell_len, rows)) <= width
        assert not any(row.startswith(tuple("，。、）")) or row.endswith("（") for row in rows)
    assert drawn(text, 200, words.UNICODE)[0][0] == ("把它们变小。一次", "plain")
    assert ("运行", "strong") in drawn(text, 200, words.UNICODE)[0]
