"""A list of any length with one highlighted row: only the rows on the screen are ever made into text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from labassist.app.palette import HERE, STYLES
from labassist.app.words import Piece, plain


@dataclass(frozen=True)
class Column:
    """A column; with `width` 0 it takes what the others leave, but not more than `most`."""

    name: str
    width: int
    right: bool = False
    wide: bool = False
    """Shown only where the list has at least `WIDE` cells."""
    least: int = 0
    """Shown only where the list has at least so many cells."""
    most: int = 0
    """What a further column of `width` 0 leaves to this one; 0: no end."""


WIDE = 96

Content = tuple[bool, Sequence[Piece]] | None
"""Whether a row is highlighted, and its text and kind a column."""


class Rows(Widget, can_focus=True):
    """Shows rows under a heading. `cells` makes a row into one text and kind a column.

    Posts `Moved` when another row is highlighted and `Chosen` on enter.
    """

    DEFAULT_CSS = "Rows { width: 1fr; height: 1fr; }"

    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("up down k j", "Move the highlight; home, end: the first or last."),
        ("ctrl+u ctrl+d", "Move it by a screen, as pgup and pgdn do."),
        ("enter", "Choose the highlighted row, as a second click does."),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+u", "page(-1)", show=False),
        Binding("pagedown,ctrl+d", "page(1)", show=False),
        Binding("home", "end(False)", show=False),
        Binding("end", "end(True)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """Another row is highlighted, or its content is another one."""

    class Chosen(Message):
        """Enter was pressed on a row."""

    def __init__(
        self,
        columns: Sequence[Column],
        cells: Callable[[Any], Sequence[Piece]],
        *,
        cursor_sign: str,
        empty: str = "",
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.columns = columns
        self.cells = cells
        self.rows: Sequence[Any] = ()
        self.at = 0
        """Index of the highlighted row."""
        self.empty = empty
        """What is shown where there are no rows."""
        self._sign = cursor_sign
        self._top = 0
        self._sorted = ("", False)
        self._painted: dict[int, Content] = {}

    @property
    def here(self) -> Any:
        """The highlighted row, None where there is none."""
        return self.rows[self.at] if self.at < len(self.rows) else None

    @property
    def visible_rows(self) -> int:
        """Rows that have room under the heading."""
        return max(1, self.size.height - 1)

    def show(self, rows: Sequence[Any], at: int | None = None) -> None:
        """Show other rows; `at` is the one to highlight (default: the same index as before)."""
        before = len(self.rows)
        self.rows = rows
        top = self._top
        self.at = min(self.at if at is None else at, max(0, len(rows) - 1))
        self._scroll()
        if top != self._top or bool(before) != bool(rows):
            self.refresh()
        else:
            self.repaint()
        self.post_message(self.Moved())

    def head(self, column: str, *, down: bool) -> None:
        """Say in the heading by which column the rows are sorted, and whether the highest come first."""
        if (column, down) != self._sorted:
            self._sorted = (column, down)
            self._refresh_line(0)

    def repaint(self) -> None:
        """Repaint the rows on the screen whose text is not what was painted."""
        for y in range(1, self.size.height):
            index = self._top + y - 1
            if self._painted.get(y) != self._content(index):
                self._refresh_line(y)

    def action_move(self, by: int) -> None:
        """Highlight the row `by` further down."""
        self._go(self.at + by)

    def action_page(self, by: int) -> None:
        """Go a screen up or down."""
        self._go(self.at + by * max(1, self.visible_rows - 1))

    def action_end(self, last: bool) -> None:
        """Go to the first or last row."""
        self._go(len(self.rows) - 1 if last else 0)

    def action_choose(self) -> None:
        """Choose the highlighted row."""
        if self.here is not None:
            self.post_message(self.Chosen())

    def on_click(self, event: Click) -> None:
        """Highlight the row that was clicked, or choose it where it is highlighted."""
        index = self._top + event.y - 1
        if event.y >= 1 and index == self.at:
            self.action_choose()
        elif event.y >= 1 and index < len(self.rows):
            self._go(index)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Go down."""
        self.action_move(3)
        event.stop()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Go up."""
        self.action_move(-3)
        event.stop()

    def on_resize(self) -> None:
        """Keep the highlighted row on the screen, and the screen full."""
        top = self._top
        self._scroll()
        if top != self._top:
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the heading or a row."""
        width = self.size.width
        if y == 0:
            names = [(self._heading(column.name), "head") for column in self.columns]
            return self._strip(names, "  ", width, here=False)
        index = self._top + y - 1
        if not self.rows:
            text = self.empty if y == 2 or self.size.height < 3 else ""
            return self._plain(f"  {text}", width)
        self._painted[y] = content = self._content(index)
        if content is None:
            return self._plain("", width)
        here, pieces = content
        return self._strip(pieces, f"{self._sign} " if here else "  ", width, here)

    def _heading(self, column: str) -> str:
        sorted_by, down = self._sorted
        return f"{column}{'-' if down else '+'}" if column and column == sorted_by else column

    def _content(self, index: int) -> Content:
        return (index == self.at, self.cells(self.rows[index])) if index < len(self.rows) else None

    def _go(self, to: int) -> None:
        to = max(0, min(to, len(self.rows) - 1))
        if to == self.at or not self.rows:
            return
        before, top, self.at = self.at, self._top, to
        self._scroll()
        if self._top != top:
            self.refresh()
        else:
            for index in (before, to):
                self._refresh_line(index - self._top + 1)
        self.post_message(self.Moved())

    def _scroll(self) -> None:
        room = self.visible_rows
        self._top = max(0, min(self._top, self.at, len(self.rows) - room))
        self._top = max(self._top, self.at - room + 1)

    def _refresh_line(self, y: int) -> None:
        if 0 <= y < self.size.height and self.size.width:
            self.refresh(Region(0, y, self.size.width, 1))

    def _style(self, kind: str, here: bool) -> Style:
        style = self.rich_style + STYLES[kind]
        return style + HERE if here else style

    def _plain(self, text: str, width: int) -> Strip:
        return Strip([Segment(text, self._style("dim", False))]).adjust_cell_length(
            width, self._style("plain", False)
        )

    def _strip(self, pieces: Sequence[Piece], mark: str, width: int, here: bool) -> Strip:
        shown = [
            (column, piece)
            for column, piece in zip(self.columns, pieces, strict=False)
            if width >= (WIDE if column.wide else column.least)
        ]
        fixed = sum(column.width for column, _ in shown) + len(shown) - 1 + len(mark)
        left = width - fixed
        last = max((number for number, (column, _) in enumerate(shown) if not column.width), default=0)
        segments = [Segment(mark, self._style("key", here))]
        ascii_only = getattr(self.app, "plain", False)
        for number, (column, (text, kind)) in enumerate(shown):
            room = column.width or max(4, min(left, column.most) if column.most and number < last else left)
            left -= 0 if column.width else room
            text = text if cell_len(text) <= room else set_cell_size(text, room - 1) + "~"
            text = plain(text) if ascii_only else text
            space = " " * (room - cell_len(text))
            padded = space + text if column.right else text + space
            gap = " " if number < len(shown) - 1 else ""
            segments.append(Segment(padded + gap, self._style(kind, here)))
        return Strip(segments).adjust_cell_length(width, self._style("plain", here))
