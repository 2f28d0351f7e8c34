"""What a checkpoint holds, the same for every format: the small description that readers fill and rules judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from labassist.resume.codes import Severity
from labassist.resume.findings import STATES, Finding, finding
from labassist.resume.pickled import Tensor

Presence = Literal["present", "absent", "not_applicable", "derived", "torn", "inconsistent"]

_RANK = {"absent": 0, "not_applicable": 1, "derived": 2, "present": 3, "inconsistent": 4, "torn": 5}


@dataclass
class Weights:
    """The tensors of the model by name, as the file headers say."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    adapter: bool = False

    def rows(self) -> int | None:
        """Return the rows of the input embedding, None where there is none to be told."""
        ends = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
        for name, tensor in self.tensors.items():
            if name.endswith(ends) and len(tensor.shape) == 2:
                return tensor.shape[0]
        return None


@dataclass
class Moments:
    """An optimizer's state, in short."""

    weights: int
    """Weights that its groups name."""
    entries: int
    """Weights that have a state."""
    steps: list[float] = field(default_factory=list)
    shapes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Shapes of the moments that have their weight's shape, once a weight."""
    eight_bit: bool = False
    lacking: int = 0
    """Weights in groups of Adam's kind that have no moments."""
    emptied: bool = False
    """It is of a kind that keeps moments, and holds none."""
    bytes: int = 0


@dataclass
class Description:
    """Everything that a reader found out about one checkpoint."""

    format: str
    path: Path
    framework_version: str = ""
    step: int | None = None
    world_size: int | None = None
    states: dict[str, Presence] = field(default_factory=lambda: dict.fromkeys(STATES, "absent"))
    findings: list[Finding] = field(default_factory=list)
    weights: Weights | None = None
    moments: Moments | None = None
    scheduler_step: int | None = None
    scheduler_ranks: bool = False
    """The scheduler may be stepped once a rank (Accelerate does so)."""
    loose_counts: bool = False
    """Nothing in the format ties the counts of scheduler, optimizer and trainer to each other."""
    fp16: bool = False
    rng: dict[int, str] = field(default_factory=dict)
    """Rank -> digest of its generators."""
    origins: dict[str, dict[int, int]] = field(default_factory=dict)
    """State -> rank in a file's name -> rank under which the file was written, where they differ."""
    own_prefixes: tuple[str, ...] = ()
    """Prefixes that this format's own loader strips."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What a plan is compared with, by the plan's keys; `steps_per_epoch` too where it is known."""

    def mark(self, state: str, presence: Presence) -> None:
        """Note what is known about a state; torn outweighs inconsistent outweighs present."""
        if _RANK[presence] > _RANK[self.states[state]]:
            self.states[state] = presence

    def add(
        self,
        code: str,
        state: str | None = None,
        path: str | Path = "",
        rank: int | None = None,
        severity: Severity | None = None,
        **facts: Any,
    ) -> None:
        """Add a finding. `path` is given relative to the checkpoint, or absolute."""
        text = str(path)
        if isinstance(path, Path) and path.is_relative_to(self.path):
            text = "" if path == self.path else str(path.relative_to(self.path))
        self.findings.append(finding(code, state, text, rank, severity, **facts))

    def limit(self, *states: str, why: str = "", what: str = "this format does not store") -> None:
        """Say which states this format never stores, or in other words `what` is known of them."""
        for state in states:
            self.add("format-limit", state, what=what, why=f" ({why})" if why else "")
