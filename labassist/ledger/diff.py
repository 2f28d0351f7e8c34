"""What differs between two runs: configuration, code, environment, data, curves and checkpoints.

Equal parts are left out of the answer, so that what is listed is what differs. A difference is `{"a", "b"}`;
what one side lacks is None.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labassist.errors import CodeError, LedgerError
from labassist.ledger import codestore, curves, room
from labassist.ledger.gitcmd import Private, private
from labassist.ledger.kept import GONE, LINK, listing, take_away
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code, Kept, to_run
from labassist.ledger.store import Ledger

_SETTINGS = ("job", "kind", "profile", "mode", "seed", "threads", "argv", "cwd")
"""Fields of a run that say how it was started; `config` holds the rest."""

_HARDWARE = ("name", "compute_capability", "sm_count", "memory_bytes")

Pair = dict[str, Any]


def diff(ledger: Ledger, workspace: Path, a: str, b: str) -> dict[str, Any]:
    """Return the JSON document of `diff A B` (CONTRACT) for two runs, each a name as `ledger.find` takes it.

    Raises InputError where there is no such run, LedgerError where a record is damaged.
    """
    ours, theirs = ledger.find(a), ledger.find(b)
    found: dict[str, Any] = {
        "a": ours["id"],
        "b": theirs["id"],
        "config": _config(ours, theirs),
        "code": _code(ours, theirs, ledger.objects, workspace),
        "environment": _environment(ours, theirs, ledger.objects),
        "data": _data(ours, theirs, ledger.objects),
        "curves": _curves(ledger, ours["id"], theirs["id"]),
        "checkpoints": _checkpoints(ledger, ours["id"], theirs["id"]),
    }
    found["same"] = (
        not found["config"]
        and found["code"]["same"]
        and not found["environment"]
        and not found["data"]
        and not any(series["first_difference"] for series in found["curves"].values())
        and not found["checkpoints"]["first_difference"]
    )
    return found


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Pair]:
    """Return the keys whose values differ."""
    names = [*a, *(name for name in b if name not in a)]
    return {name: {"a": a.get(name), "b": b.get(name)} for name in names if a.get(name) != b.get(name)}


def _config(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Pair]:
    settings = [{name: run.get(name) for name in _SETTINGS} for run in (a, b)]
    return _pairs(*settings) | _pairs(a.get("config", {}), b.get("config", {}))


# ---------------------------------------------------------------------------- code


def _code(a: dict[str, Any], b: dict[str, Any], objects: Objects, workspace: Path) -> dict[str, Any]:
    """Return whether the code is the same, and the patch that leads from A's files to B's."""
    ours, theirs = to_run(a).code, to_run(b).code
    if ours.digest == theirs.digest:
        return {"same": True, "patch": ""}
    if ours.vcs != theirs.vcs:
        return {"same": False, "patch": "", "note": "only one of the runs lay in a repository"}
    try:
        if ours.vcs == "none":
            patch = _patch_of_files(listing(ours.extra, objects), listing(theirs.extra, objects), objects)
        else:
            patch = _patch_of_trees(ours, theirs, objects, workspace)
    except CodeError as error:
        return {"same": False, "patch": "", "note": str(error)}
    unlike = _not_stored(ours, theirs, objects)
    told: dict[str, Any] = {"same": False, "patch": patch}
    if unlike or not patch:
        told["note"] = "recorded by hash or name only: " + ", ".join(unlike or ["submodules"])
    return told


def changed_files(a: Code, b: Code, objects: Objects, workspace: Path) -> list[str]:
    """Return the paths of the files in which the code of two runs differs. Raises CodeError."""
    if a.vcs != b.vcs or a.vcs == "none":
        sides = [{one.path: one.sha256 for one in listing(code.extra, objects)} for code in (a, b)]
        return sorted(_pairs(*sides))
    names = _between_trees(a, b, objects, workspace, "--name-only", "-z").decode(errors="replace").split("\0")
    return sorted({*names[:-1], *_not_stored(a, b, objects)})


def _not_stored(a: Code, b: Code, objects: Objects) -> list[str]:
    """Return the files that differ and whose content is not in the ledger."""
    sides = [
        {kept.path: (kept.sha256, kept.bytes) for kept in listing(code.extra, objects) if not kept.stored}
        for code in (a, b)
    ]
    return sorted(_pairs(*sides))


def _patch_of_trees(a: Code, b: Code, objects: Objects, workspace: Path) -> str:
    """Return what git shows between the two runs' trees."""
    return _between_trees(a, b, objects, workspace, "-p", "--find-renames").decode(errors="replace")


