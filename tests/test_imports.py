"""What a start costs: help is light, and a trainer's recorder brings nothing heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "torch",
    "numpy",
    "textual",
    "tinydb",
    "git",
    "msgspec",
    "psutil",
    "pynvml",
    "safetensors",
    "transformers",
)


def loaded(code: str, *, cwd: Path | None = None, **env: str) -> set[str]:
    """Return which heavy packages a fresh interpreter has loaded after running some code."""
    code += f"\nimport sys; print('HEAVY', *[name for name in {HEAVY} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(result.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["new", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = f"from labassist.cli.main import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass"
    assert loaded(code) == set()


def test_new_loads_nothing_heavy(tmp_path: Path) -> None:
    assert (
        loaded("from labassist.cli.main import main\nassert main(['new', 'x']) == 0", cwd=tmp_path) == set()
    )


def test_record_loads_nothing_heavy() -> None:
    assert loaded("from labassist import record\nrecord.read_order()") == set()


def test_the_command_and_the_module_are_one(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("labassist")
    by_name = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    by_module = subprocess.run(
        [sys.executable, "-m", "labassist", "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert by_name == by_module
