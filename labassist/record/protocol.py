"""The file protocol between a run's launcher and its trainer: names, versions, and the order.

`docs/formats.md` is the contract and this is its code. Only the standard library is used, so that any
Python that can run a trainer can read an order.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from labassist.errors import InputError, LabError, LedgerError, RestoreError

PROTOCOL = 1
"""Version of order.json and of the trainer's files; a higher one in an order is refused."""

RUN_DIR = "LABASSIST_RUN_DIR"
"""Environment variable that holds the run's folder; without it a script trains unrecorded."""

RECORD = "LABASSIST_RECORD"
"""Set to `off`, a run writes only its hello and finish: the other side of the overhead benchmark."""

ORDER = "order.json"
CHECKPOINTS = "checkpoints"
DEFAULT_SEED = 1337


def metrics_file(rank: int = 0) -> str:
    """Return the name of a rank's curve file."""
    return f"metrics-rank{rank}.jsonl"


def events_file(rank: int = 0) -> str:
    """Return the name of a rank's event file."""
    return f"events-rank{rank}.jsonl"


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint of one step."""
    return f"step-{step:08d}"


def rank() -> int:
    """Return this process's rank among the trainers of a run, as launchers such as torchrun set it."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of trainer processes of the run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Resume:
    """The checkpoint to go on from. `drop` names states to leave out on purpose (an ablation)."""

    run: str
    step: int
    path: Path
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """What the trainer is to do."""

    config: dict[str, Any]
    run: str = ""
    job: str = ""
    mode: str = "exact"
    seed: int = DEFAULT_SEED
    threads: int = 0
    """Intra-op threads; 0 leaves the choice to torch."""
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Only in a replay: input name -> {"path", "sha256"} of the file to read in place of one's own."""
    resume: Resume | None = None
    stop_after: int | None = None
    """Step after which to save and stop, as if asked from outside."""
    experiment: bool = False
    """One of the runs of `ckpt prove` or `ablate`: it must not write over checkpoints of other runs."""
    price: float = 0.0
    """What an hour of this machine costs (`run --price`); 0: not said."""
    root: Path | None = None
    """The workspace, or a replay's copy of it; None when the script was run by hand."""
    folder: Path | None = None
    """The run folder; None when the script was run by hand."""

    @property
    def recording(self) -> bool:
        """Whether curves, inputs and checkpoints are written."""
        return self.folder is not None and os.environ.get(RECORD) != "off"

    def input(self, name: str, path: str | Path, split: Mapping[str, Any] | None = None) -> Path:
        """Say that the trainer reads a data file, and return the path to open.

        In a replay that is the recorded file, after its SHA-256 was verified, else `path` itself. Writes
        the `input` event with size and SHA-256; `split` is kept as it is. Raises InputError when the file
        cannot be read and RestoreError when a replay's file is not the recorded one.
        """
        given = self.inputs.get(name)
        path = Path(given["path"]) if given else Path(path)
        try:
            size, digest = path.stat().st_size, file_sha256(path)
        except OSError as error:
            raise InputError(
                f"cannot read the input {name!r}: {error.strerror}",
                where=str(path),
                mend="give the path of a readable file, relative to the workspace",
            ) from error
        if given and given["sha256"] != digest:
            raise RestoreError(
                f"the input {name!r} is not the recorded one (SHA-256 {digest[:12]}… and not {given['sha256'][:12]}…)",
                where=str(path),
                mend="bring the recorded file back, or start a new run with this one",
            )
        if self.recording:
            values = {"name": name, "path": self._place(path), "bytes": size, "sha256": digest}
            self.write_event("input", {**values, "split": dict(split or {})})
        return path

    def _place(self, path: Path) -> str:
        """Return a file's place for the record: within the workspace relative to it, wherever the script runs."""
        whole = Path(os.path.abspath(path))
        if self.root is not None and whole.is_relative_to(self.root):
            whole = whole.relative_to(self.root)
        return whole.as_posix()

    def warn(self, line: str) -> None:
        """Say one line on standard error, and keep it with the run, where there is one. Raises LedgerError."""
        if rank() == 0:
            print(f"labassist: {line}", file=sys.stderr)
            self.write_event("warning", {"line": line})

    def write_event(self, event: str, values: Mapping[str, Any], *, durable: bool = False) -> None:
        """Append one line to this rank's event file; nothing without a run folder. Raises LedgerError."""
        if self.folder is None:
            return
        line = json.dumps({"event": event, "time": utc_now(), **values}, allow_nan=False) + "\n"
        path = self.folder / events_file(rank())
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                write_whole(descriptor, line.encode())
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LedgerError(
                f"cannot write what the trainer did: {error.strerror}",
                where=str(path),
                mend="free some space",
            ) from error


