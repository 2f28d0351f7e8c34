"""What a check may read: recorded runs, curves, checkpoints, and the learner's files. Nothing is trained.

All that is given out is noted by name and digest (`noted`), so that a verdict is kept until one of these changes.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labassist import own
from labassist.course import noted
from labassist.course.load import Course, step_of
from labassist.course.model import JobRun, Lab
from labassist.errors import LabError
from labassist.ledger import curves
from labassist.ledger.store import Ledger
from labassist.record.inspect import folder_of, read_manifest
from labassist.record.protocol import metrics_file
from labassist.runs.jobs import load_job, resolve

# -P keeps the working directory off the path; ours goes last, so that it is used only where labassist is not
# importable anyway (a checkout run in place).


class Missing(LabError):
    """What a check needs is not there yet; `run` is the command that makes it."""

    status = 1

    def __init__(self, what: str, run: str = "") -> None:
        super().__init__(what, mend=f"run: {run}" if run else "")
        self.run = run


class Evidence:
    """What was recorded, as one check of one lab may read it."""

    def __init__(self, course: Course, ledger: Ledger, lab: Lab) -> None:
        self._course, self._ledger, self._lab = course, ledger, lab
        self._folder = course.folder(lab)
        self.noted: dict[str, str] = {}
        """Name (labassist.course.noted) -> digest of what was given out."""
        self._note(noted.CHECKS)

    def runs(
        self, job: str, profile: str | None = None, *, any_state: bool = False, **config: Any
    ) -> list[dict[str, Any]]:
        """Return the finished runs of a job, newest first, without replays; only those with these values.

        `profile=""` is the job's default profile, None any. A job without a `/` is one of this lab. With
        `any_state` those that have not finished are there too: a server never does, it is stopped.
        """
        if "/" not in job:
            job = f"{self._lab.id}/{job}"
        if profile == "":
            profile = load_job(self._course.workspace, job).default_profile
        wanted = {
            "job": job,
            "profile": profile,
            "config": config,
            **({"any_state": True} if any_state else {}),
        }
        self._note(f"runs {json.dumps(wanted, sort_keys=True)}")
        found = noted.matching(self._ledger, job, profile, config, any_state)
        return [self._given(document) for document in found]

    def run(self, step_id: str) -> dict[str, Any]:
        """Return the newest finished run that fits a step's `run` table. Raises Missing with what to run."""
        step = step_of(self._lab, step_id)
        if step.run is None:
            raise ValueError(f"step {step_id} has no run")
        command = shlex.join(("labassist", *step.run.words))
        if not step.run.job:
            if step.run.command[0] != "replay":
                raise ValueError(f"which run `{command}` makes is not known: look for it with found.runs")
            self._note("replays ")
            own = f"{self._lab.id}/"
            found = [one for one in noted.replays(self._ledger, "") if one.get("job", "").startswith(own)]
            if not found:
                raise Missing("no replay of a run of this lab has a verdict yet", run=command)
            return self._given(found[0])
        profile, config = settings(self._course, self._lab, step.run)
        found = noted.of_step(self.runs(step.run.job, profile, **config))
        if not found:
            every = noted.of_step(noted.runs_of(self._ledger, step.run.job, profile, config))
            raise Missing(_why_none(step.run, every), run=command)
        if not self._ledger.run_folder(found[0]["id"]).is_dir():
            raise Missing(f"the folder of run {found[0]['id']} is gone, and its curves with it", run=command)
        return found[0]

    def series(self, run: Mapping[str, Any] | str, name: str) -> list[tuple[int, Any]]:
        """Return (step, value) of a series over the run's whole lineage, ascending. Raises Missing without any."""
        run_id = self._id(run)
        self._note(f"curve {run_id}")
        for one in noted.lineage(self._ledger, run_id):
            if not (self._ledger.run_folder(one) / metrics_file(0)).is_file():
                raise Missing(f"the curve of run {one} is gone")
        curve = curves.joined(self._ledger, run_id)
        if name not in curve.series:
            there = ", ".join(sorted(curve.series)) or "nothing"
            raise Missing(f"run {run_id} recorded no series {name!r}, but {there}")
        return list(curve.series[name].items())

    def lineage(self, run: Mapping[str, Any] | str) -> list[dict[str, Any]]:
        """Return the records of a run's segments in whatever state, the first one first, the run itself last."""
        segments = reversed(noted.lineage(self._ledger, self._id(run)))
        documents = (self._ledger.run(one) for one in segments)
        return [self._given(dict(document)) for document in documents if document is not None]

    def replays(self, run: Mapping[str, Any] | str) -> list[dict[str, Any]]:
        """Return the replays of a run that have a verdict, newest first."""
        run_id = self._id(run)
        self._note(f"replays {run_id}")
        return [self._given(document) for document in noted.replays(self._ledger, run_id)]

    def checkpoint(
        self, run: Mapping[str, Any] | str, step: int | None = None
    ) -> tuple[Path, dict[str, Any]]:
        """Return the folder and manifest of a run's checkpoint, of the last without `step`.

        Raises Missing when there is none, CheckpointError when its manifest was torn or altered. The files
        themselves are not verified against the manifest.
        """
        run_id, at = self._id(run), -1 if step is None else step
        self._note(f"checkpoint {run_id} {at}")
        path = noted.checkpoint(self._ledger, run_id, at)
        if path is None or not path.exists():
            where = "" if step is None else f" at step {step}"
            raise Missing(
                f"run {run_id} has no checkpoint{where} any more"
                if path
                else f"run {run_id} has no checkpoint{where}"
            )
        manifest = read_manifest(path)
        return folder_of(path, manifest), manifest

    def guess(self, step_id: str) -> str | None:
        """Return what the learner guessed at a step of this lab."""
        step_of(self._lab, step_id)
        self._note(f"guess {step_id}")
        return noted.guess(self._ledger.marks(), self._lab.id, step_id)

    def path(self, file: str) -> Path:
        """Return a file of the learner's folder of this lab. Raises Missing when it is not there."""
        path = self._folder / file
        self._note(f"file {file}")
        if path.is_file():
            return path
        original = self._lab.folder / file
        command = shlex.join(("cp", str(original), str(path))) if original.is_file() else ""
        raise Missing(f"labs/{self._lab.id}/{file} is not there", run=command)

    def program(self, words: Sequence[str]) -> Any:
        """Run a script of the lab, as `["attention.py", "--check"]`, and return the JSON that it prints.

        It runs in the workspace's root. Raises Missing, naming the line, when it stops with an error.
        """
        script = self.path(words[0])
        by_hand = shlex.join(("python", f"labs/{self._lab.id}/{words[0]}", *words[1:]))
        with tempfile.TemporaryDirectory() as scratch:
            note, out, talk = (Path(scratch) / name for name in ("note.json", "out.txt", "talk.txt"))
            with out.open("wb") as printed, talk.open("wb") as said_aside:
                # Into files, whose size is limited, and not into memory, whose is not.
                status = subprocess.run(
                    own.start(
                        "labassist.course.program", str(note), str(self._folder), str(script), *words[1:]
                    ),
                    cwd=self._course.workspace.root,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=said_aside,
                    check=False,
                ).returncode
            answer, aside = (file.read_text(encoding="utf-8", errors="replace") for file in (out, talk))
            try:
                said = json.loads(note.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                said = {"files": [], "error": "", "place": ""}
        for name in said["files"]:
            self._note(f"file {name}")
        if status:
            error = f"{said['error']} at {said['place']}" if said["error"] else own.last_line(aside)
            raise Missing(f"{words[0]} stopped: {error or f'status {status}'}", run=by_hand)
        for text in (answer, own.last_line(answer)):
            try:
                return json.loads(text)
            except ValueError:
                continue
        raise Missing(f"{words[0]} printed no JSON", run=by_hand)

    def _given(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return a run's record as a check gets it."""
        self._note(f"run {document['id']}")
        return _Record(document, lambda: self._note(f"note {document['id']}"))

    def _id(self, run: Mapping[str, Any] | str) -> str:
        return run if isinstance(run, str) else str(run["id"])

    def _note(self, name: str) -> None:
        if name not in self.noted:
            self.noted[name] = noted.digest(name, self._ledger, self._lab.id, self._lab.folder, self._folder)


class _Record(dict[str, Any]):
    """A run's record that tells when its note is read: only then does a new note make a verdict stale."""

    def __init__(self, document: Mapping[str, Any], read: Callable[[], None]) -> None:
        super().__init__(document)
        self._read = read

    def __getitem__(self, key: str) -> Any:
        if key == "note":
            self._read()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        if key == "note":
            self._read()
        return super().get(key, default)


def settings(course: Course, lab: Lab, run: JobRun) -> tuple[str, dict[str, Any]]:
    """Return the profile and the values by which a run of this job is known to be the one that is asked for.

    The values are those that any run step of the lab sets for this job: a run with another rate is not the run
    of a step that leaves the rate alone. Whatever else a learner changes is the learner's own.
    """
    job = load_job(course.workspace, run.job)
    resolved = resolve(job, run.profile, None, run.sets)
    keys = {
        word.partition("=")[0].strip()
        for step in lab.steps
        if step.run is not None and step.run.job == run.job
        for word in step.run.sets
    }
    return resolved.profile, {key: value for key, value in resolved.flat.items() if key in keys}


def _why_none(wanted: JobRun, every: Sequence[Mapping[str, Any]]) -> str:
    """Say why no run fits: none was started, or the newest one has not finished."""
    values = "".join(f", {one}" for one in wanted.sets)
    what = f"{wanted.job}{f' ({wanted.profile}{values})' if wanted.profile else values}"
    if not every:
        return f"no run of {what} yet"
    newest = every[0]
    if newest["state"] == "running":
        return f"run {newest['id']} of {what} is still running"
    reason = f": {newest['reason']}" if newest.get("reason") else ""
    return f"run {newest['id']} of {what} {newest['state']}{reason}"
