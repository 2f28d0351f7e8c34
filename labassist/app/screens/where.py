"""Where the numbers of a screen come from: the file and line, or the formula, of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual import on
from textual.widget import Widget

from labassist.app.actions import WHERE
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.lines import Lines, folded
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece


class WhereScreen(LabScreen):
    """Lists the numbers of the screen behind it, each with its source; the highlighted one's stands whole below."""

    NAME = WHERE

    def __init__(self, behind: str, sources: Sequence[Source]) -> None:
        super().__init__()
        self._behind = behind
        self._sources = sources

    def body(self) -> Iterable[Widget]:
        """Return the list and the whole source of the highlighted number."""
        yield Rows(
            (Column("number", 21), Column("as shown", 20), Column("where from", 0)),
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            empty="no numbers on this screen yet",
            id="list",
        )
        yield Lines(id="whole")

    def on_mount(self) -> None:
        """List them."""
        super().on_mount()
        self.query_one(Rows).show(self._sources)

    def title_line(self) -> list[Line]:
        """Return what this is."""
        return [[("Where from", "strong")], [(f"the numbers of {self._behind}", "dim")]]

    def on_resize(self) -> None:
        """Fold the source anew."""
        super().on_resize()
        self.call_after_refresh(self._moved)

    @on(Rows.Moved)
    def _moved(self) -> None:
        here: Source | None = self.query_one(Rows).here
        lines: list[Line] = []
        if here is not None:
            lines = [[(here.name, "strong"), (f"  {here.value}", "plain")], [(here.source, "plain")]]
        self.lines("#whole").show(*folded(lines, max(20, self.size.width - 4)))

    def _cells(self, source: Source) -> list[Piece]:
        return [(source.name, "plain"), (source.value, "strong"), (source.source, "dim")]
