"""A lab's text for the terminal: the little Markdown that the steps use, as lines of pieces.

Headings, paragraphs, lists, tables, quotes, fenced and indented code, rules; `code`, **strong**, *stress* and links inside
them. Anything else stands as it was written.
"""

from __future__ import annotations

import re
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size

from labassist.app.widgets.lines import folded
from labassist.app.words import Line, Signs

_INLINE = re.compile(
    r"`([^`]+)`|\*\*([^*]+)\*\*|(?<![a-zA-Z0-9_*])\*([^*\s][^*]*)\*|\[([^\]]+)\]\(([^)\s]+)\)"
)
_ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])\s+(.*)")
_RULE = re.compile(r"\s*([-*_])(\s*\1){2,}\s*")
_FENCE = re.compile(r"\s*(```|~~~)")


def drawn(text: str, width: int, marks: Signs) -> list[Line]:
    """Return a Markdown text in lines no wider than `width` cells."""
    lines: list[Line] = []
    block: list[str] = []
    lead = ""
    code = False
    table: list[str] = []

    def flush() -> None:
        nonlocal lead
        if block:
            start: Line = [(lead, "dim")] if lead else []
            lines.extend(folded([[*start, *inline(_joined(block))]], width, indent=len(lead)))
            block.clear()
        lead = ""

    rows = text.splitlines()
    for at, row in enumerate(rows):
        if row.startswith("|") and not code:
            flush()
            table.append(row)
            if not rows[at + 1 : at + 2] or not rows[at + 1].startswith("|"):
                lines.extend(_table(table, width))
                table.clear()
        elif _FENCE.match(row):
            flush()
            code = not code
        elif code or (row.startswith("  ") and not block and not _ITEM.match(row)):
            # Laid out by hand: a table, a command. It stands as it was written, at least two cells in.
            lines.append([(f"  {row}" if code else row, "code")])
        elif not row.strip():
            flush()
            if lines and lines[-1]:
                lines.append([])
        elif row.startswith("#"):
            flush()
            lines.extend(folded([[(row.lstrip("# ").rstrip(), "strong")]], width, indent=0))
        elif _RULE.fullmatch(row):
            flush()
            lines.append([("-" * min(width, 40), "dim")])
        elif item := _ITEM.match(row):
            flush()
            before, sign, rest = item.groups()
            lead = f"{before}{marks.dot if sign in '-*+' else sign} "
            block.append(rest)
        elif row.startswith(">"):
            if lead != "| ":
                flush()
                lead = "| "
            block.append(row.lstrip("> "))
        else:
            block.append(row.strip())
    flush()
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _table(rows: list[str], width: int) -> list[Line]:
    """Return a table whose columns stand under their names; the last one is folded where it is too long."""
    parts = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
    parts = [row for row in parts if any(cell.strip("-: ") for cell in row)]
    wide = [max(map(cell_len, column)) for column in zip_longest(*parts, fillvalue="")]
    lines: list[Line] = []
    for number, row in enumerate(parts):
        before = "".join(f"{set_cell_size(cell, size)}  " for cell, size in zip(row[:-1], wide, strict=False))
        last: Line = [(row[-1], "head")] if number == 0 else inline(row[-1])
        kind = "head" if number == 0 else "strong"
        lines.extend(folded([[(before, kind), *last]], width, indent=cell_len(before)))
    return lines


def _joined(rows: list[str]) -> str:
    """Return the rows of a paragraph as one: words are parted by a space, characters of double width by nothing."""
    text = ""
    for row in rows:
        wide = text and row and cell_len(text[-1]) > 1 and cell_len(row[0]) > 1
        text += row if wide or not text else f" {row}"
    return text


def inline(text: str) -> Line:
    """Return one paragraph's text with its marks taken out and its kinds put in."""
    line: Line = []
    at = 0
    for found in _INLINE.finditer(text):
        if found.start() > at:
            line.append((text[at : found.start()], "plain"))
        code, strong, stress, name, target = found.groups()
        if code:
            line.append((code, "code"))
        elif strong or stress:
            line.append((strong or stress, "strong"))
        else:
            line += [(name, "strong"), (f" ({target})", "dim")]
        at = found.end()
    if at < len(text):
        line.append((text[at:], "plain"))
    return line
