"""Relatives of the dtype fault: each kind of training is interrupted, resumed and compared (docs/exactness.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.fault]

EXACT = {"first": 0, "weights": True}
MENDED = {
    "nf4 adapters": (1, 2, 3),
    "nf4 adapters, fp32 norms (kbit)": (1, 2, 3),
    "nf4 adapters, head trained whole": (1, 2, 3),
    "nf4 DoRA": (1, 2, 3),
    "nf4 adapters, paged 8-bit": (1, 2, 3),
    "random augmentation": (1,),
    "random augmentation, accumulation": (1,),
}
"""Variant -> resumed steps at which the stock trainer may first differ; with the line it is exact."""
SOUND = (
    "adapters of a bf16 base",
    "tied head, trained whole",
    "all weights",
    "all weights, tied",
    "all weights in bf16",
    "all weights, bf16 autocast",
)
NAMED = ("random augmentation in workers", "random iterable dataset", "moving average in a callback")
"""What no line can bring back: docs/exactness.md says why."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "scripts" / "relatives.py")],
        cwd=tmp_path_factory.mktemp("relatives"),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1].removeprefix("FOUND "))


def test_every_variant_is_known(found: Any) -> None:
    assert set(found) == {*MENDED, *SOUND, *NAMED}


@pytest.mark.parametrize("name", MENDED)
def test_stock_resume_differs_and_the_line_mends_it(found: Any, name: str) -> None:
    assert found[name]["line"] == EXACT
    assert found[name]["stock"]["first"] in MENDED[name] and not found[name]["stock"]["weights"]


@pytest.mark.parametrize("name", SOUND)
def test_what_was_exact_stays_exact(found: Any, name: str) -> None:
    assert found[name] == {"stock": EXACT, "line": EXACT}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_only_named_does_differ(found: Any, name: str) -> None:
    assert not found[name]["line"]["weights"]


def test_the_table_of_the_documentation_has_every_variant() -> None:
    text = (ROOT / "docs" / "exactness.md").read_text()
    for name in (*MENDED, *SOUND, *NAMED):
        assert f"| {name} |" in text, name
