"""The line that a followed run is told by: its rate is the steps', whatever is measured after one of them."""

from __future__ import annotations

import io
import json

import pytest

from labassist.ledger.store import Ledger
from labassist.runs.live_line import LiveLine
from labassist.workspace import Workspace


@pytest.mark.parametrize("name", ["val_loss", "eval_loss"])
def test_an_evaluation_after_a_step_does_not_sink_its_rate(workspace: Workspace, name: str) -> None:
    with Ledger.open(workspace.ledger, create=True) as ledger:
        folder = ledger.run_folder("20260101-000000-aaaaaa")
        folder.mkdir(parents=True)
        curve = folder / "metrics-rank0.jsonl"
        line = LiveLine(ledger, folder.name, io.StringIO())

        def told(*rows: dict[str, float]) -> str:
            with curve.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            line.draw()
            return line._text()

        assert "2.0 steps/s" in told(*({"step": step, "t": step / 2, "loss": 1.0} for step in (1, 2, 3, 4)))
        text = told({"step": 4, "t": 30.0, name: 2.0})
        assert "2.0 steps/s" in text and f"{name.removesuffix('_loss')} 2.0000" in text
        # The next step's time holds the evaluation before it: that is what is left to wait for, too.
        assert "0.1 steps/s" in told({"step": 5, "t": 30.5, "loss": 1.0})
