"""A finding of `ckpt check`: a code of the two tables, with its place and its facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from labassist.resume import codes_content, codes_files
from labassist.resume.codes import Code, Severity

CODES: dict[str, Code] = codes_files.CODES | codes_content.CODES
"""Every code that a check can say."""

STATES = ("model", "optimizer", "scheduler", "scaler", "rng", "data_position")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about a checkpoint."""

    code: str
    severity: Severity
    state: str | None
    path: str
    """Relative to the checkpoint."""
    rank: int | None
    message: str
    consequence: str
    mend: str

    def document(self) -> dict[str, Any]:
        """Return it as `ckpt check --json` prints it."""
        return asdict(self)


def finding(
    code: str,
    state: str | None = None,
    path: str = "",
    rank: int | None = None,
    severity: Severity | None = None,
    **facts: Any,
) -> Finding:
    """Return the finding of a code. `severity` overrides the table's, for what a format makes normal."""
    row = CODES[code]
    return Finding(
        code=code,
        severity=severity or row.severity,
        state=state,
        path=path,
        rank=rank,
        message=row.message.format(state=state, rank=rank, **facts),
        consequence=row.consequence,
        mend=row.mend.format(**facts),
    )
