"""`ckpt check`: find out what a path is, read it, judge it, and say which checkpoint to resume from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.resume import plan as plans
from labassist.resume import rules, sealed
from labassist.resume.description import Description
from labassist.resume.findings import STATES, finding
from labassist.resume.formats import Format, known
from labassist.resume.memory import Memory

EXIT = {"EXACT": 0, "DEGRADED": 3, "BROKEN": 4}
_ORDER = {"error": 0, "warning": 1, "notice": 2, "info": 3}
_MISSING = ("weights-missing", "file-missing", "optimizer-missing", "scheduler-missing", "rng-missing")
_PART = re.compile(
    r"(optimizer|optim|scheduler|scaler|rng_state|random_states|training_args|custom_checkpoint|dl_state_dict|sampler)"
    r"([._-]|$)|.*-\d{5}-of-\d{5}\."
)
"""Names of files that hold one state, or one shard of one."""
_NUMBER = re.compile(r"\d+")


@dataclass
class Report:
    """The answer about one checkpoint."""

    found: Description

    @property
    def verdict(self) -> str:
        """EXACT, DEGRADED or BROKEN (CONTRACT: verdicts)."""
        worst = {one.severity for one in self.found.findings}
        if "error" in worst:
            return "BROKEN"
        return "DEGRADED" if worst & {"warning", "notice"} else "EXACT"

    @property
    def whole(self) -> bool:
        """Nothing is wrong beyond the limits of its format."""
        return not {one.severity for one in self.found.findings} & {"error", "warning"}

    def document(self) -> dict[str, Any]:
        """Return it as `ckpt check --json` prints it."""
        found = self.found
        findings = sorted(found.findings, key=lambda one: _ORDER[one.severity])
        return {
            "format": found.format,
            "framework_version": found.framework_version,
            "verdict": self.verdict,
            "step": found.step,
            "world_size": found.world_size,
            "states": dict(found.states),
            "findings": [one.document() for one in findings],
        }


@dataclass
class Several:
    """The answer about a folder of checkpoints, oldest first."""

    path: Path
    reports: list[Report] = field(default_factory=list)

    @property
    def chosen(self) -> Report | None:
        """The newest one without a fault, with an optimizer if any has; else the newest that can be resumed."""
        newest_first = self.reports[::-1]
        usable = [report for report in newest_first if report.whole]
        usable.sort(key=lambda report: report.found.states["optimizer"] == "absent")
        usable += [report for report in newest_first if report.verdict != "BROKEN"]
        return usable[0] if usable else None

    @property
    def verdict(self) -> str:
        """The verdict of the one to resume from."""
        return self.chosen.verdict if self.chosen else "BROKEN"

    def document(self) -> dict[str, Any]:
        """Return it as `ckpt check --json` prints it."""
        return {
            "resume_from": str(self.chosen.found.path) if self.chosen else None,
            "checkpoints": [{"path": str(report.found.path), **report.document()} for report in self.reports],
        }


def check(
    path: Path, plan: Mapping[str, Any] | None = None, *, verify: bool = True, memory: Memory | None = None
) -> Report | Several:
    """Return what can be said about a checkpoint, or about every checkpoint in a folder.

    Nothing in it is executed and no tensor is loaded that is not needed. Without `verify` no checksum is
    compared. `memory` is what a resume could use here; None leaves that question out. Raises
    InputError where `path` does not exist or nothing in it is a checkpoint.
    """
    path = Path(path)
    if not path.exists():
        raise InputError("there is nothing", where=str(path), mend="give a checkpoint's file or folder")
    path = path.resolve()
    if not path.is_file() and not path.is_dir():
        raise InputError(
            "neither a file nor a folder", where=str(path), mend="give a checkpoint's file or folder"
        )
    try:
        if path.is_dir():
            next(path.iterdir(), None)
        inner = [] if _single(path) else _candidates(path)
    except OSError as error:
        raise InputError(
            f"cannot read: {error.strerror}",
            where=str(error.filename or path),
            mend="give yourself the right to read it (chmod u+r, for a folder u+rx)",
        ) from error
    if not inner:
        kind = _format(path)
        if kind is None:
            raise InputError(
                "not a checkpoint that labassist knows",
                where=str(path),
                mend="give the folder with the weights, or the one above it",
            )
        return _report(path, kind, plan or {}, verify, memory)
    reports = [_report(one, kind, plan or {}, verify, memory) for one, kind in inner]
    reports.sort(key=lambda report: _age(report, path))
    several = Several(path, reports)
    _compare_siblings(several)
    return several


def _report(path: Path, kind: Format, plan: Mapping[str, Any], verify: bool, memory: Memory | None) -> Report:
    try:
        found = kind.read(path, verify)
        sealed.compare(found, verify)
        rules.judge(found, memory)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        # Every reader expects what its framework writes. A file that somebody made by hand can hold anything.
        found = Description("unknown", path, states=dict.fromkeys(STATES, "torn"))
        found.add("structure-unknown", None, why=" ".join(f"{type(error).__name__}: {error}".split()))
        return Report(found)
    except OSError as error:
        found = _Unreadable(error).read(path, verify)
    plans.compare(found, plan)
    return Report(found)


class _Unreadable:
    """What stands for a checkpoint's format where the system does not let one look."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def detect(self, _path: Path) -> bool:
        """Say yes: it is there."""
        return True

    def read(self, path: Path, _verify: bool) -> Description:
        """Return that it cannot be read."""
        found = Description("unknown", path, states=dict.fromkeys(STATES, "torn"))
        place = Path(self._error.filename or path)
        found.add("file-unreadable", None, place, why=self._error.strerror or str(self._error))
        return found


