"""What one code of `ckpt check` stands for: how bad it is, what it means for a learner, how to mend it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Severity = Literal["info", "notice", "warning", "error"]
"""Normal here, a format's limit, not exact, broken."""

OLDER = "resume from an older checkpoint that is whole"
RETRAIN = "resume from a checkpoint that has it, or accept a run that is not the same"


class Code(NamedTuple):
    """What one code stands for. `message` and `mend` take facts in braces."""

    severity: Severity
    message: str
    consequence: str
    mend: str
