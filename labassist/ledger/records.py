"""The record types of the ledger, and the one place where their shape is defined.

A run document is what `labassist show` prints and what stands in TinyDB's `_default` table. It stays
small (at most 3 KiB of JSON): scalars, digests and the flat configuration. Everything large is a
content-addressed object, named here by its SHA-256. `ledger/schema/run.json` is generated from `Run`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA = 1
"""Version of the record types; a ledger with a higher one is read-only for this labassist."""

State = Literal["running", "finished", "failed", "stopped", "lost"]
Mode = Literal["exact", "fast"]
VerdictWord = Literal["BITWISE", "WITHIN_NOISE", "DIVERGED", "INCOMPLETE", "INCOMPARABLE"]


class Machine(msgspec.Struct, omit_defaults=True):
    """Where a run was recorded. Only the same machine may call a run `lost`."""

    id: str
    """/etc/machine-id, or an id made once for this user where there is none."""
    host: str
    inode: int = 0
    """Inode of the run's `alive` file: a copied ledger has another one."""


class Kept(msgspec.Struct, omit_defaults=True):
    """One file kept with a run: its path, size in bytes and SHA-256."""

    path: str
    bytes: int
    sha256: str
    """Empty where the content was not hashed (a deny-listed secret, a file over the limit)."""
    stored: bool = True
    """False: recorded by name only, the content is not in the object store."""
    mode: int = 0o644
    """Permission bits; 0o120000 marks a symbolic link whose target is the content."""


class Code(msgspec.Struct, omit_defaults=True):
    """The code of a run. `digest` is equal exactly when two runs ran the same code."""

    vcs: Literal["git", "none"]
    commit: str = ""
    branch: str = ""
    """Empty on a detached HEAD."""
    patch: str = ""
    """Object: `git diff` of the working tree against `commit`; empty when there is none."""
    extra: str = ""
    """Object: JSON list of `Kept`, the untracked files (for vcs none: the script); empty: none."""
    changed: str = ""
    """Object: JSON list of `Kept`, the files of the patch as they ran; a restore is checked against it."""
    package: str = ""
    """Object: tar of the labassist package that recorded the run."""
    digest: str = ""
    """SHA-256 over the tree that the commit, patch and extra make (not branch, not package)."""
    dirty: bool = False
    submodules: list[str] = []
    """`path commit` of each submodule."""


class Input(msgspec.Struct, omit_defaults=True):
    """A data file that the trainer said it read."""

    name: str
    path: str
    """Relative to the workspace where it lies inside it, else absolute."""
    bytes: int
    sha256: str
    stored: bool = False
    """The content is an object too (files up to 4 MB)."""
    split: dict[str, Any] = {}


class Seal(msgspec.Struct):
    """A promise about a file's first `bytes` bytes."""

    bytes: int
    sha256: str


class Origin(msgspec.Struct):
    """The checkpoint a segment went on from."""

    run: str
    step: int


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """One document of the `checkpoints` table."""

    run: str
    step: int
    path: str
    """Relative to the ledger folder."""
    manifest: str
    """SHA-256 of `manifest.json`, which holds the SHA-256 of every file and the digest of every tensor."""
    bytes: int
    tensors: int
    curve: dict[str, Seal]
    """Metrics file name -> seal of its prefix at this checkpoint."""
    rng: str = ""
    """Digest of every RNG state kept in the checkpoint."""
    time: str = ""
    pruned: bool = False
    """Its files were dropped on purpose. The manifest, with the hash of each of them, stays as an object."""
    left: str = ""
    """Where its files were left when the run was brought here, in words; empty where they came along."""


class Verdict(msgspec.Struct, omit_defaults=True):
    """What a replay found; see LEDGER: replay."""

    verdict: VerdictWord
    steps: int = 0
    series: int = 0
    tensors: int = 0
    first_difference: dict[str, Any] | None = None
    likely_causes: list[str] = []


