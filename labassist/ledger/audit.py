"""Verify everything that the ledger promises, and name what it does not cover.

The journal is read as it lies on disk, line by line, so that a damaged one is still audited as far as it
goes. Every file under the ledger folder is either checked or listed as not covered.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import msgspec

from labassist.errors import CodeError, LedgerError
from labassist.ledger import answers, foreign, names, origin
from labassist.ledger.anchor import Anchor, is_in, take
from labassist.ledger.audit_answer import Audit
from labassist.ledger.audit_checkpoint import check_checkpoint, readable_sha256
from labassist.ledger.derived import Derived, is_past
from labassist.ledger.entries import Entry, decode_entry, split, whole_lines
from labassist.ledger.objects import Objects
from labassist.ledger.problems import Problem
from labassist.ledger.records import Mark, why_gone
from labassist.ledger.refs import needed
from labassist.ledger.seals import Sealed, broken
from labassist.ledger.verify import verify
from labassist.ledger.view import CHECKPOINTS, COURSE, RUNS, Tables


def audit(
    folder: Path,
    workspace: Path,
    run: str | None = None,
    *,
    anchor: Anchor | None = None,
    take_anchor: bool = False,
) -> Audit:
    """Audit the ledger in `folder`, or only what belongs to one run (an id, prefix or @last).

    `anchor` is one that was kept: the journal must still have its entry. `take_anchor` makes a new one.
    Nothing is written. Raises LedgerError when there is no ledger, InputError when there is no such run.
    """
    if not (folder / "journal.jsonl").exists() and not (folder / "head").exists():
        raise LedgerError(
            "there is no ledger here: nothing is journalled yet",
            where=str(folder),
            mend="record a run, or import one (again: what a killed import left is used by the next)",
        )
    found = Audit()
    derived = Derived.read(folder)
    entries, tables = read_journal(folder)
    found.problems += verify(folder)
    found.count("journal entries", len(entries))
    found.head = entries[-1].hash if entries else ""
    found.anchor = take(entries) if take_anchor else anchor
    found.records = len(tables.documents[RUNS])
    chosen = _chosen(tables, run)
    objects = Objects(folder / "objects")
    if anchor is not None:
        _check_anchor(found, anchor, entries, objects)
    seen: set[Path] = {folder / name for name in ("journal.jsonl", "head", "view.json")}
    found.problems += derived.problems(entries, tables)
    if derived.present:
        found.count("snapshot")
    last = max((entry.n for entry in entries), default=0)
    positions: dict[str, set[str]] = {}
    for entry in entries:
        positions.setdefault(entry.run, set()).add(f'{{"hash":"{entry.hash}","n":{entry.n}}}')
    checkpoints = list(tables.documents[CHECKPOINTS].values())
    by_run: dict[str, list[dict[str, Any]]] = {}
    for checkpoint in checkpoints:
        by_run.setdefault(checkpoint["run"], []).append(checkpoint)
    for document in chosen:
        own, expected = by_run.get(document["id"], []), positions.get(document["id"], set())
        _check_run(found, folder, objects, document, own, expected, last, seen)
        _check_code(found, workspace, document)
    ids = {document["id"] for document in chosen}
    owners = foreign.claims(folder, checkpoints, objects)
    for checkpoint in checkpoints:
        if checkpoint["run"] in ids:
            check_checkpoint(found, folder, objects, checkpoint, owners, seen)
    _forgive_pruned(found, folder)
    if run is None:
        _check_imports(found, objects, entries)
        _check_code_store(found, folder, seen)
        _check_course(found, tables)
        _check_objects(found, objects, seen)
        found.not_covered += sorted(
            str(path.relative_to(folder)) for path in _files(folder) if path not in seen
        )
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Yield every file with content; what another process takes away meanwhile is passed over."""
    for place, _folders, files in os.walk(folder):
        for name in files:
            path = Path(place, name)
            try:
                facts = path.stat()
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and facts.st_size:
                yield path


