"""Cells of a terminal as a grid of dots: braille has 2 by 4 a cell, the ASCII fallback 1 by 3."""

from __future__ import annotations

# Bit of each dot within a braille cell (Unicode block 2800), by column and row.
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ASCII = ((0x1, 0x2, 0x4),)
# The character for each set of the three dots of an ASCII cell, top dot first.
_ASCII_CHARACTERS = " '-|.:||"

_NARROWEST = 8
"""Cells of plot below which the labels are left out."""


class Canvas:
    """A plot of `rows` cells with labels at its left and, if `axis`, a line of words below it."""

    def __init__(self, width: int, rows: int, axis: bool, labels: dict[int, str], plain: bool) -> None:
        gutter = max((len(label) for label in labels.values()), default=-1) + 1
        if width - gutter < _NARROWEST:
            gutter, labels = 0, {}
        self.axis = axis
        self.width = width - gutter
        """Cells of the plot itself."""
        self.kind = ""
        """What the dots drawn next belong to."""
        self._bits = _ASCII if plain else _BRAILLE
        self._plain = plain
        self._rows = rows
        self._gutter = gutter
        self._labels = labels
        self._across, self._down = len(self._bits), len(self._bits[0])
        self._dots = [[0] * self.width for _ in range(rows)]
        self._kinds = [["axis"] * self.width for _ in range(rows)]
        self._over: dict[tuple[int, int], tuple[str, str]] = {}
        self._protected: set[tuple[int, int]] = set()
        self._axis_marks: set[int] = set()

    @property
    def dots(self) -> int:
        """Columns of dots."""
        return self.width * self._across

    def row(self, share: float) -> int:
        """Return the row of dots (0 is the top one) at a height from 0 to 1."""
        return round((1 - share) * (self._rows * self._down - 1))

    def fill(self, column: int, one: int, other: int) -> None:
        """Set the dots of a column between two rows, both included."""
        cell, across = divmod(column, self._across)
        for row in range(min(one, other), max(one, other) + 1):
            line, down = divmod(row, self._down)
            self._dots[line][cell] |= self._bits[across][down]
            self._kinds[line][cell] = self.kind

    def join(self, column: int, row: int, to_column: int, to_row: int, *, dashed: bool) -> None:
        """Draw a line between two dots; a dashed one leaves out every other pair of columns between them."""
        length = to_column - column
        for at in range(column, to_column + 1):
            if dashed and at % 4 >= 2 and column < at < to_column:
                continue
            start = max(0.0, (at - 0.5 - column) / length)
            end = min(1.0, (at + 0.5 - column) / length)
            self.fill(at, round(row + (to_row - row) * start), round(row + (to_row - row) * end))

    def protect(self, column: int, *rows: int) -> None:
        """Keep the cells of these dots from being laid over."""
        self._protected.update((row // self._down, column // self._across) for row in rows)

    def lay(self, column: int, row: int, character: str) -> None:
        """Lay a character over a cell; one in which a series has an extreme keeps its dots and takes the kind."""
        line, cell = row // self._down, column // self._across
        if (line, cell) in self._protected:
            self._kinds[line][cell] = "smooth"
        else:
            self._over[line, cell] = (character, "smooth")

    def mark(self, column: int) -> None:
        """Put a `!` in the topmost free cell of a column; in a full one below it, or else at its top."""
        cell = column // self._across
        free = [line for line in range(self._rows) if not self._dots[line][cell]]
        if free:
            self._over[free[0], cell] = ("!", "mark")
        elif self.axis:
            self._axis_marks.add(cell)
        else:
            self._over[0, cell] = ("!", "mark")

    def cross(self, column: int) -> None:
        """Draw a vertical line through a column of dots; a cell that shows something keeps it, and its kind tells."""
        cell = column // self._across
        for line in range(self._rows):
            if (line, cell) in self._over:
                self._over[line, cell] = (self._over[line, cell][0], "cursor")
            elif self._dots[line][cell]:
                self._kinds[line][cell] = "cursor"
            else:
                self._over[line, cell] = ("|" if self._plain else "│", "cursor")

    def rows(self, left: str, middle: str, right: str) -> list[list[tuple[str, str]]]:
        """Return the finished cells; the three texts stand on the axis."""
        finished = []
        for line in range(self._rows):
            label = self._labels.get(line, "").rjust(self._gutter - 1)
            cells = [(character, "axis") for character in label + " "] if self._gutter else []
            cells += [
                self._over.get((line, cell)) or (self._character(mask), self._kinds[line][cell])
                for cell, mask in enumerate(self._dots[line])
            ]
            finished.append(cells)
        if self.axis:
            text = left.ljust(max(0, self.width - len(right)))[: self.width - len(right)] + right
            text = text[-self.width :]
            if middle:
                start = (self.width - len(middle)) // 2
                text = text[:start] + middle + text[start + len(middle) :]
            cells = [(character, "axis") for character in " " * self._gutter + text.rjust(self.width)]
            for cell in self._axis_marks:
                cells[self._gutter + cell] = ("!", "mark")
            finished.append(cells)
        return finished

    def _character(self, mask: int) -> str:
        if self._plain:
            return _ASCII_CHARACTERS[mask]
        return chr(0x2800 + mask) if mask else " "
