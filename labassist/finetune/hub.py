"""A model of a hub: pinned to a commit, its licence and size known before a byte of it is brought, kept for good.

`HF_ENDPOINT` names a mirror and `HF_HUB_OFFLINE=1` forbids the network; both are huggingface_hub's own. A download
that was cut goes on where it stopped. It is meant to be a recorded run of its own:

    labassist run -- python -m labassist.finetune.hub Qwen/Qwen2.5-7B
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from labassist.errors import InputError, LabError, some
from labassist.finetune import model_folder
from labassist.finetune.model_folder import INDEX, MANIFEST, Model, Say
from labassist.record.durable import replace_file

WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", "LICENSE*", "*.py")
LEFT = ("consolidated*", "training_args*", "labassist-*")
"""Files of the same weights in another layout, and what a training left."""

NEEDED = ["config.json", "tokenizer.json", "*.safetensors"]
"""What every model has, where the hub has not said what its files are called."""

PLAN = "labassist-model.plan.json"
"""In a folder that is being filled: what the hub said it will hold."""

SIGNS_OF_LIFE_S = 5.0


def find(name: str, store: Path, revision: str) -> Model:
    """Return a model that was downloaded, without any network. Raises InputError with how to bring it.

    A revision is a commit or the branch or tag that it was downloaded by; without one the newest download counts.
    What another program put into the hub's own cache is used where it lies.
    """
    best: tuple[float, Path] | None = None
    for manifest in store.glob(f"{_slug(name)}--*/{MANIFEST}"):
        known = model_folder.read_manifest(manifest)
        asked = {known["revision"], known["revision"][:12], known["source"].rpartition("@")[2]}
        if (not revision or revision in asked) and (best is None or manifest.stat().st_mtime > best[0]):
            best = (manifest.stat().st_mtime, manifest.parent)
    if best is not None:
        return model_folder.described(name, best[1], best[1], {"source": "", "licence": ""})
    cached = _in_hub_cache(name, revision)
    if cached is not None:
        place = store / f"cached-{_slug(name)}--{cached.name[:12]}"
        facts = {"source": f"hub {name}", "revision": cached.name, "licence": _licence_here(cached)}
        return model_folder.described(name, cached, place, facts)
    lacking = _lacking(store, name) or NEEDED
    word = f"{name} (revision {revision})" if revision else name
    raise InputError(
        f"{word} is not here; missing: {some(lacking, 6)}",
        where="model.name",
        mend=f"bring it: `labassist run -- python -m labassist.finetune.hub {name}"
        + (f" --revision {revision}" if revision else "")
        + f"`; without a network: {_elsewhere(name)}",
    )


def download(name: str, root: Path, revision: str, say: Say) -> Model:
    """Bring a model into the workspace `root` and return it; what is there already is not brought again.

    Raises InputError where the hub cannot be reached (which files are missing, how to bring them otherwise), the
    model is gated or unknown, or the disk is too small for it.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            "huggingface_hub is not installed", where="hub", mend="pip install 'labassist[train]'"
        )
    store = model_folder.store(root)
    plan = _ask(name, revision, store)
    folder = store / f"{_slug(name)}--{plan['revision'][:12]}"
    if (folder / MANIFEST).is_file():
        say(f"{name} is here already: {folder}")
        return model_folder.described(name, folder, folder, {"source": "", "licence": ""})
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    replace_file(partial / PLAN, json.dumps(plan, indent=1).encode())
    total = sum(plan["files"].values())
    licence = plan["licence"] or "not stated"
    say(
        f"{name} @ {plan['revision'][:12]}: {len(plan['files'])} files, {total / 1e9:.2f} GB, licence: {licence}"
    )
    model_folder.need_disk(store, total - _size(partial), name)
    stop = threading.Event()
    teller = threading.Thread(target=_tell, args=(partial, total, say, stop), daemon=True)
    teller.start()
    try:
        for number, file in enumerate(sorted(plan["files"], key=lambda one: plan["files"][one]), 1):
            if not _whole(partial / file, plan["files"][file]):
                say(f"file {number} of {len(plan['files'])}: {file} ({plan['files'][file] / 1e6:,.0f} MB)")
                _fetch(name, file, plan, partial)
    finally:
        stop.set()
        teller.join()
    asked = revision or "main"
    facts = {
        "source": f"hub {name}@{asked}",
        "revision": plan["revision"],
        "licence": plan["licence"],
    }
    say("every file is here; computing their digests")
    _verify(model_folder.described(name, partial, partial, facts), plan)
    (partial / PLAN).unlink()
    partial.rename(folder)
    return model_folder.described(name, folder, folder, facts)


