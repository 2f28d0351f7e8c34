"""What a server is asked to serve: the model with what it came from, the adapters, and vLLM's own command line."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.finetune import lineage, model_folder, models
from labassist.finetune.merge import CONFIG, WEIGHTS, find_adapter
from labassist.finetune.model_folder import Model, Say
from labassist.ledger.names import by_creation
from labassist.ledger.store import Ledger
from labassist.record.protocol import file_sha256
from labassist.runs.resume import last_checkpoint
from labassist.serving.place import Engine
from labassist.workspace import Workspace

MERGE_JOB = "finetune/merge"
MODULE = "vllm.entrypoints.openai.api_server"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for --max-lora-rank."""

MOST_ADAPTERS = 8
LONGEST = 8192
"""Tokens of a sequence unless --max-len says otherwise: models that can take 131,072 would ask for a cache as large."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OWN = ("--model", "--host", "--port", "--served-model-name", "--lora-modules", "--api-key")
"""Options of vLLM that are labassist's to set: what is recorded must be what runs, and a key belongs on no command line."""


@dataclass(frozen=True)
class Options:
    """What a person asked for beside the model."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str = ""
    memory_fraction: float | None = None
    max_len: int | None = None
    dtype: str = ""
    quantization: str = ""
    enforce_eager: bool = False
    trust_remote_code: bool = False
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter that is served unmerged."""

    name: str
    folder: Path
    rank: int


@dataclass
class Target:
    """What is served."""

    model: Model
    name: str
    """As requests call it."""
    positions: int
    """Tokens that the model itself can take; 0 where its config does not say."""
    merge: str = ""
    """The run that merged it; empty where none did, or where the folder is not as that run left it."""
    adapters: list[Adapter] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def length(self, options: Options) -> int:
        """Return the longest sequence that is served. Raises InputError where the model cannot take so many tokens."""
        if options.max_len is None:
            return min(self.positions or LONGEST, LONGEST)
        if self.positions and options.max_len > self.positions:
            raise InputError(
                f"{self.model.name} can take {self.positions:,} tokens, and no more",
                where=f"--max-len {options.max_len}",
                mend=f"give --max-len {self.positions} or less",
            )
        return options.max_len


def target(
    workspace: Workspace, ledger: Ledger, asked: str, adapters: list[str], options: Options, say: Say
) -> Target:
    """Return what is to be served. Raises InputError for a model or an adapter that cannot be."""
    name, merge = _named(workspace, ledger, asked)
    try:
        model = models.prepare(name, workspace.root, say=say)
    except InputError as error:  # it speaks to a training, whose option this is not
        where = asked if error.where == "model.name" else error.where
        mend = error.mend.replace("--set model.name=", "labassist serve ")
        raise InputError(error.what, where=where, mend=mend) from None
    models.refuse_remote_code(model, options.trust_remote_code)
    config = json.loads((model.folder / "config.json").read_bytes())
    served = options.name or (model.folder.name if Path(name).name != name or merge else name)
    found = Target(model, served, int(config.get("max_position_embeddings") or 0))
    if (model.folder / lineage.FILE).is_file():
        found.merge = _merged_by(workspace, ledger, model, merge)
        if not found.merge:
            found.notes.append(
                f"{model.folder} was merged, and no run of this ledger made it as it is: its chain ends here"
            )
    if len(adapters) > MOST_ADAPTERS:
        raise InputError(f"{len(adapters)} adapters", where="--adapter", mend=f"give at most {MOST_ADAPTERS}")
    for word in adapters:
        found.adapters.append(_adapter(workspace, ledger, word, found))
    names = [found.name, *(one.name for one in found.adapters)]
    if twice := {one for one in names if names.count(one) > 1}:
        raise InputError(f"two models are called {twice.pop()}", where="--adapter", mend="give another NAME")
    return found