def _between_trees(a: Code, b: Code, objects: Objects, workspace: Path, *how: str) -> bytes:
    """Return what git says of the two runs' trees, made in a private object directory."""
    repos = []
    for code in (a, b):
        repo = codestore.holder(workspace, objects.folder.parent, code.commit)
        if not repo.has_commit(code.commit):
            raise CodeError(f"the commit {code.commit[:12]} is not in this repository", where=str(repo.top))
        repos.append(repo)
    with private(repos[0], a.commit, repos[0].top) as git:
        codestore.borrow(git, repos)
        trees = [_tree(git, code, objects) for code in (a, b)]
        return git.run("diff-tree", "-r", "--no-color", "--no-ext-diff", *how, *trees)


def _tree(git: Private, code: Code, objects: Objects) -> str:
    """Write a run's tree into the private object directory and return its id."""
    extra, changed = listing(code.extra, objects), listing(code.changed, objects)
    git.run("read-tree", code.commit)
    if code.patch:
        git.run("apply", "--cached", "--whitespace=nowarn", "-", stdin=objects.get(code.patch))
    take_away(git, extra, changed)
    for kept in extra:
        if kept.stored and kept.mode != GONE:
            blob = git.run("hash-object", "-w", "--stdin", "--no-filters", stdin=objects.get(kept.sha256))
            mode = "120000" if kept.mode == LINK else "100755" if kept.mode & 0o100 else "100644"
            git.set_entries([(mode, blob.decode().strip(), kept.path)])
    return git.write_tree()


def _patch_of_files(a: list[Kept], b: list[Kept], objects: Objects) -> str:
    sides = [{kept.path: kept for kept in files if kept.stored} for files in (a, b)]
    lines: list[str] = []
    for path in sorted(sides[0].keys() | sides[1].keys()):
        one, two = (
            objects.get(side[path].sha256).decode(errors="replace").splitlines() if path in side else []
            for side in sides
        )
        lines += difflib.unified_diff(one, two, f"a/{path}", f"b/{path}", lineterm="")
    return "\n".join(lines) + "\n" if lines else ""


# ---------------------------------------------------------------------------- environment and data


def _environment(a: dict[str, Any], b: dict[str, Any], objects: Objects) -> dict[str, Pair]:
    """Return what differs of python, packages, variables, labassist itself and the hardware."""
    sides = [_surroundings(run, objects) for run in (a, b)]
    return _pairs(*sides)


def _surroundings(run: dict[str, Any], objects: Objects) -> dict[str, Any]:
    told = objects.get_json(run["environment"])
    flat = {key: told.get(key) for key in ("python", "implementation", "build", "compiler")}
    flat |= {f"os.{key}": value for key, value in told.get("os", {}).items() if key != "kernel"}
    for entry in told.get("distributions", []):
        name, _, version = entry.partition("==")
        flat[re.sub(r"[-_.]+", "-", name).lower()] = version
    # The code of labassist itself, as the version stands still while it is worked on.
    flat["labassist source"] = run["code"].get("package", "")[:16]
    variables = objects.get_json(run["env"]) if run.get("env") else {}
    # These follow from the seed, the threads and the mode, which stand under `config`.
    derived = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG")
    flat |= {
        f"${name}": value
        for name, value in variables.items()
        if name not in derived and not name.endswith("_NUM_THREADS")
    }
    hardware = objects.get_json(run["hardware"])
    flat["cpu"] = hardware.get("cpu", {}).get("model")
    flat["cpu flags"] = " ".join(hardware.get("cpu", {}).get("flags", []))
    flat["driver"] = hardware.get("driver")
    for number, gpu in enumerate(hardware.get("gpus", [])):
        flat |= {f"gpu{number}.{key}": gpu.get(key) for key in _HARDWARE}
    return flat


