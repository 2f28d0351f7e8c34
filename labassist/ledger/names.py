"""How a person names a run: by its id, a part of it, by counting back, or as the newest of a job."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from labassist.errors import InputError, some

Document = TypeVar("Document", bound=Mapping[str, Any])


def by_creation(documents: Iterable[Document]) -> list[Document]:
    """Return run documents in the order in which the runs began, wherever and in whatever order they were recorded.

    The journal has a run that was imported where it came in. Of the same moment, the journal's order stands.
    """
    return sorted(documents, key=lambda one: str(one.get("created", "")))


def resolve(name: str, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the run document that `name` means: an id, a unique prefix of it or of its last part, `@last`, `@-2`, `@JOB`.

    `documents` may be in any order. `@last` is `@-1`; they count back, by creation, over runs that are not
    replays, and `@07-qlora/sft`, or `@sft`, is the newest of those of that job. Raises InputError when no run, or more than one,
    is meant.
    """
    if name.startswith("@"):
        return _from_last(name, documents)
    by_id = {document["id"]: document for document in documents}
    if name in by_id:
        return by_id[name]
    matches = [run_id for run_id in by_id if name and _means(name, run_id)]
    if len(matches) == 1:
        return by_id[matches[0]]
    if matches:
        raise InputError(
            f"{name!r} means {len(matches)} runs: {some(matches, 5)}", mend="give more of the id"
        )
    near = _nearest(name, list(by_id))
    raise InputError(
        f"there is no run {name!r}", mend=f"did you mean {near}?" if near else "see `labassist runs`"
    )


def _from_last(name: str, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the run that `@last`, `@-<n>` or `@<job>` names."""
    originals = by_creation(row for row in documents if not row.get("replay_of"))
    digits = "1" if name == "@last" else name.removeprefix("@-")
    if name != "@last" and not name.startswith("@-"):
        return _of_job(name[1:], originals)
    if not digits.isdecimal() or int(digits) < 1:
        raise InputError(f"{name!r} is not a name of a run", mend="write @last, or @-2 for the one before it")
    if len(originals) < int(digits):
        if not originals:
            raise InputError(
                f"there is no run {name}: none has been recorded yet", mend="start one with `labassist run`"
            )
        raise InputError(
            f"there is no run {name}: only {len(originals)} recorded (replays not counted)",
            mend="see `labassist runs`",
        )
    return originals[-int(digits)]


def _of_job(name: str, originals: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the newest run of a job, which is named whole or by its last part."""
    jobs = {str(row.get("job") or "") for row in originals} - {""}
    meant = [job for job in jobs if job == name] or [job for job in jobs if job.rpartition("/")[2] == name]
    if len(meant) > 1:
        raise InputError(
            f"@{name} means runs of {len(meant)} jobs: {', '.join(sorted(meant))}",
            mend="give the lab as well",
        )
    if not meant:
        near = difflib.get_close_matches(
            name, jobs | {job.rpartition("/")[2] for job in jobs} | {"last"}, n=1
        )
        raise InputError(
            f"@{name} means no run: it is neither @last nor @-2, and no job of that name was run",
            mend=f"did you mean @{near[0]}?" if near else "see `labassist runs`",
        )
    return next(row for row in reversed(originals) if row.get("job") == meant[0])


def _means(name: str, run_id: str) -> bool:
    return run_id.startswith(name) or run_id.rpartition("-")[2].startswith(name)


def _nearest(name: str, ids: list[str]) -> str:
    """Return the id that is most like what was typed, comparing whole ids and their last parts."""
    by_text = {run_id.rpartition("-")[2]: run_id for run_id in ids} | {run_id: run_id for run_id in ids}
    near = difflib.get_close_matches(name, by_text, n=1)
    return by_text[near[0]] if near else ""
