"""Every key, screen by screen, out of the one registry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.widget import Widget

from labassist.app import actions
from labassist.app.actions import HELP
from labassist.app.screens.base import LabScreen
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece

MOVING = (
    ("up down k j", "Move the highlight; home, end: to the first, the last."),
    ("ctrl+u ctrl+d", "Move the highlight by a screen, as pgup and pgdn do."),
    ("ctrl+c", "Leave the app at once; runs go on."),
    ("ctrl+z", "Suspend the app; fg brings it back."),
)


class HelpScreen(LabScreen):
    """Lists keys and what they do."""

    NAME = HELP
    CSS_PATH: ClassVar[Any] = "help.tcss"

    def body(self) -> Iterable[Widget]:
        """Return the list of keys."""
        yield Rows(
            (Column("where", 7), Column("keys", 13), Column("what they do", 0)),
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            id="all",
        )

    def on_mount(self) -> None:
        """List the screen's keys that lies behind first."""
        super().on_mount()
        rows: list[tuple[str, str, str]] = []
        for screen in (actions.COURSE, actions.RUN, actions.LEDGER):
            rows += [(screen, " ".join(actions.keys(one)), one.help) for one in actions.on(screen)]
        rows += [("lists" if "highlight" in text else "all", keys, text) for keys, text in MOVING]
        self.query_one(Rows).show(rows)

    def title_line(self) -> list[Line]:
        """Return what this is."""
        return [[("Keys", "strong")], [("the bottom line shows those that work at the moment", "dim")]]

    def _cells(self, row: tuple[str, str, str]) -> list[Piece]:
        where, keys, text = row
        return [(where, "dim"), (keys, "key"), (text, "plain")]
