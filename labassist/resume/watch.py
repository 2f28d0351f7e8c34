"""Run a stock script with its trainer watched, and nothing in it mended: what `ckpt prove` needs of it.

    python -m labassist.resume.watch SCRIPT ARGUMENT…

A script with a transformers Trainer (or TRL's) is recorded as if it had the line `record.attach(trainer)`, but
the trainer resumes as it does by itself, faults and all. The script is started in exact mode, so that two runs
of it are equal.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_HOME = "transformers.trainer"
_LAUNCHERS = ("torchrun", "torch.distributed.run", "accelerate", "accelerate.commands.launch")
"""Programs and modules that start a script once a rank, and take `-m MODULE` in its place."""


def watched(argv: Sequence[str], script: Path | None) -> list[str]:
    """Return the command line that runs a stock Python script watched; any other as it is.

    A script that names labassist records itself.
    """
    if script is None or script.suffix != ".py" or "labassist" in script.read_text(errors="replace"):
        return list(argv)
    at = next(at for at, word in enumerate(argv) if Path(word).name == script.name)
    before = argv[:at]
    programs = [Path(word).name for word in before if not word.startswith("-")]
    if not any(name in _LAUNCHERS for name in programs) and not "".join(programs[-1:]).startswith("python"):
        return list(argv)
    return [*before, "-m", "labassist.resume.watch", *argv[at:]]


def main(argv: list[str]) -> None:
    """Run the script that `argv` names, with what follows it as its own arguments."""
    from labassist import record

    record.exact()
    sys.meta_path.insert(0, _Finder())
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    runpy.run_path(argv[0], run_name="__main__")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds transformers' trainer once, and has its class watched as soon as it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _HOME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _watch(module.Trainer)


def _watch(kind: Any) -> None:
    """Have every trainer of a class recorded from the beginning of its training."""
    train = kind.train

    def recorded(self: Any, *args: Any, **more: Any) -> Any:
        if any(type(one).__name__ == "LedgerCallback" for one in self.callback_handler.callbacks):
            return train(self, *args, **more)
        _attach_bare(self)
        return self.train(*args, **more)

    kind.train = recorded


def _attach_bare(trainer: Any) -> None:
    """Attach the recorder, and give the trainer back its own ways of loading weights, batches and generators."""
    from labassist import record

    names = ("_load_from_checkpoint", "_save_rng_state", "_load_rng_state", "get_train_dataloader")
    own = {name: getattr(trainer, name) for name in names}
    record.attach(trainer)
    for name, method in own.items():
        setattr(trainer, name, method)


if __name__ == "__main__":
    main(sys.argv[1:])
