"""`ckpt prove` and `ckpt ablate` beside the app: long experiments, one of a name at a time, that outlive it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from textual.message import Message

from labassist.app.command import Background
from labassist.app.messages import ExperimentMoved

LOOK_S = 0.5
"""Seconds between two looks at what they say."""

STEPS_AFTER = 3
"""Steps that `ckpt prove` and `ckpt ablate` need after the interruption."""


class Experiments:
    """Starts them and posts what they say; `told` keeps the newest word of each."""

    def __init__(self, workspace: Path, post: Callable[[Message], object]) -> None:
        self._workspace = workspace
        self._post = post
        self.told: dict[str, ExperimentMoved] = {}
        """Name -> the newest word, for whoever looks later."""

    def busy(self, name: str) -> bool:
        """Say whether one of this name goes on."""
        told = self.told.get(name)
        return told is not None and told.answer is None and not told.problem

    def start(self, name: str, *words: str, cwd: Path | None = None) -> None:
        """Start `labassist WORDS`, unless one of this name goes on. It answers with `ExperimentMoved`."""
        if self.busy(name):
            return
        self.told[name] = ExperimentMoved(name, "starting")
        threading.Thread(
            target=self._follow, args=(name, words, cwd), name=f"labassist-{name}", daemon=True
        ).start()

    def _follow(self, name: str, words: tuple[str, ...], cwd: Path | None) -> None:
        try:
            going = Background(
                self._workspace, "".join(c if c.isalnum() else "-" for c in name), *words, cwd=cwd
            )
            phases: list[str] = []
            while True:
                ended, answer, said = going.poll()
                if ended:
                    break
                if not phases or said != phases[-1]:
                    phases.append(said)
                    self._tell(ExperimentMoved(name, said))
                time.sleep(LOOK_S)
        except OSError as error:
            answer, said = None, f"{error.filename}: {error.strerror or error}"
        self._tell(ExperimentMoved(name, "", answer, "" if answer else said))

    def _tell(self, word: ExperimentMoved) -> None:
        self.told[word.name] = word
        self._post(word)


def words_for(
    kind: str, run: Mapping[str, Any], defaults: Mapping[str, Any], at: int | None
) -> tuple[str, ...]:
    """Return the words after `labassist` that repeat a recorded run: `kind` is prove or ablate.

    `defaults` are the numbers of its job and profile as they stand; what the run had otherwise is set. `at` is the
    step of a checkpoint, left out where too few steps follow it.
    """
    words = ["ckpt", kind]
    if at and at <= run.get("total_steps", 0) - STEPS_AFTER:
        words += ["--at", str(at)]
    words += ["--seed", str(run["seed"])]
    if run.get("threads"):
        words += ["--threads", str(run["threads"])]
    if run["kind"] == "command":
        return (*words, "--", *run["argv"])
    if run.get("profile"):
        words += ["--profile", run["profile"]]
    for key, value in run.get("config", {}).items():
        if key not in defaults or defaults[key] != value:
            words += ["--set", f"{key}={_as_set(value)}"]
    return (*words, run["job"])


def _as_set(value: Any) -> str:
    """Return a value as `--set` takes it: text bare, the rest as TOML."""
    return value if isinstance(value, str) else json.dumps(value)
