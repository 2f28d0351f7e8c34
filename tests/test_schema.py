from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from labassist.ledger.records import Code, Machine, Run, to_document
from labassist.ledger.schema import run_schema

FILE = Path(__file__).parents[1] / "ledger" / "schema" / "run.json"


def run() -> Run:
    return Run(
        id="20261130-024932-00c687",
        job="01-first-loop/train",
        kind="job",
        state="running",
        mode="exact",
        seed=1337,
        created="2026-11-30T02:49:32.123Z",
        argv=["python", "train.py"],
        cwd=".",
        machine=Machine("0" * 16, "host", 7),
        code=Code("git", "c" * 40),
    )


def test_the_tracked_schema_is_the_one_of_the_record_types() -> None:
    assert FILE.read_text() == run_schema(), "python -m labassist.ledger.schema ledger/schema"


def test_a_run_document_is_valid_and_a_changed_one_is_not() -> None:
    schema = json.loads(FILE.read_text())
    document = to_document(run())
    jsonschema.validate(document, schema)
    for wrong in ({**document, "state": "paused"}, {**document, "seed": "7"}, {"id": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Run)
