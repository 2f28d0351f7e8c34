"""Canonical JSON, and the encoding of the numbers that JSON lacks (docs/formats.md).

Standard library only: the trainer's recorder writes its lines with these functions too.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any


def dumps(obj: Any) -> bytes:
    """Return canonical JSON: sorted keys, no spaces, UTF-8, floats in their shortest exact form.

    Raises ValueError on a nan, an infinity or a lone surrogate, TypeError on what JSON cannot hold.
    """
    text = json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def encode_number(x: float) -> float | str:
    """Return `x` as JSON can hold it: itself, `"inf"`, `"-inf"`, or `"nan:<16 hex digits>"`.

    The digits are the big-endian bytes of the IEEE 754 double, so that a nan keeps its sign and payload.
    """
    if math.isfinite(x):
        return x
    if math.isnan(x):
        return "nan:" + struct.pack(">d", x).hex()
    return "inf" if x > 0 else "-inf"


def decode_number(v: float | str) -> float:
    """Return the number that `encode_number` made `v` from. Raises ValueError on anything else."""
    if isinstance(v, str):
        if v == "inf" or v == "-inf":
            return float(v)
        digits = v.removeprefix("nan:")
        if len(digits) == 16 and len(v) == 20 and set(digits) <= set("0123456789abcdef"):
            number: float = struct.unpack(">d", bytes.fromhex(digits))[0]
            if math.isnan(number):
                return number
    elif isinstance(v, (int, float)) and not isinstance(v, bool):
        return float(v)
    raise ValueError(f"{v!r} is not a number of this format")
