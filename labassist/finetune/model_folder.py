"""A model that lies here: how it is named, what its folder must hold, its manifest, and how such a folder is made.

The manifest stands beside the model: source, revision, licence, every file's size and SHA-256, and one digest over
them all. Nothing here imports torch or transformers; what needs them is done in a process of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labassist.errors import InputError
from labassist.ledger.canonical import dumps
from labassist.record.durable import replace_file
from labassist.record.protocol import file_sha256

EMBEDDED = "embedded"

RANDOM = "random:"

MANIFEST = "labassist-model.json"

SEEN = "labassist-model.seen.json"

FORMAT = 1

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

REVISION = re.compile(r"[A-Za-z0-9][\w./-]*")

WEIGHTS = ".safetensors"

HEADER = 100_000_000

"""Bytes; the format allows no longer header."""

HASHED_AT_ONCE = 4

INDEX = "model.safetensors.index.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Model:
    """A model that lies here, whole."""

    name: str
    """As it was asked for."""
    folder: Path
    manifest: Path
    digest: str
    """SHA-256 over the names, sizes and digests of all its files."""
    source: str
    revision: str
    licence: str

    def facts(self) -> dict[str, Any]:
        """Return what a run records of it beside the manifest."""
        return {
            "digest": self.digest,
            "source": self.source,
            "revision": self.revision,
            "licence": self.licence,
        }


def store(root: Path) -> Path:
    """Return the folder of a workspace where models are kept; it is ignored by git and safe to delete."""
    return root / ".labassist" / "cache" / "models"


def local_folder(name: str, root: Path) -> Path | None:
    """Return the folder that a name means, None where it can only be a hub id. Raises InputError on neither."""
    path = Path(name).expanduser()
    path = path if path.is_absolute() else root / path
    if path.is_dir():
        return path
    if not HUB_ID.fullmatch(name) or name.startswith("."):
        raise InputError(
            f"{name!r} is no folder and no hub id",
            where="model.name",
            mend=f"give {EMBEDDED}, a folder with config.json and {WEIGHTS} files, a hub id as "
            f"Qwen/Qwen2.5-7B, or {RANDOM}qwen2.5-7b",
        )
    return None


def is_hub_id(name: str, root: Path) -> bool:
    """Say whether a name can only be a hub id."""
    return name != EMBEDDED and not name.startswith(RANDOM) and local_folder(name, root) is None


def model_files(folder: Path) -> list[str]:
    """Return the names of a model's files. Raises InputError naming those that are missing."""
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_file() and not path.name.startswith((".", "labassist-model"))
    )
    missing = [] if "config.json" in names else ["config.json"]
    if INDEX in names:
        shards = set(read_json(folder / INDEX).get("weight_map", {}).values())
        missing += sorted(shards - set(names))
    elif not any(name.endswith(WEIGHTS) for name in names):
        pickled = any(name.startswith("pytorch_model") for name in names)
        if pickled:
            raise InputError(
                "its weights are pickled (pytorch_model.bin), which can run code when they are loaded",
                where=str(folder),
                mend="load it once where you trust it and save it with save_pretrained: that writes safetensors",
            )
        missing.append(f"*{WEIGHTS}")
    if not {"tokenizer.json", "tokenizer.model", "vocab.json"} & set(names):
        missing.append("tokenizer.json")
    if missing:
        raise InputError(
            f"this model is not whole: {', '.join(missing)} missing",
            where=str(folder),
            mend="bring these files to that folder",
        )
    for name in names:
        if name.endswith(WEIGHTS) and (fault := torn(folder / name)):
            raise InputError(
                f"this model is not whole: {name} {fault}",
                where=str(folder),
                mend="bring that file again; a merged model: delete the folder and merge again",
            )
    return names


