"""The JSON Schema of run documents, generated from the record types.

`python -m labassist.ledger.schema ledger/schema/run.json` writes it; a test keeps the file in step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from labassist.ledger.records import SCHEMA, Run


def run_schema() -> str:
    """Return the schema as the text of `ledger/schema/run.json`."""
    schema = msgspec.json.schema(Run)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A run document of a labassist ledger (schema {SCHEMA})",
    }
    return json.dumps({**head, **schema}, indent=1, sort_keys=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(run_schema())