def _named(workspace: Workspace, ledger: Ledger, asked: str) -> tuple[str, str]:
    """Return the model's name and the merge run that it stands for. Raises InputError on a run that is no merge."""
    path = Path(asked).expanduser()
    known = asked == model_folder.EMBEDDED or asked.startswith(model_folder.RANDOM) or "/" in asked
    if not asked.startswith("@") and (known or path.is_dir() or (workspace.root / path).is_dir()):
        inside = path.resolve() if path.is_dir() else path
        if inside.is_absolute() and inside.is_relative_to(workspace.root):
            return str(inside.relative_to(workspace.root)), ""
        return (str(inside) if path.is_dir() else asked), ""
    document = ledger.find(asked)
    run = document["id"]
    if document["job"] != MERGE_JOB:
        raise InputError(
            f"is a run of {document['job']}, which makes no whole model",
            where=f"run {run}",
            mend=_instead(ledger, document),
        )
    if document["state"] != "finished":
        raise InputError(f"this merge is {document['state']}", where=f"run {run}", mend="merge again")
    folder = document["outputs"][0]["path"]
    if not (workspace.root / folder).is_dir():
        raise InputError(
            f"the model that it merged is gone: {folder}",
            where=f"run {run}",
            mend="merge again, or replay it",
        )
    return folder, run


def _instead(ledger: Ledger, document: dict[str, Any]) -> str:
    """Return what to do with a run that is no merge: its adapter can be merged or served, where it has left one."""
    _origin, checkpoint = last_checkpoint(ledger, document, [])
    run = document["id"]
    try:
        if checkpoint is not None and find_adapter(checkpoint.resolve()):
            return f"merge it first: labassist merge {run}; or serve its base: labassist serve BASE --adapter NAME={run}"
    except InputError:  # no adapter in it
        pass
    return (
        "it has left no adapter either; name a model, or a merge: labassist runs --where job=finetune/merge"
    )


def _merged_by(workspace: Workspace, ledger: Ledger, model: Model, run: str) -> str:
    """Return the merge whose output is this folder, bit for bit; empty where none is."""
    if not model.folder.is_relative_to(workspace.root):
        return ""
    place = model.folder.relative_to(workspace.root).as_posix()
    digest = _folder_digest(model)
    for document in reversed(by_creation(map(dict, ledger.runs.all()))):
        if document["job"] != MERGE_JOB or (run and document["id"] != run):
            continue
        if any(out["path"] == place and out["sha256"] == digest for out in document.get("outputs", [])):
            return str(document["id"])
    return ""


def _folder_digest(model: Model) -> str:
    """Return what `runs.belongings.folder_digest` would, with the digests that the manifest has already."""
    known = model_folder.read_manifest(model.manifest)["files"]
    lines = ""
    for path in sorted(one for one in model.folder.rglob("*") if one.is_file()):
        inside = path.relative_to(model.folder).as_posix()
        digest = known[inside]["sha256"] if inside in known else file_sha256(path)
        lines += f"{digest} {inside}\n"
    return hashlib.sha256(lines.encode()).hexdigest()


def _adapter(workspace: Workspace, ledger: Ledger, word: str, base: Target) -> Adapter:
    """Return one adapter of `NAME=PATH` or `NAME=RUN`. Raises InputError where it belongs to another base."""
    name, equals, place = word.partition("=")
    if not equals or not place or not _NAME.fullmatch(name):
        raise InputError("is not NAME=PATH or NAME=RUN", where=f"--adapter {word}", mend="as shop=@last")
    folder = Path(place).expanduser()
    folder = folder if folder.is_dir() else workspace.root / folder
    if not folder.is_dir():
        document = ledger.find(place)
        _origin, checkpoint = last_checkpoint(ledger, document, [])
        if checkpoint is None:
            raise InputError("it has left no checkpoint", where=f"run {document['id']}", mend="let it run on")
        folder = checkpoint
    folder = find_adapter(folder.resolve())
    told = json.loads((folder / CONFIG).read_bytes())
    _check_base(folder, told, base)
    rank = max([int(told.get("r", 0)), *map(int, told.get("rank_pattern", {}).values())])
    if rank > RANKS[-1]:
        raise InputError(
            f"has rank {rank}, and vLLM serves at most {RANKS[-1]}",
            where=str(folder),
            mend="merge it into its base: labassist merge",
        )
    return Adapter(name, folder, rank)


