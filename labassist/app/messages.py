"""What the app's threads tell its screens. A thread never touches a widget: it posts one of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from textual.message import Message

from labassist.app.words import Line

if TYPE_CHECKING:
    from labassist.app.checkpoints import Place
    from labassist.machine.readings import MachineSample

Document = Mapping[str, Any]


@dataclass
class RunsChanged(Message):
    """The ledger holds something else than before. Documents are shared: nobody may change them."""

    runs: Sequence[Document]
    """All runs, oldest first."""
    lives: dict[str, str]
    """Run -> `runs.life.Life`, of every run that the ledger calls running."""
    replays: dict[str, Document]
    """Run -> its newest replay."""
    readonly: bool


@dataclass
class Found(Message):
    """The answer to a search of the ledger."""

    text: str
    runs: Sequence[Document]
    problem: str = ""
    """Why the expression cannot be read."""


@dataclass
class RunGrew(Message):
    """A watched run has new rows of its curve or new lines in its log, or another record or life."""

    run: str
    document: Document
    life: str
    points: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the curve, each with its `step`."""
    log: list[str] | None = None
    """The last lines of the log; None: as before."""
    skipped: int = 0
    """Bytes of the log before the lines shown."""
    begins: bool = False
    """These are the first points: forget what came before."""
    loading: bool = False
    """More of what was there already is about to come."""
    last_sign: float = 0.0
    """When the run last wrote, by its own clock: seconds since the epoch."""


@dataclass
class RunGone(Message):
    """A watched run is not there any more: somebody took its record or its folder away."""

    run: str
    what: str
    """What is missing, in words."""


@dataclass
class RunDetail(Message):
    """What of a run is read only when somebody asks for it."""

    run: str
    checkpoints: list[dict[str, Any]]
    """Its checkpoint documents by step, each with its absolute `folder`."""
    lineage: Sequence[Document]
    """The runs that it came from and those that went on from it, oldest first, itself among them."""
    replays: Sequence[Document]
    patch: str
    """Its uncommitted change as text; empty: none."""
    extra: Sequence[Document]
    """Untracked files kept with it: `Kept` as documents."""
    problems: list[str]
    """What could not be read, in words."""
    chain: Sequence[str] = ()
    """Of a server: the links from its answers to the data, in words."""


@dataclass
class Answered(Message):
    """A labassist command that a screen asked for has ended."""

    key: str
    """The name that the screen gave it."""
    document: Any
    """What it printed with --json; None where it failed."""
    problem: str = ""
    """Why there is no answer, in one line."""


@dataclass
class MachineSampled(Message):
    """One look at the machine."""

    sample: MachineSample


@dataclass
class RunStarted(Message):
    """A run that this app asked for has its id."""

    run: str


@dataclass
class ReplayMoved(Message):
    """A replay that this app started has gone further, or ended."""

    run: str
    """The run that is replayed."""
    phase: str
    """In words, while it goes on."""
    answer: Document | None = None
    """What `replay --json` printed at its end."""
    problem: str = ""
    """Why it ended without an answer."""


@dataclass
class CheckpointsRead(Message):
    """Every checkpoint that the ledger knows and that is there."""

    places: Sequence[Place]


@dataclass
class ExperimentMoved(Message):
    """A `ckpt prove` or `ckpt ablate` that this app started has gone further, or ended."""

    name: str
    phase: str
    """In words, while it goes on."""
    answer: Document | None = None
    """What it printed at its end."""
    problem: str = ""
    """Why it ended without an answer."""


@dataclass
class Notice(Message):
    """One line for the person, until the next one."""

    line: Line
