"""Run recorded code with its recorded configuration again, and compare.

The trainer runs in a scratch copy of the recorded repository, imports the recorded labassist, and reads
the recorded inputs. Nothing of the working tree is touched, and the scratch folder goes away, at the
latest when the next labassist process starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tinydb import where

from labassist.errors import InputError, LedgerError, RestoreError
from labassist.ledger import codestore, curves, package, restore, room, secrets, verdict
from labassist.ledger.enclosed import enclose
from labassist.ledger.kept import known_by, named
from labassist.ledger.preflight import Difference, preflight
from labassist.ledger.records import Code, Origin, Verdict, to_document, to_run
from labassist.ledger.seals import altered_curves
from labassist.ledger.store import Ledger
from labassist.record.protocol import metrics_file
from labassist.runs import causes
from labassist.runs.command import in_tree
from labassist.runs.config import Config
from labassist.runs.launch import Plan, launch
from labassist.runs.resume import checkpoint_folder, lineage
from labassist.runs.scratch import scratch
from labassist.workspace import Workspace

LIVE = "serving/"
"""Begins the job of a server, and of what was measured of one: a year later there is nothing to run again."""

Follow = Callable[[str], dict[str, Any]]
"""Waits for a run to end, showing it or not, and returns its document."""


@dataclass
class Options:
    """What a person may ask of a replay."""

    segment: bool = False
    """Only this segment, from the checkpoint it went on from, in place of the whole lineage."""
    force: bool = False
    """Compare although preflight says that it cannot be exact here."""
    tolerance: str = ""
    current_package: bool = False
    """Import the labassist that is installed now in place of the recorded one."""


@dataclass
class Replayed:
    """The answer, as CONTRACT.md has it."""

    run: str
    replay_of: str
    verdict: Verdict
    preflight: list[Difference] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `replay --json`."""
        found = self.verdict
        return {
            "verdict": found.verdict,
            "run": self.run,
            "replay_of": self.replay_of,
            "compared": {"steps": found.steps, "series": found.series, "tensors": found.tensors},
            "first_difference": found.first_difference,
            "likely_causes": found.likely_causes,
            "preflight": [to_document(difference) for difference in self.preflight],
        }


def replay(
    workspace: Workspace,
    ledger: Ledger,
    name: str,
    options: Options,
    follow: Follow,
    say: Callable[[str], None],
    committing: Callable[[], None] = lambda: None,
) -> Replayed:
    """Replay run `name` and return the verdict, which is journalled with the replay's run.

    Raises InputError for a run that still lives, LedgerError for a read-only ledger, RestoreError when code or data cannot be brought back.
    """
    original = ledger.find(name)
    if ledger.journal.readonly:
        raise LedgerError(
            "a replay is recorded, and this ledger is read-only",
            where=str(ledger.folder),
            mend=f"import it into a workspace of your own and replay there: labassist import {workspace.root}",
        )
    if original["state"] == "running":
        mend = "wait, or stop it first; in a copy of its ledger, resume it and replay that"
        raise InputError("it is still running", where=f"run {original['id']}", mend=mend)
    if original["job"].startswith(LIVE) or "*" in original.get("measured", []):
        why = (
            "times and answers of a live server never come out twice, so there is nothing to compare bit by bit; "
            "serve the same model again, measure again, and see whether the intervals overlap"
            if original["job"].startswith(LIVE)
            else "all that it records is measured by a clock, so there is nothing to compare bit by bit; run it again, "
            "and see whether the intervals overlap"
        )
        return Replayed("", original["id"], Verdict("INCOMPARABLE", likely_causes=[why]))
    segments = [original] if options.segment else lineage(ledger, original)
    _one_experiment(ledger, segments)
    differences = preflight(original, ledger.objects, workspace.root)
    breaking = [difference for difference in differences if difference.breaks]
    for difference in differences:
        say(_difference_line(difference))
    if breaking and not options.force:
        what = [f"{d.what}: recorded {d.recorded}, here {d.here}" for d in breaking]
        return Replayed("", original["id"], Verdict("INCOMPARABLE", likely_causes=what), differences)
    altered = altered_curves(ledger, segments)
    for line in altered:
        say(f"warning: {line}")
    with scratch(workspace, "replay") as folder:
        say(f"restoring the code of run {original['id']}")
        plan = _plan(workspace, ledger, segments, options, folder)
        absent = restore.missing(plan.code or Code("none"), ledger.objects, folder / "tree")
        for how in sorted({known_by(one) for one in absent}):
            files = [one.path for one in absent if known_by(one) == how]
            say(f"note: recorded by {how} and not in the replay's copy: {named(files)}")
        run_id = launch(workspace, ledger, plan, committing)
        replayed = follow(run_id)
    if original.get("measured"):
        say(f"note: not compared, a clock made them: {', '.join(original['measured'])}")
    found = _compare(ledger, segments, replayed, options)
    if found.verdict != "BITWISE":
        folder = ledger.run_folder(run_id)
        if not options.segment and (words := causes.after_a_resume(ledger, segments, replayed, found)):
            found.likely_causes[0] = words
        found.likely_causes = [
            *altered,
            *causes.failure(folder, original, replayed),
            *causes.other_settings(original, replayed),
            *found.likely_causes,
        ]
    verdict.keep(ledger, run_id, found)
    return Replayed(run_id, original["id"], found, differences)


