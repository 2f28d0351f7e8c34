"""Text of any length that scrolls both ways, or is folded at the edge. Nothing in it is markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.events import MouseScrollDown, MouseScrollUp
from textual.strip import Strip
from textual.widget import Widget

from labassist.app.widgets.lines import folded, painted
from labassist.app.words import Line

ASIDE = 8
"""Cells that left and right move by."""


class Pager(Widget, can_focus=True):
    """Shows lines; the last row says how much more there is."""

    DEFAULT_CSS = "Pager { width: 1fr; height: 1fr; }"

    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("up down k j", "Scroll by a line; home, end: the first or last."),
        ("pgup pgdn", "Scroll by a screen, as ctrl+u and ctrl+d do."),
        ("left right", "Scroll sideways where long lines are not folded."),
        ("f", "Fold long lines at the edge, or let them run on."),
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup,ctrl+u", "page(-1)", show=False),
        Binding("pagedown,ctrl+d", "page(1)", show=False),
        Binding("home", "edge(False)", show=False),
        Binding("end", "edge(True)", show=False),
        Binding("left", "aside(-1)", show=False),
        Binding("right", "aside(1)", show=False),
        Binding("f", "fold", show=False),
    ]

    def __init__(
        self, *, plain: bool = False, follow: bool = False, id: str | None = None, classes: str | None = None
    ) -> None:
        """`plain`: ASCII only. `follow`: stay at the end while lines come in, until somebody scrolls up."""
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._rows: list[Line] = []
        self._plain = plain
        self._follow = follow
        self._at_end = follow
        self._at_last = False
        """The reader went down to the last line: there a hint stands, and less room must not hide it."""
        self._folds = True
        self._top = 0
        self._left = 0

    @property
    def text(self) -> str:
        """All of it, as plain text."""
        return "\n".join("".join(text for text, _ in line) for line in self._lines)

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines in place of the ones before; stay where the reader is."""
        if list(lines) == self._lines:
            return
        self._lines = list(lines)
        self._lay_out()

    def top(self) -> None:
        """Go back to the beginning, as when something else is shown."""
        self._top = self._left = 0
        self._at_last = False
        self.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Leave left and right to the screen while lines are folded."""
        return action != "aside" or not self._folds

    def action_scroll(self, by: int) -> None:
        """Go `by` lines down."""
        self._go(self._top + by)

    def action_page(self, by: int) -> None:
        """Go a screen up or down."""
        self._go(self._top + by * max(1, self._room - 1))

    def action_edge(self, last: bool) -> None:
        """Go to the first or the last line."""
        self._go(len(self._rows) if last else 0)

    def action_aside(self, by: int) -> None:
        """Go sideways, where lines are longer than the screen is wide."""
        longest = max(map(_width, self._rows), default=0)
        left = max(0, min(self._left + by * ASIDE, longest - self.size.width))
        if left != self._left:
            self._left = left
            self.refresh()

    def action_fold(self) -> None:
        """Fold long lines, or let them run on."""
        self._folds = not self._folds
        self._left = 0
        self._lay_out()

    def on_resize(self) -> None:
        """Fold anew; the last line stays where it was read."""
        at_last = self._at_last
        self._lay_out()
        if at_last:
            self.action_edge(True)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Go down."""
        self.action_scroll(3)
        event.stop()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Go up."""
        self.action_scroll(-3)
        event.stop()

    @property
    def _room(self) -> int:
        """Rows for text: one less where the last one tells of more."""
        height = self.size.height
        return height - 1 if len(self._rows) > height > 1 else height

    def _lay_out(self) -> None:
        width = self.size.width
        self._rows = folded(self._lines, width) if self._folds and width else list(self._lines)
        self._go(len(self._rows) if self._at_end else self._top, again=True)

    def _go(self, to: int, *, again: bool = False) -> None:
        most = max(0, len(self._rows) - self._room)
        to = max(0, min(to, most))
        self._at_end = self._follow and to == most
        self._at_last = 0 < to == most
        if again or to != self._top:
            self._top = to
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one row of text, or the one that says how much there is."""
        width, room = self.size.width, self._room
        if y >= room and len(self._rows) > self.size.height:
            last = min(self._top + room, len(self._rows))
            dots = "..." if self._plain else "…"
            return painted(self, [(f"{dots} to line {last:,} of {len(self._rows):,}", "dim")], width)
        index = self._top + y
        line = self._rows[index] if index < len(self._rows) else []
        return painted(self, _from(line, self._left), width)


def _width(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def _from(line: Line, left: int) -> Line:
    """Return a line without its first `left` characters."""
    rest: Line = []
    for text, kind in line:
        if left < len(text):
            rest.append((text[left:], kind))
        left = max(0, left - len(text))
    return rest
