"""The part of the linter that runs: a lab done from first to last step in a workspace of its own, then spoilt.

Each run step is run for real, each exercise must fail as given and pass with its solution, every check must
pass, and each must fail again when one quantity that it measures is altered in a copy of what was recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from labassist import __version__, content, own
from labassist.course import spoil
from labassist.course.checking import Answer, CheckFailed, ask
from labassist.course.evidence import Evidence
from labassist.course.lint_report import Altered, Report
from labassist.course.load import Course, step_of
from labassist.course.model import Alter, Lab, Step
from labassist.errors import InputError, LabError
from labassist.ledger.store import Ledger
from labassist.workspace import VARIABLE, new

RUN_S = 1800.0
"""A run of the linter that takes longer is given up."""

Say = Callable[[str], None]


def lint_run(course: Course, lab: Lab, report: Report, say: Say) -> None:
    """Do the whole lab and spoil it, adding what is wrong; an answer without a fault is kept by digest."""
    kept = course.workspace.cache / "labs-lint" / f"{lab.id}-{content_digest(lab)}.json"
    if kept.is_file():
        report.altered += [
            Altered(**{**one, "failed": tuple(one["failed"])}) for one in json.loads(kept.read_text("utf-8"))
        ]
        report.kept = True
        return
    with tempfile.TemporaryDirectory(prefix="labassist-lint-") as scratch:
        _Run(lab, Path(scratch), report, say).whole()
    if report.ok:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps([asdict(one) for one in report.altered]), encoding="utf-8")
        partial.replace(kept)


def content_digest(lab: Lab) -> str:
    """Return the digest of all that the linter's answer depends on: the lab, the jobs it uses, and labassist."""
    labs = {lab.folder} | {
        lab.folder.parent / run.job.partition("/")[0]
        for step in lab.steps
        for run in (step.run, step.run.lint if step.run else None)
        if run is not None and run.job
    }
    digest = hashlib.sha256(__version__.encode())
    for path in _files(*sorted(labs), Path(__file__).parents[1]):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _files(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not {"__pycache__", "_content"}.intersection(
                path.relative_to(folder).parts
            ):
                yield path


class _Run:
    """One lab in one scratch folder."""

    def __init__(self, lab: Lab, scratch: Path, report: Report, say: Say) -> None:
        self.scratch, self.report, self.say = scratch, report, say
        self.workspace = new(scratch / "workspace").workspace
        self.given = lab.folder
        if not lab.folder.is_relative_to(content.root() / "labs"):
            # A learner's own lab: all of it belongs to the workspace.
            shutil.copytree(
                lab.folder,
                self.workspace.labs / lab.id,
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
        self.course = Course.load(self.workspace, lint=True)
        self.lab = self.course.lab(lab.id)
        Ledger.open(self.workspace.ledger, create=True).close()

    def whole(self) -> None:
        """Do every step, then spoil what each check measures."""
        answers: dict[str, Answer] = {}
        for step in self.lab.steps:
            try:
                answers |= self._step(step)
            except LabError as error:
                self.report.fault(self._place(step), str(error))
                return
        for step in self.lab.steps:
            self._measured(step)
            if step.check is not None and step.id in answers:
                for alter in step.check.alter:
                    self._spoil(step, alter, answers[step.id])

    def _step(self, step: Step) -> dict[str, Answer]:
        """Do what a step asks for, and return its check's answer. Raises LabError when it cannot be passed."""
        place = self._place(step)
        if step.check is not None and step.check.solution and step.edit is not None:
            solution = self.lab.folder / "solutions" / step.check.solution
            file = self.course.folder(self.lab) / step.edit.file
            if file.read_bytes() == solution.read_bytes():
                # An earlier step has the same solution: this one too begins with the file as it is given.
                shutil.copyfile(self.given / step.edit.file, file)
            if step.run is not None:
                self._labassist(step.run.words)
            if self._ask(step).ok:
                self.report.fault(place, "its check passes before anything was edited")
            shutil.copyfile(solution, file)
        if step.run is not None:
            self._labassist(step.run.words)
        if step.check is None:
            return {}
        self.say(f"{place}: check")
        answer = self._ask(step)
        if answer.missing:
            raise InputError(f"its check does not pass: {answer.missing}")
        for one in answer.criteria:
            if not one.ok:
                self.report.fault(place, f"{one.name}: expected {one.expected}, got {one.got} ({one.source})")
        self._names(step, answer)
        return {step.id: answer}

    def _names(self, step: Step, answer: Answer) -> None:
        assert step.check is not None
        names = [one.name for one in answer.criteria]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.report.fault(self._place(step), f"two criteria are called {name!r}")
        named = {alter.criterion for alter in step.check.alter}
        for name in sorted(set(names) - named):
            self.report.fault(self._place(step), f"no alter makes the criterion {name!r} fail")
        for name in sorted(named - set(names)):
            self.report.fault(
                self._place(step), f"an alter names the criterion {name!r}, which the check does not have"
            )

    def _measured(self, step: Step) -> None:
        """A step that asks for a guess is measured in the end, by one of its own letters."""
        if step.predict is None:
            return
        try:
            measured = self._ask(step).measured
        except LabError as error:
            self.report.fault(self._place(step), str(error))
            return
        if measured is None:
            self.report.fault(
                self._place(step), "nothing is laid beside its guess: checks.py measures nothing for it"
            )
        elif step.predict.options and measured.option not in step.predict.options:
            self.report.fault(
                self._place(step), f"{measured.option!r} was measured, which is none of the options"
            )

    def _spoil(self, step: Step, alter: Alter, answer: Answer) -> None:
        """Alter one quantity in a copy: its criterion must fail, and none that measures something else."""
        place = self._place(step)
        target = self.scratch / "spoilt"
        copy = spoil.copy(self.workspace, target)
        try:
            course = Course.load(copy, lint=True)
            lab = course.lab(self.lab.id)
            what = spoil.spoil(copy, course.folder(lab), alter, self._runs(step, alter, answer))
            self.say(f"{place}: {what}")
            found = ask(course, lab, step_of(lab, step.id), lint=True)
        except LabError as error:
            self.report.fault(place, f"altering for {alter.criterion!r}: {error}")
            return
        finally:
            shutil.rmtree(target)
        assert step.check is not None
        if found.missing and _chosen_by(step, alter):
            # The run is known by this very value: without it there is no such run, and that is a failure too.
            self.report.altered.append(Altered(step.id, alter.criterion, what, (alter.criterion,)))
            return
        if found.missing:
            self.report.fault(place, f"with {what} nothing is measured: {found.missing}")
            return
        failed = [one.name for one in found.criteria if not one.ok]
        self.report.altered.append(Altered(step.id, alter.criterion, what, tuple(failed)))
        if alter.criterion not in failed:
            self.report.fault(place, f"{alter.criterion!r} still passes with {what}")
        same = {one.criterion for one in step.check.alter if spoil.same_quantity(one, alter)}
        for name in failed:
            if name not in same:
                self.report.fault(
                    place, f"{name!r} fails too with {what}, and no alter says that it measures that"
                )

    def _runs(self, step: Step, alter: Alter, answer: Answer) -> list[str]:
        """Return the runs that an alter means: of the step that it names, of its own step, or all that were read."""
        name = alter.run or (step.id if step.run is not None else "")
        if name and not _unknown_run(step_of(self.lab, name)):
            with Ledger.open(self.workspace.ledger) as ledger:
                return [str(Evidence(self.course, ledger, self.lab).run(name)["id"])]
        return [noted.removeprefix("run ") for noted in answer.evidence if noted.startswith("run ")]

    def _ask(self, step: Step) -> Answer:
        return ask(self.course, self.lab, step, lint=True)

    def _labassist(self, words: tuple[str, ...]) -> None:
        """Run a command of a step. Raises CheckFailed when it says that it cannot do it."""
        self.say(f"$ labassist {' '.join(words)}")
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        try:
            done = subprocess.run(
                own.start("labassist.cli.main", "--workspace", str(self.workspace.root), *words),
                cwd=self.workspace.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=RUN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CheckFailed(f"`labassist {' '.join(words)}` did not end within {RUN_S:g} s") from None
        # A verdict other than 0 may be what the step is about: its check decides.
        if done.returncode in (2, 130) or (done.returncode and words[0] == "run"):
            said = own.last_line(done.stderr) or "no word"
            raise CheckFailed(f"`labassist {' '.join(words)}` ended with status {done.returncode}: {said}")

    def _place(self, step: Step) -> str:
        return f"{self.lab.id}/{step.id}"


def _unknown_run(step: Step) -> bool:
    """Say whether a step's run is made by a command other than replay, so that only its check knows which it is."""
    return step.run is not None and not step.run.job and step.run.command[0] != "replay"


def _chosen_by(step: Step, alter: Alter) -> bool:
    """Say whether the altered value is one by which the step's run is told from others."""
    return bool(
        alter.config and step.run and any(one.startswith(f"{alter.config}=") for one in step.run.sets)
    )