def _check_imports(found: Audit, objects: Objects, entries: list[Entry]) -> None:
    """What came from another ledger is still as that one's own journal lines, kept here, say."""
    for entry in entries:
        if entry.origin:
            found.count("imports")
            for message in origin.differences(entry, objects):
                path = f"objects/{entry.origin}"
                found.problems.append(Problem("origin-broken", message, entry.run, path))


def _check_code_store(found: Audit, folder: Path, seen: set[Path]) -> None:
    """The commits that came with imported runs are whole."""
    store = folder / "code.git"
    if not store.exists():
        return
    from labassist.ledger.codestore import check

    found.count("code stores")
    trouble = check(folder)
    if trouble:
        found.problems.append(Problem("code-damaged", trouble, path=store.name))
    seen.update(path for path in store.rglob("*") if path.is_file())


def _check_anchor(found: Audit, anchor: Anchor, entries: list[Entry], objects: Objects) -> None:
    """Hold an anchor that was kept elsewhere against the journal, and those that imported runs came from."""
    found.count("anchors")
    if is_in(anchor, entries) or origin.has(anchor.hash, entries, objects):
        return
    there = (
        "another entry stands there" if anchor.entries <= len(entries) else f"only {len(entries)} are there"
    )
    message = f"the journal no longer has entry {anchor.entries} as it was anchored at {anchor.time}: {there}"
    found.problems.append(Problem("anchor-missing", message, path="journal.jsonl", line=anchor.entries))


def read_journal(folder: Path) -> tuple[list[Entry], Tables]:
    """Return the entries that can be read and the documents that follow from them."""
    entries: list[Entry] = []
    tables = Tables()
    try:
        fd = os.open(folder / "journal.jsonl", os.O_RDONLY)
    except OSError:
        return entries, tables
    end = 0
    try:
        for line in whole_lines(fd):
            end += len(line) + 1
            try:
                stored, body = split(line)
                entry = decode_entry(body)
                tables.apply(entry)
            except (ValueError, msgspec.MsgspecError):
                continue  # `verify` names this line
            entry.hash, entry.end = stored, end
            entries.append(entry)
    finally:
        os.close(fd)
    return entries, tables


def _chosen(tables: Tables, run: str | None) -> list[dict[str, Any]]:
    # TinyDB lets anybody insert anything; what has no id is no run.
    documents = [row for row in tables.documents[RUNS].values() if isinstance(row.get("id"), str)]
    if run is None:
        return documents
    return [names.resolve(run, documents)]


def _check_run(
    found: Audit,
    folder: Path,
    objects: Objects,
    document: dict[str, Any],
    checkpoints: list[dict[str, Any]],
    expected: set[str],
    last: int,
    seen: set[Path],
) -> None:
    run_id = document["id"]
    place = folder / "runs" / run_id
    positions = place / "positions.jsonl"
    seen.add(positions)
    _check_positions(found, folder, positions, run_id, expected, last)
    if not document.get("seals") and document["state"] != "running":
        found.problems.append(
            Problem("seals-missing", "the run ended without seals", run_id, f"runs/{run_id}")
        )
    try:
        seals = objects.get_json(document["seals"]) if document.get("seals") else {}
    except LedgerError as error:
        found.problems.append(Problem("object-damaged", error.what, run_id, f"objects/{document['seals']}"))
        return
    promised = {name: [Sealed(**seal, when="at the end")] for name, seal in seals.items()}
    for checkpoint in checkpoints:
        for name, seal in checkpoint["curve"].items():
            promised.setdefault(name, []).append(Sealed(**seal, when=f"at step {checkpoint['step']}"))
    for name, sealed in promised.items():
        path = place / name
        seen.add(path)
        found.count("sealed files")
        problem = broken(folder, path, sealed, run_id)
        end = max(seal.bytes for seal in sealed)
        if problem:
            if name == answers.FILE and path.exists():
                problem = msgspec.structs.replace(problem, line=answers.blamed(path, end))
            found.problems.append(problem)
        elif seals and path.stat().st_size > end:
            found.not_covered.append(f"{path.relative_to(folder)} (after byte {end})")
    _check_answers(found, folder, place / answers.FILE, run_id)