def _check_base(folder: Path, told: dict[str, Any], base: Target) -> None:
    """Raise InputError where an adapter was trained on another base than the one that is served."""
    kept = lineage.read(folder).get("base", {})
    named = str(kept.get("name") or told.get("base_model_name_or_path") or "a base that it does not name")
    if kept.get("digest"):
        if kept["digest"] == base.model.digest:
            return
        why = f"({kept['digest'][:12]}…) and not {base.model.name} ({base.model.digest[:12]}…)"
    else:
        misfit = _misfit(folder, base.model.folder)
        if not misfit:
            base.notes.append(f"{folder} does not prove its base; its shapes fit {base.model.name}")
            return
        why = f"and not {base.model.name}: {misfit}"
    raise InputError(
        f"this adapter was trained on {named} {why}",
        where=str(folder),
        mend="serve its own base, or train one on this base",
    )


def _misfit(adapter: Path, base: Path) -> str:
    """Return the first matrix of an adapter that has no place in a base's layers; empty where all have."""
    layers: dict[str, list[int]] = {}
    for path in base.glob(f"*{model_folder.WEIGHTS}"):
        layers |= shapes(path)
    for key, shape in shapes(adapter / WEIGHTS).items():
        name, _, side = key.removeprefix("base_model.model.").partition(".lora_")
        weight = layers.get(f"{name}.weight")
        if not side:
            continue
        if weight is None:
            return f"{name} does not exist there"
        if shape[1 if side[0] == "A" else 0] != weight[1 if side[0] == "A" else 0]:
            return f"{key} is {shape}, and {name} is {weight}"
    return ""


def shapes(path: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor of a safetensors file, from its header alone. Raises InputError on a bad one."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, path.stat().st_size)))
        return {key: list(value["shape"]) for key, value in header.items() if key != "__metadata__"}
    except (OSError, ValueError, struct.error, KeyError, TypeError) as error:
        raise InputError(
            f"is no safetensors file that can be read: {error}", where=str(path), mend="bring that file again"
        ) from error


def max_rank(adapters: list[Adapter]) -> int:
    """Return the smallest value of --max-lora-rank that serves all of the adapters."""
    most = max(one.rank for one in adapters)
    return next(rank for rank in RANKS if rank >= most)


def command(engine: Engine, served: Target, options: Options, seed: int) -> list[str]:
    """Return vLLM's command line. Raises InputError where an extra argument is one of labassist's own."""
    for word in options.extra:
        if word.partition("=")[0] in _OWN:
            mend = "put the key into VLLM_API_KEY" if "key" in word else "use labassist's own option"
            raise InputError("is set by labassist and recorded", where=f"-- {word}", mend=mend)
    words = [str(engine.python), "-m", MODULE, "--model", str(served.model.folder)]
    words += ["--served-model-name", served.name, "--host", options.host, "--port", str(options.port)]
    words += ["--max-model-len", str(served.length(options)), "--seed", str(seed)]
    if options.memory_fraction is not None and not engine.cpu:
        words += ["--gpu-memory-utilization", str(options.memory_fraction)]
    words += ["--dtype", options.dtype] if options.dtype else []
    words += ["--quantization", options.quantization] if options.quantization else []
    words += ["--enforce-eager"] if options.enforce_eager else []
    words += ["--trust-remote-code"] if options.trust_remote_code else []
    if served.adapters:
        words += ["--enable-lora", "--max-loras", str(len(served.adapters))]
        words += ["--max-lora-rank", str(max_rank(served.adapters)), "--lora-modules"]
        words += [f"{one.name}={one.folder}" for one in served.adapters]
    return [*words, *options.extra]
