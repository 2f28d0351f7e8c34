"""What the keys do: those of the part that has them now, those of this screen, and all the others."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from labassist.app import actions
from labassist.app.actions import HELP
from labassist.app.screens.base import LabScreen
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece

EVERYWHERE = (
    ("ctrl+c ctrl+q", "Leave the app at once; runs go on."),
    ("ctrl+z", "Suspend the app; fg brings it back."),
)


class HelpScreen(LabScreen):
    """Lists keys and what they do."""

    NAME = HELP

    def __init__(self, behind: str, focused: Widget | None) -> None:
        """`behind` is the screen that asks, `focused` the part of it that takes the keys."""
        super().__init__()
        self._behind = behind
        self._focused = focused

    def body(self) -> Iterable[Widget]:
        """Return the list of keys."""
        yield Rows(
            (Column("where", 10), Column("keys", 13), Column("what they do", 0)),
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            id="list",
        )

    def on_mount(self) -> None:
        """List the keys, the nearest first."""
        super().on_mount()
        rows = [("here", keys, text) for keys, text in getattr(self._focused, "KEYS", ())]
        others = [screen for screen in actions.MAIN if screen != self._behind]
        for screen in (self._behind, *others):
            rows += [(screen, " ".join(actions.keys(one)), one.help) for one in actions.on(screen)]
        rows += [("all", keys, text) for keys, text in EVERYWHERE]
        self.query_one(Rows).show(rows)

    def title_line(self) -> list[Line]:
        """Return what this is."""
        return [[("Keys", "strong")], [("the bottom line shows those that work at the moment", "dim")]]

    def _cells(self, row: tuple[str, str, str]) -> list[Piece]:
        where, keys, text = row
        return [
            (where, "strong" if where in ("here", self._behind) else "dim"),
            (keys, "key"),
            (text, "plain"),
        ]