def _data(a: dict[str, Any], b: dict[str, Any], objects: Objects) -> dict[str, Pair]:
    keys = ("path", "bytes", "sha256", "split")
    sides = [
        {one["name"]: {key: one.get(key) for key in keys} for one in room.inputs(run, objects)}
        for run in (a, b)
    ]
    return _pairs(*sides)


# ---------------------------------------------------------------------------- results


def _curves(ledger: Ledger, a: str, b: str) -> dict[str, dict[str, Any]]:
    """Return for each series how many steps were compared and are equal, and the first that is not.

    What a clock made is not compared.
    """
    measured = [name for run in (a, b) for name in (ledger.run(run) or {}).get("measured", [])]
    ours, theirs = (curves.compared(curves.joined(ledger, run), measured).series for run in (a, b))
    found = {}
    for name in sorted(ours.keys() | theirs.keys()):
        one, two = ours.get(name, {}), theirs.get(name, {})
        both = one.keys() & two.keys()
        equal = {step for step in both if curves.same_value(one[step], two[step])}
        unlike = min((one.keys() | two.keys()) - equal, default=None)
        first = None
        if unlike is not None:
            first = {"step": unlike, "a": _value(one, unlike), "b": _value(two, unlike)}
        found[name] = {"compared": len(both), "equal": len(equal), "first_difference": first}
    return found


def _value(series: Mapping[int, curves.Value], step: int) -> curves.Value | None:
    return curves.encode(series[step]) if step in series else None


def _checkpoints(ledger: Ledger, a: str, b: str) -> dict[str, Any]:
    """Compare the checkpoints of the same steps, tensor by tensor."""
    sides = [_manifests(ledger, run) for run in (a, b)]
    compared = equal = 0
    first = None
    for step in sorted(sides[0].keys() & sides[1].keys()):
        ours, theirs = sides[0][step](), sides[1][step]()
        for name in sorted(ours.keys() | theirs.keys()):
            same = ours.get(name) == theirs.get(name)
            compared, equal = compared + 1, equal + same
            if not same and first is None:
                first = {"step": step, "tensor": name, "a": ours.get(name), "b": theirs.get(name)}
    only = [sorted(sides[0].keys() - sides[1].keys()), sorted(sides[1].keys() - sides[0].keys())]
    if first is None and any(only):
        first = {"step": min(only[0] + only[1]), "tensor": None, "a": only[0], "b": only[1]}
    return {"compared": compared, "equal": equal, "first_difference": first}


def _manifests(ledger: Ledger, run: str) -> dict[int, Callable[[], dict[str, str]]]:
    """Return step -> a reader of the tensor digests, over the lineage of a run."""
    found: dict[int, Callable[[], dict[str, str]]] = {}
    until: int | None = None
    document = ledger.run(run)
    while document is not None:
        for kept in ledger.checkpoints.all():
            step = int(kept["step"])
            if kept["run"] == document["id"] and (until is None or step <= until):
                found.setdefault(step, _reader(ledger.objects, kept["manifest"]))
        origin = document.get("resumed_from")
        if origin is None:
            return found
        until = origin["step"]
        document = ledger.run(origin["run"])
    raise LedgerError(f"the lineage of run {run} is not whole in this ledger", where=str(ledger.folder))


def _reader(objects: Objects, manifest: str) -> Callable[[], dict[str, str]]:
    return lambda: dict(objects.get_json(manifest)["tensors"])
