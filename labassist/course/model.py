"""What a lab is: the types that lab.toml is read into, and what a check answers.

A lab's folder in the package's content holds `lab.toml`, `steps/<id>.md` (and `<id>.zh.md`) and `checks.py`;
its folder in the workspace holds the job files that a learner edits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

StepKind = Literal["read", "predict", "run", "edit", "check"]
Standing = Literal["locked", "open", "failed", "done"]


@dataclass(frozen=True)
class Predict:
    """A question whose answer is committed before the thing is measured."""

    question: str
    options: dict[str, str]
    """Letter -> text, in order. Empty: the guess is a number or a text of the learner's own."""
    unit: str = ""
    """Of a guessed number, as `GiB`; empty for a choice."""


@dataclass(frozen=True)
class JobRun:
    """A recorded run that a step asks for."""

    job: str
    """`01-first-loop/train`; empty for a command that runs no job."""
    profile: str = ""
    """Empty: the job's default."""
    sets: tuple[str, ...] = ()
    """`--set` values, as `optim.lr=0.02`."""
    command: tuple[str, ...] = ()
    """In place of a job: the words after `labassist` of another recorded command, as `replay @last`.

    Of `run LAB/JOB …` the job, profile and sets are known too.
    """
    lint: JobRun | None = None
    """What `labs lint --run` runs in its place, where the step's own would take more than seconds."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words after `labassist` that start it."""
        if self.command:
            return self.command
        profile = ("--profile", self.profile) if self.profile else ()
        return ("run", self.job, *profile, *(word for one in self.sets for word in ("--set", one)))


@dataclass(frozen=True)
class Edit:
    """A place in a job file that the learner changes."""

    file: str
    """Relative to the lab's folder in the workspace."""
    find: str
    """A text of the line to stand on; the editor opens there."""


@dataclass(frozen=True)
class Alter:
    """How to spoil what one criterion measures, and nothing else: the linter proves by it that the check can fail."""

    criterion: str
    run: str = ""
    """The step whose run is spoiled; empty: this step's own, and where it has none every run that its check read."""
    series: str = ""
    """Every recorded value of this series, and the last one in the run's record, is multiplied by `by`."""
    by: float = 1.0
    config: str = ""
    """This configuration value of the run becomes `to`."""
    field: str = ""
    """This field of the run's record, dotted (`tokens_per_s`, `resumed_from.step`), becomes `to`."""
    to: Any = None
    tensor: str = ""
    """This tensor's digest in the manifest of the run's last checkpoint becomes another."""
    verdict: str = ""
    """The replay's verdict becomes this word."""
    file: str = ""
    """In this file of the learner's lab folder, `find` is replaced by `put`."""
    find: str = ""
    put: str = ""


@dataclass(frozen=True)
class Check:
    """That a step is checked, and how the linter makes each of its criteria fail."""

    alter: tuple[Alter, ...] = ()
    solution: str = ""
    """Of an edit: a file in `solutions/` that stands in for the learner's while the linter runs."""
    seconds: float = 60.0
    """A check that takes longer is stopped."""


@dataclass(frozen=True)
class Step:
    """One step of a lab. Only what its kind needs is there; a predict may stand beside a run."""

    id: str
    title: str
    kind: StepKind
    text: Path
    """Markdown, at most 20 lines of 80 columns."""
    predict: Predict | None = None
    run: JobRun | None = None
    edit: Edit | None = None
    hints: tuple[str, ...] = ()
    """From a nudge to nearly the answer."""
    check: Check | None = None
    """`checks.py` has a function of this step's name (`-` as `_`)."""


@dataclass(frozen=True)
class Lab:
    """A lab as lab.toml says."""

    id: str
    """`01-first-loop`, the folder's name."""
    title: str
    summary: str
    weeks: tuple[int, int]
    needs: str
    """What machine, in words: `laptop`, `laptop | 24 GB card`."""
    hours: float
    """Expected time of a learner."""
    rent_hours: float
    """Expected hours on a rented machine; 0 for a laptop lab."""
    folder: Path
    steps: tuple[Step, ...]
    problem: str = ""
    """What is wrong with its files, in one line with file and line; such a lab has no steps."""
    short: str = ""
    """What a person types for it: `01` where no other lab of the course begins so, else its id."""


@dataclass(frozen=True)
class Criterion:
    """One line of a check's answer."""

    name: str
    ok: bool
    expected: str
    got: str
    source: str
    """Where `got` comes from: `run 91c0 step 412`, `labs/01-first-loop/train.py:88`."""


@dataclass(frozen=True)
class Measured:
    """What came out of a thing that was guessed before, from `measured_<step>` of checks.py."""

    text: str
    """`2.31 GiB`, `oscillates: 7 rises above 0.5`."""
    source: str
    option: str = ""
    """The letter of the option that came true, where there are options."""
