"""One layer of a merge, by hand: W + alpha/r x B A, and what is left of it in 4 bits.

python labs/08-serve/layer.py           shows it
python labs/08-serve/layer.py --check   prints what the check reads
"""

# ruff: noqa: ARG001 - what waits for your lines is not used yet

from __future__ import annotations

import json
import random
import sys

Matrix = list[list[float]]


def product(left: Matrix, right: Matrix) -> Matrix:
    """Return the matrix product: rows of `left` times columns of `right`."""
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)]
        for row in left
    ]


def merged(w: Matrix, a: Matrix, b: Matrix, alpha: float, r: int) -> Matrix:
    """Return the weight that answers as W with its adapter beside it does; B has r columns, A has r rows."""
    return w  # your turn: add the scaled product of B and A


def four_bits(w: Matrix) -> Matrix:
    """Return a weight rounded to sixteen levels, each row by its largest value."""
    rows = []
    for row in w:
        step = max(abs(one) for one in row) / 7.5
        rows.append([max(-8, min(7, round(one / step))) * step for one in row])
    return rows


def apart(one: Matrix, other: Matrix) -> float:
    """Return the 2-norm of a difference."""
    return (
        sum((p - q) ** 2 for a, b in zip(one, other, strict=True) for p, q in zip(a, b, strict=True)) ** 0.5
    )


def drawn(rows: int, columns: int, size: float, seed: int) -> Matrix:
    """Return random weights of about this size."""
    draw = random.Random(seed)
    return [[draw.gauss(0, size) for _ in range(columns)] for _ in range(rows)]


def main() -> None:
    w, a, b = drawn(6, 8, 1.0, 1), drawn(2, 8, 0.1, 2), drawn(6, 2, 0.1, 3)
    whole = merged(w, a, b, 2, 2)
    told = {
        "product": [[y - x for x, y in zip(*rows, strict=True)] for rows in zip(w, whole, strict=True)],
        "double": apart(merged(w, a, b, 4, 2), w),
        "single": apart(whole, w),
        "lost": apart(four_bits(whole), whole),
    }
    if "--check" in sys.argv:
        print(json.dumps(told))
    else:
        print(
            f"the adapter changes the weight by {told['single']:.3f}; with alpha twice as large by {told['double']:.3f}"
        )
        print(f"rounding the merged weight to 4 bits moves it by {told['lost']:.3f}")


if __name__ == "__main__":
    main()
