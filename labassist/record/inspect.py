"""Reading a checkpoint without torch: is it whole, and what exactly does it hold.

The audit and the supervisor use this; nothing in a checkpoint is executed or unpickled. A checkpoint is
named by its path in the run folder: our own folder `step-<8 digits>`, or the manifest
`step-<8 digits>.manifest.json` of one that another trainer keeps in a folder of its own.

A tensor's digest is the SHA-256 of the ASCII text `dtype|shape|` followed by the tensor's bytes (C order,
little endian). `dtype` is the safetensors name (F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, F8_E4M3,
C64 …), `shape` the sizes joined by commas: `F32|2,3|` for a 2 by 3 matrix, `I64||` for a scalar.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from labassist.errors import CheckpointError
from labassist.record.protocol import CHECKPOINTS, checkpoint_name, file_sha256

FORMAT = "labassist"
VERSION = 1
MANIFEST = "manifest.json"
COMMIT = "COMMIT"
STATE = "state.json"
TENSORS_SUFFIX = ".safetensors"
FOREIGN = "transformers"
"""Format of a checkpoint that a Hugging Face Trainer wrote and that we only describe."""
FOREIGN_SUFFIX = ".manifest.json"
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""torch's name of a data type -> that of safetensors."""

_CHUNK = 1 << 20
_OTHER = "resume from an older checkpoint of this run"


class Entry(NamedTuple):
    """One tensor in a safetensors file. `begin` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def inspect(path: str | Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint after verifying every file against it.

    Raises CheckpointError naming the file, and the tensor where one can be told, when the checkpoint was
    never committed, a file is missing, cut or altered, its folder is gone, or a newer version wrote it.
    """
    manifest = read_manifest(path)
    folder = folder_of(path, manifest)
    if not folder.is_dir():
        raise CheckpointError("the checkpoint's folder is gone", where=str(folder), mend=_OTHER)
    for name, promised in manifest["files"].items():
        file = folder / name
        if _hash(file) != promised["sha256"]:
            raise CheckpointError(
                _what_differs(file, folder, promised, manifest), where=str(file), mend=_OTHER
            )
    return manifest


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, its files unseen. Raises CheckpointError as `inspect`."""
    place = Path(path)
    file = manifest_file(place)
    if file == place:
        manifest: dict[str, Any] = _json(_read(file), file)
    else:
        if place.name.endswith(".tmp") or not (place / COMMIT).is_file():
            raise CheckpointError("this checkpoint was never completed", where=str(place), mend=_OTHER)
        if _hash(file) != _read(place / COMMIT).decode("ascii", "replace"):
            raise CheckpointError("the manifest does not match COMMIT", where=str(file), mend=_OTHER)
        manifest = _json(_read(file), file)
    expected = FOREIGN if file == place else FORMAT
    if manifest.get("format") != expected or manifest.get("version", 0) > VERSION:
        raise CheckpointError(
            f"this is a checkpoint of {manifest.get('format')} version {manifest.get('version')}",
            where=str(place),
            mend=f"use a labassist that knows it; this one reads {expected} version {VERSION}",
        )
    return manifest


def manifest_file(path: Path) -> Path:
    """Return where the manifest of a checkpoint lies."""
    return path if path.name.endswith(FOREIGN_SUFFIX) else path / MANIFEST


def folder_of(path: str | Path, manifest: dict[str, Any]) -> Path:
    """Return the folder with the files of a checkpoint.

    A foreign one is named in its manifest, relative to the workspace that holds the ledger where it lies
    inside it.
    """
    place = Path(path)
    return workspace_of(place.parents[1]) / manifest["folder"] if "folder" in manifest else place


def manifests_of(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the manifests about another trainer's checkpoint, with their places, the newest first.

    They are looked for in the ledgers of the workspaces around `folder`. One that cannot be read is left to
    the audit, which names it.
    """
    folder = folder.resolve()
    digits = folder.name.rpartition("-")[2]
    step = checkpoint_name(int(digits)) if digits.isdecimal() else "step-????????"
    found = []
    for root in folder.parents:
        for place in (root / "ledger" / "runs").glob(f"*/{CHECKPOINTS}/{step}{FOREIGN_SUFFIX}"):
            try:
                manifest = json.loads(place.read_bytes())
                if folder_of(place, manifest).resolve() == folder and isinstance(manifest["files"], dict):
                    found.append((place.stat().st_mtime_ns, place, manifest))
            except (OSError, ValueError, KeyError, TypeError):
                continue
    found.sort(key=lambda one: one[0], reverse=True)
    return [(place, manifest) for _time, place, manifest in found]


