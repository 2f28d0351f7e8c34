"""Hold another trainer's checkpoint against the manifest that a recorded run left of it in the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labassist.record.inspect import manifests_of
from labassist.record.protocol import file_sha256
from labassist.resume.description import Description

_STATES = {
    "model": "model",
    "adapter_model": "model",
    "pytorch_model": "model",
    "optimizer": "optimizer",
    "scheduler": "scheduler",
    "scaler": "scaler",
    "rng_state": "rng",
    "trainer_state": "data_position",
}
"""How the name of a Trainer's file begins -> the state that it holds."""


def compare(found: Description, verify: bool) -> None:
    """Add what differs from the manifest of the run that wrote the checkpoint, or say that nothing covers it.

    The manifests are those of the workspace around it. Of several runs that wrote into one folder the last
    one counts. Without `verify` only the sizes are compared.
    """
    if found.format == "labassist":
        return
    manifests = manifests_of(found.path)
    if not manifests:
        if bare := next(iter(_safetensors(found.path)), None):
            found.add("unsealed", "model", bare)
        return
    if not verify:
        manifests = manifests[:1]
    for _place, manifest in manifests:
        differing = _differing(found.path, manifest["files"], verify)
        if not differing:
            what = "is as it was" if verify else "has the size that it had"
            found.facts["sealed"] = verify
            found.add("sealed", run=manifest["run"], what=what)
            return
    manifest = manifests[0][1]
    differing = _differing(found.path, manifest["files"], verify)
    if {"model", "optimizer", "rng"} <= {_state(name) for name in differing}:
        found.add("written-over", run=manifest["run"])
        return
    for name, why in differing.items():
        state = _state(name)
        if state:
            found.mark(state, "torn")
        found.add("hash-mismatch", state, found.path / name, why=f"{why} (sealed by run {manifest['run']})")


def _differing(folder: Path, files: dict[str, dict[str, Any]], verify: bool) -> dict[str, str]:
    """Return name -> what differs, of the files that are not as the manifest says."""
    found = {}
    for name, promised in files.items():
        file = folder / name
        try:
            size = file.stat().st_size
            if size != promised["bytes"]:
                found[name] = f"the file has {size} bytes and had {promised['bytes']}"
            elif verify and file_sha256(file) != promised["sha256"]:
                found[name] = "its bytes are not those that were saved"
        except FileNotFoundError:
            found[name] = "the file is gone"
        except OSError:
            continue  # the reader has said that it cannot be read
    return found


def _state(name: str) -> str | None:
    file = Path(name).name
    return next((state for begin, state in _STATES.items() if file.startswith(begin)), None)


def _safetensors(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".safetensors" else []
    return sorted([*path.glob("*.safetensors"), *path.glob("*/*.safetensors")])
