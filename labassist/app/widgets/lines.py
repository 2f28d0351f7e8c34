"""Lines of text that repaint only the cells that changed. Nothing in a text is markup, so a log cannot act."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from labassist.app.palette import STYLES
from labassist.app.words import Line, Piece, length, plain

NOT_FIRST, NOT_LAST = "，。、；：？！）》」』】”’", "（《「『【“‘"
"""Signs beside characters of double width that begin no row, and that end none."""


class Lines(Widget):
    """Shows lines from the top; what is longer than the widget is wide is cut at its right edge."""

    DEFAULT_CSS = "Lines { height: 1; }"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []

    @property
    def text(self) -> str:
        """What is shown, as plain text."""
        return "\n".join("".join(text for text, _ in line) for line in self._lines)

    def show(self, *lines: Line) -> None:
        """Show these lines in place of the ones before."""
        old, self._lines = self._lines, list(lines)
        for y in range(max(len(old), len(lines))):
            before = old[y] if y < len(old) else []
            after = lines[y] if y < len(lines) else []
            if before != after:
                self._repaint(y, before, after)

    def _repaint(self, y: int, before: Line, after: Line) -> None:
        """Refresh the cells of a line in which two contents differ."""
        width = self.size.width
        if y >= self.size.height or not width:
            return
        old, new = _cells(before, width), _cells(after, width)
        if old is None or new is None:
            self.refresh(Region(0, y, width, 1))
            return
        different = [x for x, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if different:
            self.refresh(Region(different[0], y, different[-1] + 1 - different[0], 1))

    def render_line(self, y: int) -> Strip:
        """Return one line of the widget."""
        line = self._lines[y] if y < len(self._lines) else []
        return painted(self, line, self.size.width)


def painted(widget: Widget, line: Line, width: int) -> Strip:
    """Return a line laid over a widget's own style, cut or filled to `width` cells."""
    own = widget.rich_style
    ascii_only = getattr(widget.app, "plain", False)
    segments = [
        Segment(plain(text) if ascii_only else text, own + STYLES[kind]) for text, kind in line if text
    ]
    return Strip(segments).adjust_cell_length(width, own)


def fitted(pieces: Sequence[Line], width: int, gap: str = "  ") -> Line:
    """Return as many whole parts as fit into `width` cells, the first ones first."""
    line: Line = []
    for part in pieces:
        if not part:
            continue
        more = [(gap, "plain"), *part] if line else part
        if length(line) + length(more) > width:
            break
        line = [*line, *more]
    return line


def wrapped(parts: Sequence[Line], width: int) -> list[Line]:
    """Return whole parts on as many lines as they need."""
    lines: list[Line] = []
    rest = list(parts)
    while rest:
        taken = 1
        while taken < len(rest) and sum(map(length, rest[: taken + 1])) + 2 * taken <= width:
            taken += 1
        lines.append([piece for part in rest[:taken] for piece in [("  ", "plain"), *part]][1:])
        rest = rest[taken:]
    return lines


def folded(lines: Sequence[Line], width: int, indent: int = 2) -> list[Line]:
    """Return lines no wider than `width` cells: what does not fit stands on the next one, moved in by `indent`.

    A line is broken at a space or beside a character of double width if it can, or else anywhere.
    """
    result: list[Line] = []
    for line in lines:
        if width <= 8 or sum(cell_len(text) for text, _ in line) <= width:
            result.append(line)
            continue
        signs = [(sign, kind) for text, kind in line for sign in text]
        start, margin = 0, 0
        while start < len(signs):
            end = _break(signs, start, width - margin)
            result.append([*([(" " * margin, "plain")] if margin else []), *_joined(signs[start:end])])
            start, margin = end, indent
            while start < len(signs) and signs[start][0] == " ":
                start += 1
    return result


def shortened(rows: Sequence[Line], room: int, width: int) -> list[Line]:
    """Return as many rows as there is room for; where some are left out, the last one ends with dots."""
    if len(rows) <= room or room < 1:
        return list(rows)
    return [*rows[: room - 1], [*folded([rows[room - 1]], width - 2)[0], (" …", "dim")]]


def _break(signs: Sequence[Piece], start: int, room: int) -> int:
    """Return where a row that begins at `start` has to end."""
    end, cells = start, 0
    while end < len(signs):
        cells += cell_len(signs[end][0])
        if cells > room:
            break
        end += 1
    if end == len(signs):
        return end
    for cut in range(end, start, -1):
        before, after = signs[cut - 1][0], signs[cut][0]
        if after in NOT_FIRST or before in NOT_LAST:
            continue
        if after == " " and any(sign != " " for sign, _ in signs[start:cut]):
            return cut
        if cell_len(before) > 1 or (cell_len(after) > 1 and before != " "):
            return cut
    return max(end, start + 1)


def _joined(signs: Sequence[Piece]) -> Line:
    return [("".join(sign for sign, _ in run), kind) for kind, run in groupby(signs, key=lambda one: one[1])]


def _cells(line: Line, width: int) -> list[tuple[str, str]] | None:
    """Return a line cell by cell; None where a character is not one cell wide."""
    cells = [(character, kind) for text, kind in line for character in text][:width]
    if any(ord(character) >= 0x1100 for character, _ in cells if not "\u2000" <= character <= "\u28ff"):
        return None
    return cells + [(" ", "plain")] * (width - len(cells))