def _one_experiment(ledger: Ledger, segments: list[dict[str, Any]]) -> None:
    first = segments[0]
    for later in segments[1:]:
        if later.get("dropped"):
            raise InputError(
                f"run {later['id']} left out {', '.join(later['dropped'])} on purpose, so no unbroken run can repeat it",
                where=f"run {segments[-1]['id']}",
                mend="replay it with --segment",
            )
        same_code = later["code"]["digest"] == first["code"]["digest"]
        same_config = later.get("config") == first.get("config")
        if not same_code or not same_config or not _same_data(ledger, first, later):
            what = "code" if not same_code else "data" if same_config else "configuration"
            raise InputError(
                f"its segments differ in {what} (from run {later['id']} on), so no single run can repeat them",
                where=f"run {segments[-1]['id']}",
                mend="replay each with --segment",
            )


def _data(ledger: Ledger, document: dict[str, Any]) -> dict[str, str]:
    return {given["name"]: given["sha256"] for given in room.inputs(document, ledger.objects)}


def _same_data(ledger: Ledger, first: dict[str, Any], later: dict[str, Any]) -> bool:
    """Say whether what both segments read is the same; one that died early may not have read all of it."""
    ours, theirs = _data(ledger, first), _data(ledger, later)
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def _difference_line(difference: Difference) -> str:
    word = "breaks exactness" if difference.breaks else "noted"
    return f"preflight: {difference.what}: recorded {difference.recorded}, here {difference.here} ({word})"


def _plan(
    workspace: Workspace,
    ledger: Ledger,
    segments: list[dict[str, Any]],
    options: Options,
    folder: Path,
) -> Plan:
    original = segments[-1]
    record = to_run(original)
    tree = folder / "tree"
    tree.mkdir()
    root = tree
    restore.restore(record.code, ledger.objects, workspace.root, tree)
    if record.code.vcs == "git":
        root = tree / codestore.inner(workspace.root, ledger.folder, record.id, record.code.commit)
        enclose(record.code, codestore.holder(workspace.root, ledger.folder, record.code.commit), tree)
    recorded_package = (
        package.capture_package(ledger.objects) if options.current_package else record.code.package
    )
    came_from = record.resumed_from if options.segment else None
    # What a command's trainer told of its configuration, it tells again.
    config = dict(record.config) if record.kind == "job" else {}
    recorded_steps = record.kind == "job" or bool(record.step)
    return Plan(
        job=record.job,
        kind=record.kind,
        argv=in_tree(secrets.fill(record.argv, os.environ), record.code, ledger.objects, tree),
        mode=record.mode,
        seed=record.seed,
        threads=record.threads,
        profile=record.profile,
        nested=Config(record.profile, config).nested,
        flat=config,
        outputs=[output.path for output in record.outputs],
        replay_of=record.id,
        code=_with_package(record.code, recorded_package),
        root=root,
        package_root=package.unpack_package(ledger.objects, recorded_package, folder / "package"),
        inputs=_inputs(ledger, original, workspace.root, folder, root),
        resumed_from=came_from,
        resume_path=_segment_start(ledger, came_from),
        drop=list(record.dropped) if came_from else [],
        stop_after=record.step if record.state != "finished" and recorded_steps else None,
        env=ledger.objects.get_json(record.env),
        cwd=record.cwd,
    )


def _with_package(code: Code, digest: str) -> Code:
    copy = msgspec.convert(to_document(code), Code)
    copy.package = digest
    return copy


def _segment_start(ledger: Ledger, origin: Origin | None) -> Path | None:
    if origin is None or origin.step == 0:
        return None
    return checkpoint_folder(ledger, origin.run, origin.step)


def _inputs(
    ledger: Ledger, original: dict[str, Any], workspace: Path, folder: Path, root: Path
) -> dict[str, dict[str, str]]:
    """Copy the recorded inputs into the scratch folder; a link would let the trainer write through it.

    Those of the workspace are at their place under `root` too, where git ignores them: a script may list a folder. Not
    those of the ledger: part of a run's folder would pass for the whole.
    """
    brought: dict[str, dict[str, str]] = {}
    for number, given in enumerate(room.inputs(original, ledger.objects)):
        target = folder / "inputs" / str(number) / Path(given["path"]).name
        target.parent.mkdir(parents=True)
        if given.get("stored"):
            target.write_bytes(ledger.objects.get(given["sha256"]))
        else:
            source = workspace / given["path"]
            try:
                shutil.copyfile(source, target)
            except OSError as error:
                raise RestoreError(
                    f"the input {given['name']} cannot be brought back: {error.strerror}", where=str(source)
                ) from error
        brought[given["name"]] = {"path": str(target), "sha256": given["sha256"]}
        recorded = workspace / given["path"]
        inside = recorded.is_relative_to(workspace) and not recorded.is_relative_to(ledger.folder)
        if inside and ".." not in recorded.parts:
            _at_its_place(
                target, root / recorded.relative_to(workspace), root, stored=given.get("stored", False)
            )
    return brought


