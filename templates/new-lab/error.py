"""An exercise: the mean squared error, by hand."""

from __future__ import annotations

import json


def mean_squared_error(predicted: list[float], wanted: list[float]) -> float:
    """Return the mean of the squared distances."""
    errors = [p - t for p, t in zip(predicted, wanted, strict=True)]
    return sum(errors) / len(errors)  # your turn


if __name__ == "__main__":
    print(json.dumps({"error": mean_squared_error([1.0, 2.0, 4.0], [1.0, 0.0, 1.0])}))
