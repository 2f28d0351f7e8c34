"""Your checkpoint. What stands here resumes without a word, and is not the same run.

python labs/03-resume/mine.py --check                     what comes back, and what does not
labassist ckpt prove 03-resume/mine --profile tiny        the same by experiment
"""

from __future__ import annotations

import sys
from typing import Any

from train import Epochs, Parts, train


class Mine(Epochs):
    """Draws as Epochs does; its place in the data is `self.epoch` and `self.drawn`."""

    def state_dict(self) -> dict[str, int]:
        """Return the place in the data."""
        return {}  # your turn

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""


def keep(parts: Parts) -> dict[str, Any]:
    """Return what a checkpoint holds, by the name of the state; the random generators come by themselves."""
    return {"model": parts.model}  # your turn: optimizer, scheduler, scaler, data_position


if __name__ == "__main__":
    if "--check" in sys.argv:
        from rehearse import rehearse

        rehearse(keep, Mine)
    else:
        train(keep, Mine)
