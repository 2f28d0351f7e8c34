"""Fill rows up to one length, and say what is filling: 1 for a token that counts, 0 for padding.

python labs/04-toolchain/mask.py           shows it
python labs/04-toolchain/mask.py --check   prints what the check reads
"""

from __future__ import annotations

import json
import sys

ROWS = [[11, 12, 13], [21], [31, 32, 33, 34, 35]]
PAD = 0


def fill(rows: list[list[int]], side: str) -> tuple[list[list[int]], list[list[int]]]:
    """Return the rows filled with PAD on one side, `left` or `right`, and their masks."""
    longest = max(len(row) for row in rows)
    filled, masks = [], []
    for row in rows:
        padding = [PAD] * (longest - len(row))
        mask = [0] * len(padding) + [1] * len(row) if side == "left" else [1] * len(row) + [0] * len(padding)
        filled.append(padding + row if side == "left" else row + padding)
        masks.append(mask)
    return filled, masks


def last(masks: list[list[int]]) -> list[int]:
    """Return the place of each row's last token that counts: where its next token is predicted."""
    return [max(at for at, one in enumerate(mask) if one) for mask in masks]


def main() -> None:
    told = {}
    for side in ("left", "right"):
        filled, masks = fill(ROWS, side)
        told[side] = {"rows": filled, "masks": masks, "last": last(masks)}
    print(json.dumps(told) if "--check" in sys.argv else json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