def read_order(config_file: str | Path | None = None) -> Order:
    """Return the order of this process, and have LabErrors shown as one line from here on.

    Run by hand (no LABASSIST_RUN_DIR) the order holds the defaults of `config_file`, a job's TOML without
    its `profiles` and `schema` tables. Raises LedgerError for an order of a newer protocol or a damaged
    one, InputError for a config file that cannot be read.
    """
    show_one_line_errors()
    folder = os.environ.get(RUN_DIR)
    if not folder:
        return Order(config=_defaults(Path(config_file)) if config_file else {})
    path = Path(folder) / ORDER
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise LedgerError(
            f"cannot read the order: {error.strerror}",
            where=str(path),
            mend=f"unset {RUN_DIR} to run by hand",
        ) from error
    except ValueError as error:
        raise LedgerError("the order is not JSON", where=str(path), mend="start the run again") from error
    return _to_order(data, path)


def _to_order(data: Any, path: Path) -> Order:
    protocol = data.get("protocol") if isinstance(data, dict) else None
    if not isinstance(protocol, int):
        raise LedgerError("the order names no protocol", where=str(path), mend="start the run again")
    if protocol > PROTOCOL:
        raise LedgerError(
            f"the order speaks protocol {protocol}, this labassist knows {PROTOCOL}",
            where=str(path),
            mend="upgrade the labassist that the trainer imports",
        )
    try:
        resume = data.get("resume")
        stop_after = data.get("stop_after")
        return Order(
            config=dict(data["config"]),
            run=str(data["run"]),
            job=str(data["job"]),
            mode=str(data["mode"]),
            seed=int(data["seed"]),
            threads=int(data["threads"]),
            inputs=dict(data.get("inputs") or {}),
            resume=resume
            and Resume(
                resume["run"], int(resume["step"]), Path(resume["path"]), tuple(resume.get("drop", ()))
            ),
            experiment=data.get("experiment") is True,
            price=float(data.get("terms", {}).get("price", 0.0)),
            stop_after=None if stop_after is None else int(stop_after),
            root=Path(data["root"]) if data.get("root") else None,
            folder=path.parent,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerError(
            f"the order lacks or misstates {error}", where=str(path), mend="start the run again"
        ) from error


def _defaults(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read the configuration: {error}",
            where=str(path),
            mend="run the script from the workspace",
        ) from error
    return {key: value for key, value in table.items() if key not in ("profiles", "schema")}


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def utc_now() -> str:
    """Return the UTC time in ISO 8601 with milliseconds and a Z."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_whole(descriptor: int, data: bytes) -> None:
    """Write all of `data`, in one call where the system takes it at once. Raises OSError."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def show_one_line_errors() -> None:
    """Print an uncaught LabError as its one line instead of a traceback; the status stays non-zero."""
    before = sys.excepthook
    if getattr(before, "one_line", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, LabError):
            print(f"labassist: {error}", file=sys.stderr)
        else:
            before(kind, error, trace)

    hook.one_line = True  # type: ignore[attr-defined]
    sys.excepthook = hook
