"""Any command as a run: what it is called, where it runs, what its script is, and what it says it makes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from labassist.errors import InputError
from labassist.ledger import secrets
from labassist.ledger.code import SCRIPTS, script_place
from labassist.ledger.kept import listing
from labassist.ledger.objects import Objects
from labassist.ledger.records import Code, Mode
from labassist.runs.launch import Plan
from labassist.workspace import Workspace

MOST_OUTPUTS = 24
"""Each is hashed into the run's document at its end, which has room for so many."""

_SCRIPTS = (".py", ".sh", ".bash", ".zsh", ".pl", ".rb", ".r", ".jl", ".js", ".lua")

_RUNS_MODULES = re.compile(r"python[\d.]*|torchrun|accelerate")


def plan_command(
    workspace: Workspace,
    argv: Sequence[str],
    *,
    mode: Mode,
    seed: int,
    threads: int,
    note: str,
    outputs: Sequence[str],
) -> Plan:
    """Return the plan of `run -- CMD …`, run in the current folder if it lies in the workspace.

    Raises InputError when there is no such program, too many outputs are named, or one lies outside the workspace.
    """
    if shutil.which(argv[0]) is None:
        raise InputError("no such program", where=argv[0], mend="check the spelling and PATH")
    if len(outputs) > MOST_OUTPUTS:
        raise InputError(
            f"{len(outputs)} paths are too many, {MOST_OUTPUTS} at most",
            where="--out",
            mend="let the command write into one folder, and name the folder",
        )
    here = Path.cwd().resolve()
    cwd = here.relative_to(workspace.root) if here.is_relative_to(workspace.root) else Path()
    _refuse_secret(cwd.as_posix())
    declared = []
    for output in outputs:
        _refuse_secret(output, "--out ")
        path = Path(os.path.normpath(workspace.root / cwd / output))
        if not path.is_relative_to(workspace.root) or path == workspace.root:
            raise InputError(
                "lies outside the workspace", where=f"--out {output}", mend="a replay could not tell it apart"
            )
        declared.append(str(path.relative_to(workspace.root)))
    folder = workspace.root / cwd
    words = portable(workspace, argv, folder)
    script = command_script(folder, words)
    return Plan(
        job=job_name(words, script),
        kind="command",
        argv=words,
        mode=mode,
        seed=seed,
        threads=threads,
        note=note,
        outputs=declared,
        cwd=str(cwd),
        script=script,
    )


def _refuse_secret(name: str, before: str = "") -> None:
    """Raise InputError on a path with a secret in it: a replay needs it as it is, and the ledger never stores one."""
    for finding in secrets.scan(name):
        raise InputError(
            f"the name holds a secret ({finding.kind}), which the ledger never stores",
            where=before + secrets.redact_text(name),
            mend="give it another name",
        )


def job_name(argv: Sequence[str], script: Path | None) -> str:
    """Return what a command's run is called: its script, else the module that it runs, else its program."""
    if script is not None:
        return script.name
    for at, word in enumerate(argv[1:-1], 1):
        if word == "-m" and any(_RUNS_MODULES.fullmatch(Path(before).name) for before in argv[:at]):
            return argv[at + 1]
    return Path(argv[0]).name


def portable(workspace: Workspace, argv: Sequence[str], cwd: Path) -> list[str]:
    """Return a command line in which paths inside the workspace are relative to where it runs.

    So the replay's copy reads its own files, and the record means the same in another place.
    """
    words: list[str] = []
    for word in argv:
        option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
        path = Path(value)
        if path.is_absolute() and path.exists() and path.resolve().is_relative_to(workspace.root):
            value = os.path.relpath(path.resolve(), cwd)
            if not words and "/" not in value:
                value = f"./{value}"  # a program is looked for in PATH unless it is a path
        words.append(option + equals + value)
    return words


def command_script(cwd: Path, argv: Sequence[str]) -> Path | None:
    """Return the file that a command line runs, as seen from `cwd`: the first word that is a script."""
    for word in argv:
        path = cwd / word
        if path.is_file() and (path.suffix.lower() in _SCRIPTS or _has_interpreter_line(path)):
            return path
    return None


def _has_interpreter_line(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def in_tree(argv: Sequence[str], code: Code, objects: Objects, tree: Path) -> list[str]:
    """Return a recorded command line for a restored tree: a script from outside has its place there."""
    kept = {one.path for one in listing(code.extra, objects) if one.path.startswith(SCRIPTS)}
    return [
        str(tree / place) if (place := script_place(Path("/") / word, tree)) in kept else word
        for word in argv
    ]
