"""Commands of one's own in a workspace: a script that makes files, one that records, and `run` for any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import labassist

from labassist.workspace import new

MAKE = """\
import os, sys
os.makedirs("made/deep", exist_ok=True)
open("made/one.txt", "w").write("one " + " ".join(sys.argv[1:]) + "\\n")
open("made/deep/two.bin", "wb").write(bytes(range(256)))
sys.exit(int(os.environ.get("STATUS", "0")))
"""
RECORDED = """\
from labassist import record
order = record.read_order()
recorder = record.start(order=order, total_steps=4)
for step in range(1, 5):
    recorder.record(step, loss=1 / step, batch=record.digest([step]))
recorder.finish(4)
"""


@pytest.fixture(scope="module", name="lab")
def own_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = new(tmp_path_factory.mktemp("command") / "lab").workspace.root
    (root / "make.py").write_text(MAKE)
    return root


def run(lab: Path, *words: str, status: int = 0, env: dict[str, str] | None = None) -> Any:
    return json.loads(labassist("run", "--json", *words, cwd=lab, status=status, env=env).stdout)
