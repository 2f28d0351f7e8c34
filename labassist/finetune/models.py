"""Which model a name means: the embedded default, random weights of a real architecture, a folder, or a hub id.

Whatever it is, it becomes a folder of safetensors with a manifest beside it, which is what a run records as its input.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from labassist.errors import InputError, RestoreError
from labassist.finetune import embedded, hub, randomised
from labassist.finetune.model_folder import (
    EMBEDDED,
    RANDOM,
    REVISION,
    Model,
    Say,
    described,
    is_hub_id,
    local_folder,
    read_json,
    read_manifest,
    store,
)
from labassist.record.inspect import workspace_of
from labassist.record.protocol import Order


def of_order(order: Order, name: str, revision: str = "", *, trust_remote_code: bool = False) -> Model:
    """Return the model that a run's settings mean, made ready if it can be made here, and record it as an input.

    In a replay it must be the recorded one. Raises InputError or RestoreError; see `prepare`.
    """
    root = workspace_of(order.folder) if order.folder else Path.cwd()
    # As a program started by hand finds it, so does the run: paths are relative to the workspace.
    model = prepare(name, root, revision, say=lambda line: print(f"labassist: {line}", flush=True))
    refuse_remote_code(model, trust_remote_code)
    shown = model.manifest.relative_to(root) if model.manifest.is_relative_to(root) else model.manifest
    split = {**model.facts(), "trust_remote_code": trust_remote_code}
    recorded = read_manifest(order.input("model", shown, split))
    if recorded["digest"] != model.digest:
        raise RestoreError(
            f"the model {name} is not the recorded one (digest {model.digest[:12]}… and not "
            f"{recorded['digest'][:12]}…)",
            where=str(model.folder),
            mend="bring the recorded model back, or start a new run with this one",
        )
    return model


def prepare(name: str, root: Path, revision: str = "", *, say: Say = print) -> Model:
    """Return the model called `name`, after making it where that needs no hub; `root` is the workspace.

    A hub id is looked for among what was downloaded and is never fetched here. Raises InputError for a name that
    means nothing, and for a model that is not here or not whole, with how to bring it.
    """
    if revision and not (is_hub_id(name, root) and REVISION.fullmatch(revision)):
        raise InputError(
            f"the revision {revision!r} means nothing here",
            where="model.revision",
            mend="only a hub id has revisions; give a commit, tag or branch of it",
        )
    if name == EMBEDDED:
        return embedded.prepare(store(root), say)
    if name.startswith(RANDOM):
        return randomised.prepare(name, store(root), say)
    folder = local_folder(name, root)
    if folder is not None:
        key = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
        return described(name, folder, store(root) / f"local-{key}", {"source": "a folder", "licence": ""})
    return hub.find(name, store(root), revision)


def refuse_remote_code(model: Model, trusted: bool) -> None:
    """Raise InputError where a model brings code of its own and nobody said that it may run."""
    if read_json(model.folder / "config.json").get("auto_map") and not trusted:
        raise InputError(
            f"{model.name} brings Python code of its own (auto_map in its config.json), which is not run unasked",
            where=str(model.folder),
            mend="read that code, then --set model.trust_remote_code=true; the run records it",
        )