def _format(path: Path) -> Format | None:
    try:
        if path.is_dir():
            next(path.iterdir(), None)
    except OSError as error:
        return _Unreadable(error)
    return next((kind for kind in known() if _is(kind, path)), None)


def _is(kind: Format, path: Path) -> bool:
    """Say whether a path is of a kind; one part of it that cannot be read does not decide that."""
    try:
        return kind.detect(path)
    except PermissionError:
        return False


def _single(path: Path) -> bool:
    """Say whether the path is one checkpoint although folders that look like checkpoints lie in it."""
    if path.is_file():
        return True
    from labassist.resume.formats import accelerate, dcp, deepspeed, hf_trainer, ours, torchtune

    if hf_trainer.FOLDER.fullmatch(path.name) or _is(torchtune, path):
        return True
    if any(_is(kind, path) for kind in (ours, accelerate, dcp, deepspeed)):
        return True
    return _is(hf_trainer, path) and not any(hf_trainer.FOLDER.fullmatch(one.name) for one in path.iterdir())


def _candidates(path: Path) -> list[tuple[Path, Format]]:
    """Return the checkpoints in a folder: subfolders first, else files when there are several."""
    children = sorted(path.iterdir())
    folders = [one for one in children if one.is_dir() and not one.name.startswith(".")]
    found = [(one, kind) for one in folders if (kind := _format(one))]
    from labassist.resume.formats import nanochat, plain

    if found:
        found = [pair for pair in found if not _temporary(pair[0])] or found
        loose = [one for one in children if one.is_file() and one.suffix in plain.SUFFIXES]
        found += [(one, kind) for one in loose if not _part(one) and (kind := _format(one))]
        return found + ([(path, plain)] if _is(plain, path) else [])

    steps = nanochat.steps(path)
    if len(steps) > 1:
        return [(model, nanochat) for model in steps.values()]
    if _format(path):
        return []
    files = [one for one in children if one.is_file() and one.suffix in plain.SUFFIXES]
    return [(one, kind) for one in files if (kind := _format(one))]


def _part(file: Path) -> bool:
    """Say whether a file is one of those that make up a folder's checkpoint, and none by itself."""
    from labassist.resume.formats import plain

    return file.stem in plain.STEMS or _PART.match(file.name) is not None


def _age(report: Report, parent: Path) -> tuple[bool, int, float]:
    """Sort the folder's own weights first, then by step where it is known (or in the name), then by time."""
    found = report.found
    numbers = _NUMBER.findall(found.path.stem)
    step = found.step if found.step is not None else int(numbers[-1]) if numbers else -1
    return found.path != parent, step, found.path.stat().st_mtime if found.path.exists() else 0.0


def _temporary(path: Path) -> bool:
    """Say whether a name is that of a save under way: ours and the Trainer's."""
    return path.name.endswith(".tmp") or path.name.startswith(("tmp-", "tmp_"))


def _compare_siblings(several: Several) -> None:
    """Say when an older checkpoint is the one to use, and what in the folder is only a rest."""
    newest, chosen = several.reports[-1].found, several.chosen
    for one in sorted(several.path.iterdir()):
        if _temporary(one) and one != newest.path:
            newest.findings.append(finding("temporary-left", path=f"../{one.name}", name=one.name))
    if chosen is None:
        return
    if chosen.found is not newest and several.reports[-1].verdict == "BROKEN":
        newest.findings.append(finding("newest-incomplete", better=chosen.found.path.name))
    for report in several.reports[: several.reports.index(chosen)]:
        missing = [one for one in report.found.findings if one.code in _MISSING]
        if any(one.severity == "error" for one in missing):
            why = "; ".join(one.message for one in missing)
            report.found.findings.append(finding("half-rotated", why=why))
