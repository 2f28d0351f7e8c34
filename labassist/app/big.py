"""A verdict in large letters, three cells high (five in ASCII): readable across a room, and by colour alone never."""

from __future__ import annotations

# Five rows of dots a letter.
_LETTERS = {
    "A": ("0110", "1001", "1111", "1001", "1001"),
    "B": ("1110", "1001", "1110", "1001", "1110"),
    "C": ("0111", "1000", "1000", "1000", "0111"),
    "D": ("1110", "1001", "1001", "1001", "1110"),
    "E": ("111", "100", "110", "100", "111"),
    "G": ("0111", "1000", "1011", "1001", "0111"),
    "H": ("1001", "1001", "1111", "1001", "1001"),
    "I": ("1", "1", "1", "1", "1"),
    "K": ("1001", "1010", "1100", "1010", "1001"),
    "L": ("100", "100", "100", "100", "111"),
    "M": ("10001", "11011", "10101", "10001", "10001"),
    "N": ("1001", "1101", "1011", "1001", "1001"),
    "O": ("0110", "1001", "1001", "1001", "0110"),
    "P": ("1110", "1001", "1110", "1000", "1000"),
    "R": ("1110", "1001", "1110", "1010", "1001"),
    "S": ("0111", "1000", "0110", "0001", "1110"),
    "T": ("11111", "00100", "00100", "00100", "00100"),
    "V": ("10001", "10001", "01010", "01010", "00100"),
    "W": ("10001", "10001", "10101", "11011", "10001"),
    " ": ("00", "00", "00", "00", "00"),
}

_HALVES = {"00": " ", "10": "▀", "01": "▄", "11": "█"}


def big(word: str, *, plain: bool) -> list[str]:
    """Return the rows of a word in capitals; a letter that the verdicts do not need is a space."""
    letters = [_LETTERS.get(letter, _LETTERS[" "]) for letter in word.replace("_", " ")]
    rows = ["0".join(letter[row] for letter in letters) for row in range(5)]
    if plain:
        return [row.replace("0", " ").replace("1", "#") for row in rows]
    rows.append("0" * len(rows[0]))
    return [
        "".join(_HALVES[upper + lower] for upper, lower in zip(rows[at], rows[at + 1], strict=True))
        for at in (0, 2, 4)
    ]
