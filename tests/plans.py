"""Plans, asked as a person asks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labassist.cli.main import main
from labassist.planner import arch
from labassist.planner.plan import Plan


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = main(["plan", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def plan(model: str = "qwen2.5-7b", **values: Any) -> Plan:
    return Plan(arch.load(model), **values).checked()