def _check_answers(found: Audit, folder: Path, path: Path, run_id: str) -> None:
    """Check each answer of a served model against the next; seals know the bytes only, and a live run has none."""
    if not path.exists():
        return
    found.count("answers", answers.count(path.parent))
    name = str(path.relative_to(folder))
    line = answers.altered(path)
    if line and not any(problem.path == name for problem in found.problems):
        message = f"answer {line} is not as it was when the next one was kept"
        found.problems.append(Problem("answer-altered", message, run_id, name, line=line))


def _check_positions(
    found: Audit, folder: Path, path: Path, run_id: str, expected: set[str], last: int
) -> None:
    name = str(path.relative_to(folder))
    found.count("journal positions", len(expected))
    try:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        found.problems.append(
            Problem("positions-missing", "the run's journal positions are gone", run_id, name)
        )
        return
    for number, line in enumerate(lines, 1):
        known = any(problem.path == name and problem.line == number for problem in found.problems)
        if line and line not in expected and not known and not is_past(line, last):
            message = f"line {number} is not the position of an entry of this run"
            found.problems.append(Problem("positions-damaged", message, run_id, name, line=number))


def _forgive_pruned(found: Audit, folder: Path) -> None:
    """Drop what was found of checkpoints that a prune took away meanwhile: it journals them as gone first."""
    doubtful = {one.path for one in found.problems if one.code.startswith(("checkpoint-", "manifest-"))}
    if not doubtful:
        return
    _entries, tables = read_journal(folder)
    gone = {row["path"] for row in tables.documents[CHECKPOINTS].values() if why_gone(row)}
    found.problems = [
        one
        for one in found.problems
        if one.path not in doubtful
        or gone.isdisjoint(map(str, (PurePath(one.path), *PurePath(one.path).parents)))
    ]


def _check_course(found: Audit, tables: Tables) -> None:
    """Every mark of the course is a whole record; the journal's chain says that it was not changed."""
    for doc_id, document in tables.documents.get(COURSE, {}).items():
        found.count("course marks")
        try:
            msgspec.convert(document, Mark)
        except msgspec.ValidationError as error:
            found.problems.append(
                Problem(
                    "course-damaged",
                    f"mark {doc_id} of the course is no record: {error}",
                    path="journal.jsonl",
                )
            )


def _check_objects(found: Audit, objects: Objects, seen: set[Path]) -> None:
    """Every object is what its name says. What a record names and is not there is named by its run."""
    for sha in objects:
        path = objects.path(sha)
        seen.add(path)
        found.count("objects")
        if readable_sha256(path) != sha:
            found.problems.append(
                Problem(
                    "object-damaged", "its content is not what its name says", path=f"objects/{path.name}"
                )
            )


def _check_code(found: Audit, workspace: Path, document: dict[str, Any]) -> None:
    code = document["code"]
    objects = Objects(workspace / "ledger" / "objects")
    for one in needed(document, objects):
        if not objects.has(one.sha):
            message = f"the run's {one.what} is gone"
            found.problems.append(Problem("object-missing", message, one.run, f"objects/{one.sha}"))
    if code["vcs"] != "git":
        return
    from labassist.ledger.codestore import holder

    found.count("commits")
    try:
        there = holder(workspace, workspace / "ledger", code["commit"]).has_commit(code["commit"])
    except CodeError as error:
        found.problems.append(Problem("commit-unknown", error.what, document["id"]))
        return
    if not there:
        found.problems.append(
            Problem(
                "commit-missing", f"commit {code['commit'][:12]} is not in this repository", document["id"]
            )
        )
