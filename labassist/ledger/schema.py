"""The JSON Schemas of run documents and of the course's marks, generated from the record types.

`python -m labassist.ledger.schema ledger/schema` writes them; tests keep the files in step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from labassist.ledger.records import SCHEMA, Mark, Run


def run_schema() -> str:
    """Return the schema as the text of `ledger/schema/run.json`."""
    return _text(Run, "run document")


def course_schema() -> str:
    """Return the schema as the text of `ledger/schema/course.json`."""
    return _text(Mark, "mark of the course")


def _text(record: type[msgspec.Struct], what: str) -> str:
    schema = msgspec.json.schema(record)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A {what} of a labassist ledger (schema {SCHEMA})",
    }
    return json.dumps({**head, **schema}, indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    for name, text in (("run", run_schema()), ("course", course_schema())):
        (Path(sys.argv[1]) / f"{name}.json").write_text(text)