class Run(msgspec.Struct, omit_defaults=True):
    """One run: a segment of training, or one recorded command."""

    id: str
    job: str
    """`01-first-loop/train`, or the command's program name for `run -- CMD`."""
    kind: Literal["job", "command"]
    state: State
    mode: Mode
    seed: int
    created: str
    """UTC, ISO 8601 with milliseconds and a Z."""
    argv: list[str]
    """As started, with `${NAME}` where a secret stood; paths inside the workspace are relative to it."""
    cwd: str
    """Relative to the workspace."""
    machine: Machine
    code: Code
    schema: int = SCHEMA
    profile: str = ""
    note: str = ""
    config: dict[str, Any] = {}
    """Flat: dotted key -> value."""
    threads: int = 0
    env: str = ""
    """Object: the allow-listed environment variables, secrets replaced."""
    environment: str = ""
    """Object: python, OS, every installed distribution."""
    hardware: str = ""
    """Object: CPU, memory, each GPU."""
    randomness: str = ""
    """Object: the determinism flags as the trainer read them back, and RNG digests at its start."""
    versions: dict[str, str] = {}
    """A few facts worth searching: python, torch, cuda, cpu, gpu, labassist."""
    inputs: list[Input] = []
    more_inputs: str = ""
    """Object: a list of the inputs that the document has no room for."""
    outputs: list[Kept] = []
    """Declared `--out` paths of a command, hashed at its end."""
    resumed_from: Origin | None = None
    dropped: list[str] = []
    """States of that checkpoint that were left out on purpose (an ablation)."""
    replay_of: str | None = None
    adopted: list[str] = []
    """`from/to` times during which nobody supervised this run."""
    ended: str = ""
    exit: int | None = None
    signal: int | None = None
    reason: str = ""
    """Why it stopped or failed, in a few words."""
    step: int = 0
    """Last recorded step."""
    total_steps: int = 0
    measured: list[str] = []
    """Series that a clock made, as names or with `*`: recorded and drawn, and not compared by a replay."""
    tokens_per_step: int = 0
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    last: dict[str, Any] = {}
    """Last value of each series (loss, lr, grad_norm, val_loss …)."""
    price: float = 0.0
    """What an hour of its machine cost; 0: not said."""
    currency: str = ""
    cost: float = 0.0
    """At its end: price x hours."""
    max_hours: float = 0.0
    max_cost: float = 0.0
    """The limits at which the supervisor asked for a checkpoint and the end; 0: none."""
    on_end: str = ""
    """A command that was run when the record was closed."""
    on_end_failed: str = ""
    idle: list[str] = []
    """Times when a GPU of the run did nothing for minutes."""
    warnings: list[str] = []
    """What a person should know, in lines: an inexact resume, settings that changed, a second trainer."""
    answers: int = 0
    """Of a server: how many answers were kept with the run until its end."""
    health: str = ""
    """Empty while healthy; else what is wrong, as `loss is nan at step 41`."""
    seals: str = ""
    """Object: files of the run folder -> `Seal` at the end (curves, events, order, log)."""
    verdict: Verdict | None = None
    """Only on replays."""


class CriterionLine(msgspec.Struct):
    """One line of a check's answer."""

    name: str
    ok: bool
    expected: str
    got: str
    source: str


class Outcome(msgspec.Struct, omit_defaults=True):
    """What came out of a thing that had been guessed."""

    text: str
    source: str
    option: str = ""


class Mark(msgspec.Struct, omit_defaults=True):
    """One document of the `course` table: something that a learner did. Documents are added, never changed."""

    lab: str
    step: str
    kind: Literal["guess", "done", "hint", "check"]
    time: str
    """UTC, ISO 8601 with milliseconds and a Z."""
    guess: str = ""
    """The letter, number or text that the learner committed to."""
    hint: int = 0
    """Which hint was taken, from 1."""
    ok: bool = False
    """Of a check: every criterion is met."""
    missing: str = ""
    """Of a check: what it lacked, in place of criteria."""
    criteria: list[CriterionLine] = []
    measured: Outcome | None = None
    evidence: dict[str, str] = {}
    """What the check read -> its digest then: while these are the same, so is the verdict."""


def why_gone(checkpoint: dict[str, Any]) -> str:
    """Return why a checkpoint document has no files here on purpose; empty where they should be here."""
    if checkpoint.get("pruned"):
        return "it was pruned; its hashes are kept"
    return f"it was left behind: {checkpoint['left']}" if checkpoint.get("left") else ""


def to_document(record: msgspec.Struct) -> dict[str, Any]:
    """Return the plain JSON document of a record, as TinyDB keeps it."""
    document: dict[str, Any] = msgspec.to_builtins(record)
    return document


def to_run(document: dict[str, Any]) -> Run:
    """Return the typed record of a run document. Raises msgspec.ValidationError on a bad one."""
    return msgspec.convert(dict(document), Run)