def _ask(name: str, revision: str, store: Path) -> dict[str, Any]:
    """Return what the hub says: the commit, each wanted file's size, the licence. Raises InputError."""
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub

    try:
        told = HfApi().model_info(name, revision=revision or None, files_metadata=True)
    except hub.GatedRepoError:
        raise InputError(
            "this model is gated: its authors give it to those who accepted their terms",
            where=name,
            mend="accept them on its page, then set HF_TOKEN to a token of yours and run this again",
        ) from None
    except hub.RevisionNotFoundError:
        raise InputError(f"has no revision {revision!r}", where=name, mend="leave --revision out") from None
    except hub.RepositoryNotFoundError:
        raise InputError("no such model there, or it is private", where=name, mend="check its name") from None
    except (hub.HTTPError, OSError) as error:  # the client's own base class, whichever client it is
        lacking = _lacking(store, name) or NEEDED
        endpoint = os.environ.get("HF_ENDPOINT", "the hub")
        off = "HF_HUB_OFFLINE is set" if isinstance(error, hub.OfflineModeIsEnabled) else _short(error)
        raise InputError(
            f"{endpoint} cannot be reached ({off}); missing: {some(lacking, 6)}",
            where=name,
            mend=f"set HF_ENDPOINT to a mirror that can be; or without a network: {_elsewhere(name)}",
        ) from None
    files = {
        one.rfilename: int(one.size or 0)
        for one in told.siblings or []
        if "/" not in one.rfilename and _matches(one.rfilename, WANTED) and not _matches(one.rfilename, LEFT)
    }
    if not any(file.endswith(model_folder.WEIGHTS) for file in files):
        raise InputError(
            "has no safetensors there", where=name, mend="choose a model whose weights are safetensors"
        )
    digests = {one.rfilename: one.lfs.sha256 for one in told.siblings or [] if one.lfs}
    card = told.card_data
    licence = str((card.get("license") if card else None) or "")
    return {
        "revision": str(told.sha),
        "files": files,
        "sha256": {file: digest for file, digest in digests.items() if file in files},
        "licence": licence,
    }


def _elsewhere(name: str) -> str:
    """Return how to bring a model by hand."""
    folder = name.rpartition("/")[2]
    return (
        f"on a machine that has one `hf download {name} --local-dir {folder}`, copy that folder here, and "
        f"--set model.name={folder}"
    )


def _fetch(name: str, file: str, plan: dict[str, Any], partial: Path) -> None:
    """Bring one file, going on with what an earlier download has left of it."""
    from huggingface_hub import errors as hub
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    size, part = plan["files"][file], partial / f"{file}.part"
    try:
        with part.open("r+b" if part.exists() else "wb") as target:
            # Not hf_hub_download: it begins each file anew in every process.
            url = hf_hub_url(name, file, revision=plan["revision"])
            have = target.seek(0, os.SEEK_END)
            http_get(url, target, resume_size=have, headers=build_hf_headers(), expected_size=size)
        part.replace(partial / file)
    except (hub.HTTPError, OSError) as error:
        lacking = [one for one, size in plan["files"].items() if not _whole(partial / one, size)]
        raise InputError(
            f"the download was cut ({_short(error)}); missing: {some(lacking, 6)}",
            where=name,
            mend="run the same command again: what is there stays, and it goes on from there",
        ) from None


