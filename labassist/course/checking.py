"""Runs a step's check in a process of its own, so that one that hangs or crashes hurts nobody.

`python -m labassist.course.checking WORKSPACE LAB STEP OUT PARENT [--lint]` writes its answer as JSON to OUT: what a
check prints itself cannot be mistaken for it. When the process PARENT is gone, nobody waits for the answer, and all that
the check started ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from labassist import own
from labassist.course.evidence import Evidence
from labassist.course.load import Course, step_of
from labassist.course.model import Criterion, Lab, Measured, Step
from labassist.course.program import described
from labassist.errors import InputError, LabError

LONGEST = 400
"""Characters of a text that a check answers; more would not fit on a screen, nor should it into the ledger."""
MOST = 40
"""Criteria of one check."""
LARGEST = 16 << 20
"""Bytes of a file that a check, or a script that it runs, may write: one that prints without end must not fill a disk."""


class CheckFailed(LabError):
    """A check hung, crashed or answered nonsense: the lab's fault, not the learner's."""


@dataclass(frozen=True)
class Answer:
    """What a check found."""

    criteria: tuple[Criterion, ...] = ()
    missing: str = ""
    """What is not there yet, in place of criteria."""
    measured: Measured | None = None
    evidence: dict[str, str] = field(default_factory=dict)
    """Name (labassist.course.noted) -> digest of what was read."""

    @property
    def ok(self) -> bool:
        """True when everything was there and every criterion is met."""
        return not self.missing and all(one.ok for one in self.criteria)


def ask(course: Course, lab: Lab, step: Step, lint: bool = False) -> Answer:
    """Run the check of a step, and what measures its guess, and return what they found.

    Raises CheckFailed when it takes longer than the step allows (its whole process group is then killed), when it
    crashes (naming the line of the lab's file) or when its answer is none.
    """
    seconds = step.check.seconds if step.check else 60.0
    name = f"the check of {lab.id}/{step.id}"
    with tempfile.TemporaryDirectory() as scratch:
        out, talk = Path(scratch) / "answer.json", Path(scratch) / "talk.txt"
        words = [str(course.workspace.root), lab.id, step.id, str(out), str(os.getpid())]
        words += ["--lint"] if lint else []
        with talk.open("wb") as said:
            process = subprocess.Popen(
                own.start("labassist.course.checking", *words),
                cwd=course.workspace.root,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "TMPDIR": scratch},
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise CheckFailed(
                    f"{name} did not end within {seconds:g} s, and was stopped",
                    mend="try it again; if it stays so, the lab's check or a file of yours that it runs does not end",
                ) from None
            finally:
                _kill(process)
        try:
            found = json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            word = own.last_line(talk.read_text(encoding="utf-8", errors="replace")) or "no word"
            raise CheckFailed(f"{name} ended with status {status} and no answer: {word}") from None
    if found["error"]:
        raise CheckFailed(
            f"{name} crashed: {found['error']}",
            where=found["place"],
            mend="this is the lab's fault, not yours",
        )
    measured = found["measured"]
    return Answer(
        tuple(Criterion(**one) for one in found["criteria"]),
        found["missing"],
        None if measured is None else Measured(**measured),
        found["evidence"],
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process group: a check must leave nothing running."""
    # The group may have gone by itself; macOS says EPERM where only a zombie is left of it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Answer one question of `ask`, in the process that it started."""
    sys.dont_write_bytecode = True  # a lab's folder holds what its author and its learner put there
    from labassist.ledger.store import Ledger
    from labassist.workspace import Workspace

    root, lab_id, step_id, out, parent, *rest = sys.argv[1:]
    watch = (int(parent), Path(out).parent)
    threading.Thread(target=_end_with, args=watch, name="labassist-parent", daemon=True).start()
    course = Course.load(Workspace(Path(root)), lint="--lint" in rest)
    lab = course.lab(lab_id)
    step = step_of(lab, step_id)
    with Ledger.open(course.workspace.ledger) as ledger:
        evidence = Evidence(course, ledger, lab)
        answer: dict[str, Any] = {"criteria": [], "missing": "", "measured": None, "error": "", "place": ""}
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, hard))  # children have it too
        try:
            functions = load_checks(lab)
            _answer(answer, functions, step, evidence)
        except LabError as error:
            answer["missing"] = _cut(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a check raises is said in one line
            answer["error"], answer["place"] = described(error, lab.folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        answer["evidence"] = evidence.noted
    Path(out).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _end_with(parent: int, scratch: Path) -> None:
    """End this process group, and what it kept, once its parent is gone: killed, it could not do so itself."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _answer(answer: dict[str, Any], functions: ModuleType, step: Step, evidence: Evidence) -> None:
    name = function_name(step)
    check: Callable[[Evidence], Any] | None = getattr(functions, name, None)
    measure: Callable[[Evidence], Any] | None = getattr(functions, f"measured_{name}", None)
    if step.check is not None:
        if check is None:
            raise TypeError(f"checks.py has no function {name}")
        criteria = check(evidence)
        if not isinstance(criteria, list) or not all(isinstance(one, Criterion) for one in criteria):
            raise TypeError(f"{name} must return a list of Criterion")
        if not 1 <= len(criteria) <= MOST:
            raise ValueError(f"{name} returned {len(criteria)} criteria; from 1 to {MOST} are wanted")
        answer["criteria"] = [_plain(asdict(one)) for one in criteria]
    if measure is not None:
        try:
            measured = measure(evidence)
        except LabError:
            # What would be measured is not there yet; the check itself says so where there is one.
            return
        if not isinstance(measured, Measured):
            raise TypeError(f"measured_{name} must return a Measured")
        answer["measured"] = _plain(asdict(measured))


def load_checks(lab: Lab) -> ModuleType:
    """Return the module checks.py of a lab. Raises what importing it raises; an empty one where there is no file."""
    path = lab.folder / "checks.py"
    if not path.is_file():
        return ModuleType("checks")
    spec = importlib.util.spec_from_file_location(f"checks_of_{lab.id.replace('-', '_')}", path)
    if spec is None or spec.loader is None:
        raise InputError("cannot be imported", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def function_name(step: Step) -> str:
    """Return what the check of a step is called in checks.py."""
    return step.id.replace("-", "_")


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return a criterion's or measurement's values as text and truth, whatever number type a check used."""
    return {key: bool(value) if key == "ok" else _cut(str(value)) for key, value in values.items()}


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


if __name__ == "__main__":
    sys.exit(main())