def torn(path: Path) -> str:
    """Return what is wrong with the size of a safetensors file, by its own header; empty where nothing is.

    The format: 8 bytes with the header's length, the header as JSON, then the tensors one after the other.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size, HEADER):
            return f"has no header ({size} bytes)"
        try:
            header = json.loads(file.read(length))
            meant = max(
                (one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"), default=0
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            return "has a header that cannot be read"
    meant += 8 + length
    return f"was cut: {size:,} of {meant:,} bytes" if size < meant else ""


def described(name: str, folder: Path, place: Path, facts: dict[str, str]) -> Model:
    """Return the model in `folder`, its manifest kept in `place`; files that did not change are not read again.

    `facts` holds source, licence and revision where the manifest is new. Raises InputError where the folder lacks
    files; where one of ours changed since it was made (`place` is the folder), naming it.
    """
    files = model_files(folder)
    stats = {one: [(stat := (folder / one).stat()).st_size, stat.st_mtime_ns] for one in files}
    path = place / MANIFEST
    known = read_manifest(path) if path.is_file() else None
    if known is None or read_json(place / SEEN) != stats:
        fresh = _manifest(name, folder, files, known or facts)
        if known is not None and place == folder and fresh["digest"] != known["digest"]:
            raise InputError(
                f"{_changed(known['files'], fresh['files'])} is not as it was when the model was made",
                where=str(folder),
                mend="delete that folder: it is made again",
            )
        place.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(fresh, indent=1).encode() + b"\n")
        replace_file(place / SEEN, json.dumps(stats).encode())
        known = fresh
    return Model(name, folder, path, known["digest"], known["source"], known["revision"], known["licence"])


def _manifest(name: str, folder: Path, names: list[str], facts: dict[str, Any]) -> dict[str, Any]:
    with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
        digests = pool.map(file_sha256, [folder / one for one in names])
    files = {
        one: {"bytes": (folder / one).stat().st_size, "sha256": digest}
        for one, digest in zip(names, digests, strict=True)
    }
    return {
        "format": FORMAT,
        "name": name,
        "source": facts["source"],
        "revision": facts.get("revision", ""),
        "licence": facts.get("licence", ""),
        "files": files,
        "digest": hashlib.sha256(dumps(files)).hexdigest(),
    }


def _changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    names = sorted(one for one in {*before, *now} if before.get(one) != now.get(one))
    return ", ".join(names[:3])


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a model's manifest. Raises InputError where it cannot be used."""
    manifest = read_json(path)
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("digest"), str):
        raise InputError("is no manifest of a model", where=str(path), mend="delete it: it is made again")
    return manifest


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty where there is no such file. Raises InputError on what is none."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InputError(
            f"is no JSON that can be read: {error}", where=str(path), mend="bring that file again"
        ) from error
    return document if isinstance(document, dict) else {}


@contextlib.contextmanager
def making(folder: Path) -> Iterator[Path]:
    """Give a folder to make a model in, and rename it to `folder` at the end; one process at a time.

    What a killed process left is deleted first. Yields `folder` itself where another process has made it meanwhile.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            yield folder
            return
        partial = folder.parent / f"{folder.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def need_disk(folder: Path, wanted: int, what: str) -> None:
    """Raise InputError where the disk under `folder` has not `wanted` bytes and a reserve free."""
    free = shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free
    if free < 1.05 * wanted:
        raise InputError(
            f"{what} takes {wanted / 1e9:.1f} GB and {free / 1e9:.1f} GB are free",
            where=str(folder),
            mend="free some space, or take a smaller model",
        )


def apart(module: str, *words: str, say: Say) -> None:
    """Run a module of this package in a process of its own, so that nothing of it (generators, memory) stays here.

    Its lines are passed on. Raises InputError with its last line where it fails.
    """
    last = ""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("labassist: "):
                say(line.removeprefix("labassist: ").rstrip())
            last = line.strip() or last
    if process.returncode:
        what = last.removeprefix("labassist: ") or f"status {process.returncode}"
        raise InputError(what, where=module.rsplit(".", 1)[-1])