def _verify(model: Model, plan: dict[str, Any]) -> None:
    """Raise InputError where a file is not what the hub says it is; that file is brought again the next time."""
    brought = model_folder.read_manifest(model.manifest)["files"]
    wrong = [file for file, digest in plan["sha256"].items() if brought[file]["sha256"] != digest]
    for file in wrong:
        (model.folder / file).unlink()
    if wrong:
        model.manifest.unlink()
        raise InputError(
            f"arrived damaged: {some(wrong, 6)}", where=model.name, mend="run the same command again"
        )


def _tell(partial: Path, total: int, say: Say, stop: threading.Event) -> None:
    """Say how far it is, every few seconds, until told to stop."""
    before = _size(partial)
    while not stop.wait(SIGNS_OF_LIFE_S):
        now = _size(partial)
        rate = (now - before) / SIGNS_OF_LIFE_S
        left = f", {(total - now) / rate / 60:.0f} min left" if rate > 0 else ""
        say(f"{100 * now / max(1, total):.0f}% of {total / 1e9:.2f} GB, {rate / 1e6:.1f} MB/s{left}")
        before = now


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # renamed to its place since it was listed
    return total


def _whole(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _lacking(store: Path, name: str) -> list[str]:
    """Return the files that a download which was cut still lacks."""
    for plan in store.glob(f"{_slug(name)}--*.partial/{PLAN}"):
        files = json.loads(plan.read_bytes())["files"]
        return [one for one, size in files.items() if not _whole(plan.parent / one, size)]
    return []


def _in_hub_cache(name: str, revision: str) -> Path | None:
    """Return the newest whole snapshot in huggingface_hub's own cache; nothing is fetched."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    repository = cache / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / revision
    if revision and reference.is_file():
        revision = reference.read_text().strip()
    found = []
    for snapshot in repository.glob("snapshots/*"):
        if snapshot.name.startswith(revision) and (snapshot / "config.json").exists():
            whole = any(snapshot.glob("*.safetensors")) or (snapshot / INDEX).exists()
            found += [snapshot] if whole else []
    return max(found, key=lambda one: one.stat().st_mtime, default=None)


def _licence_here(folder: Path) -> str:
    """Return the licence that a model card's first lines name."""
    card = folder / "README.md"
    if card.is_file():
        for line in card.read_text(encoding="utf-8", errors="replace").splitlines()[:60]:
            if line.startswith("license:"):
                return line.partition(":")[2].strip()
    return ""


def _slug(name: str) -> str:
    return "hub--" + name.replace("/", "--")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def main() -> int:
    """Bring a model into the enclosing workspace, telling how far it is."""
    from labassist.record.inspect import workspace_of
    from labassist.record.protocol import read_order
    from labassist.workspace import Workspace

    parser = argparse.ArgumentParser(prog="python -m labassist.finetune.hub", description=main.__doc__)
    parser.add_argument("name", metavar="ID", help="as Qwen/Qwen2.5-7B")
    parser.add_argument("--revision", default="", help="commit, tag or branch (default: the newest commit)")
    args = parser.parse_args()
    order = read_order()
    root = workspace_of(order.folder) if order.folder else Workspace.find().root
    try:
        if not model_folder.is_hub_id(args.name, root):
            raise InputError("is no hub id", where=args.name, mend="give one as Qwen/Qwen2.5-7B")
        model = download(args.name, root, args.revision, lambda line: print(f"labassist: {line}", flush=True))
    except LabError as error:
        print(f"labassist: {error}", file=sys.stderr)
        return error.status
    order.input("model", model.manifest, model.facts())
    print(f"labassist: {args.name} is here at revision {model.revision}: --set model.name={args.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