def workspace_of(run_folder: Path) -> Path:
    """Return the workspace of a run folder, `<workspace>/ledger/runs/<id>`."""
    return run_folder.resolve().parents[2]


def committed(run_folder: Path) -> dict[int, Path]:
    """Return step -> path of every committed checkpoint of a run, ascending; their content unseen."""
    found = {}
    for path in (run_folder / CHECKPOINTS).glob("step-????????*"):
        digits = path.name[5:13]
        if not digits.isdecimal():
            continue
        own = checkpoint_name(int(digits))
        if path.name == own + FOREIGN_SUFFIX or (path.name == own and (path / COMMIT).exists()):
            found[int(digits)] = path
    return dict(sorted(found.items()))


def tensor_digests(path: str | Path) -> dict[str, str]:
    """Return `state/tensor` -> digest, computed from the files of a checkpoint folder.

    Raises CheckpointError when a safetensors file is cut or its header is damaged.
    """
    found = {}
    for file in sorted(Path(path).glob(f"*{TENSORS_SUFFIX}")):
        for name, digest in file_digests(file):
            found[f"{file.name.removesuffix(TENSORS_SUFFIX)}/{name}"] = digest
    return found


def read_header(path: Path) -> list[Entry]:
    """Return the tensors of a safetensors file in file order.

    The format: 8 bytes of little-endian header length, a JSON header, then the tensors' bytes. Raises
    CheckpointError when the length, the header or the file's size do not fit together.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size
            if not 0 < length <= size - 8:
                raise ValueError("its header is cut")
            header = json.loads(file.read(length))
        entries = [
            Entry(
                name,
                item["dtype"],
                tuple(_count(size) for size in item["shape"]),
                *(8 + length + _count(offset) for offset in item["data_offsets"]),
            )
            for name, item in header.items()
            if name != "__metadata__"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"its header lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"not a whole safetensors file: {why}", where=str(path), mend=_OTHER) from error
    if entries and min(entry.begin for entry in entries) != 8 + length:
        raise CheckpointError(
            "the first tensor does not begin where the header ends", where=str(path), mend=_OTHER
        )
    end = max((entry.end for entry in entries), default=8 + length)
    if end != size:
        raise CheckpointError(
            f"the file has {size} bytes where its header says {end}", where=str(path), mend=_OTHER
        )
    return sorted(entries, key=lambda entry: entry.begin)


def _count(value: Any) -> int:
    """Return a size or an offset. Raises ValueError on what no reader of safetensors takes for one."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size and no offset")
    return value


def tensor_hash(dtype: str, shape: tuple[int, ...]) -> hashlib._Hash:
    """Return a running tensor digest that still lacks the tensor's bytes."""
    return hashlib.sha256(f"{dtype}|{','.join(map(str, shape))}|".encode())


def file_digests(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and digest of each tensor of a safetensors file. Raises CheckpointError as `read_header`."""
    entries = read_header(path)
    with path.open("rb") as file:
        for entry in entries:
            file.seek(entry.begin)
            running = tensor_hash(entry.dtype, entry.shape)
            for chunk in _chunks(file, entry.end - entry.begin):
                running.update(chunk)
            yield entry.name, running.hexdigest()


def _chunks(file: BinaryIO, count: int) -> Iterator[bytes]:
    while count > 0 and (chunk := file.read(min(_CHUNK, count))):
        count -= len(chunk)
        yield chunk


def _what_differs(file: Path, folder: Path, promised: dict[str, Any], manifest: dict[str, Any]) -> str:
    size = file.stat().st_size
    if size != promised["bytes"]:
        return f"the file has {size} bytes where the manifest says {promised['bytes']}"
    if file.suffix == TENSORS_SUFFIX:
        try:
            found = dict(file_digests(file))
        except CheckpointError as error:
            return f"the file was altered: {error.what}"
        for name, digest in found.items():
            whole = f"{state_name(file.relative_to(folder))}/{name}"
            if manifest["tensors"].get(whole) != digest:
                return f"the tensor {whole} was altered"
    return "the file was altered"


def state_name(file: Path) -> str:
    """Return how the tensors of a file are called in a manifest: its path in the checkpoint, no suffix."""
    return file.with_suffix("").as_posix()


def _json(data: bytes, path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise CheckpointError("the manifest is not JSON", where=str(path), mend=_OTHER) from error
    return manifest


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=str(path), mend=_OTHER) from error


def _hash(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise CheckpointError(f"cannot read: {error.strerror}", where=str(path), mend=_OTHER) from error