def _at_its_place(brought: Path, place: Path, root: Path, *, stored: bool) -> None:
    """Put an input also where it lay in the workspace, unless the recorded code has something there.

    Of a small one that is a copy, as a pipeline may make it anew in the replay; a large one needs no room twice.
    """
    if os.path.lexists(place) or not place.parent.resolve().is_relative_to(root.resolve()):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if stored:
        shutil.copyfile(brought, place)
    else:
        os.link(brought, place)


def _compare(
    ledger: Ledger, segments: list[dict[str, Any]], replayed: dict[str, Any], options: Options
) -> Verdict:
    original = segments[-1]
    measured = original.get("measured", [])
    found = []
    for rank in _ranks(ledger, original, replayed):
        if options.segment:
            name = metrics_file(rank)
            ours = curves.read_curve(ledger.run_folder(original["id"]) / name)
            theirs = curves.read_curve(ledger.run_folder(replayed["id"]) / name)
        else:
            ours = curves.joined(ledger, original["id"], rank=rank)
            theirs = curves.joined(ledger, replayed["id"], rank=rank)
        found.append(
            verdict.compare(
                curves.compared(ours, measured),
                curves.compared(theirs, measured),
                None if rank else _final_tensors(ledger, segments, replayed["id"]),
                repeats=() if rank else _repeats(ledger, original, replayed["id"]),
                tolerance=options.tolerance,
            )
        )
    if original["kind"] == "command" and (original.get("outputs") or not found):
        found.append(_compare_outputs(original, replayed))
    return verdict.worst(found)


def _ranks(ledger: Ledger, *runs: dict[str, Any]) -> list[int]:
    """Return the ranks that any of the runs has a curve of; always rank 0 of a job."""
    ranks = curves.ranks(*(ledger.run_folder(run["id"]) for run in runs))
    return ranks or ([0] if runs[0]["kind"] == "job" else [])


def _final_tensors(
    ledger: Ledger, segments: list[dict[str, Any]], replay_id: str
) -> tuple[dict[str, str], dict[str, str]] | None:
    """Return the tensor digests of the lineage's last checkpoint and of the replay's at that step."""
    for segment in reversed(segments):
        kept = ledger.checkpoints.search(where("run") == segment["id"])
        if kept:
            last = max(kept, key=lambda checkpoint: int(checkpoint["step"]))
            theirs = ledger.checkpoint(replay_id, last["step"])
            return _digests(ledger, last), _digests(ledger, theirs) if theirs else {}
    return None


def _digests(ledger: Ledger, checkpoint: dict[str, Any]) -> dict[str, str]:
    digests: dict[str, str] = ledger.objects.get_json(checkpoint["manifest"])["tensors"]
    return digests


def _repeats(ledger: Ledger, original: dict[str, Any], besides: str) -> list[curves.Curve]:
    """Return the curves of other finished, unbroken runs of the same code, command, configuration and data."""
    found = []
    circumstances = _circumstances(ledger, original)
    config = original.get("config")
    alike = where("config") == config if config else ~where("config").exists()
    for key in ("job", "seed", "mode", "threads"):
        alike &= where(key) == original.get(key)
    for document in ledger.runs.search(alike):
        if document["id"] in (original["id"], besides) or document["state"] != "finished":
            continue
        if document.get("resumed_from") or _circumstances(ledger, document) != circumstances:
            continue
        with contextlib.suppress(FileNotFoundError, LedgerError):
            found.append(curves.joined(ledger, document["id"]))
    return found


def _circumstances(ledger: Ledger, document: dict[str, Any]) -> tuple[Any, ...]:
    """Return what repeats of a run share besides its configuration: code, variables, data, a command's arguments."""
    arguments = document["argv"] if document["kind"] == "command" else []
    return document["code"]["digest"], document.get("env"), arguments, _data(ledger, document)


def _compare_outputs(original: dict[str, Any], replayed: dict[str, Any]) -> Verdict:
    """Compare a command by what it declared with `--out`, in both directions, and by its exit status."""
    ours = {out["path"]: out.get("sha256", "") for out in original.get("outputs", [])}
    theirs = {out["path"]: out.get("sha256", "") for out in replayed.get("outputs", [])}
    if not ours:
        return Verdict(
            "INCOMPLETE",
            likely_causes=["the command declared no --out and used no recorder: there is nothing to compare"],
        )
    lacking = [path for path in ours if not ours[path] or not theirs.get(path)]
    differing = [path for path in ours if path not in lacking and ours[path] != theirs[path]]
    status = ("exit", "signal")
    if differing or any(original.get(key) != replayed.get(key) for key in status):
        first = (
            {"path": differing[0]}
            if differing
            else {key: [original.get(key), replayed.get(key)] for key in status}
        )
        return Verdict("DIVERGED", tensors=len(ours), first_difference=first)
    if lacking:
        return Verdict("INCOMPLETE", likely_causes=[f"{path} was not made on both sides" for path in lacking])
    return Verdict("BITWISE", tensors=len(ours))
