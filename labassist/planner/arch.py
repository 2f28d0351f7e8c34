"""Architectures: read from the data file, a config.json or a model folder, and counted.

A dense decoder is described by the fields of its own config.json. What this does not cover (mixtures of experts,
vision or audio parts, encoders, state-space layers) is refused by name rather than guessed at.
"""

from __future__ import annotations

import functools
import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labassist.errors import InputError, did_you_mean, harmless

DATA = Path(__file__).parent / "data"
MAX_LAYERS, MAX_WIDTH, MAX_VOCABULARY = 1024, 1 << 18, 1 << 22
"""Beyond these a config is a mistake, not a model."""

EMBEDDED = "smollm2-135m"
"""The architecture of the model that comes with the course."""

DENSE = {
    "llama": "rms",
    "mistral": "rms",
    "qwen2": "rms",
    "qwen3": "rms",
    "gemma": "rms",
    "gemma2": "rms",
    "gemma3_text": "rms",
    "phi3": "rms",
    "gpt2": "layer",
}
"""Covered model types and their norm."""

EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
)
MODALITIES = ("vision_config", "audio_config", "vision_tower", "mm_projector_type")
GPT2_FIELDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
}
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True)
class Matrix:
    """One linear layer of a block: its name as peft targets it, and its sizes."""

    name: str
    inputs: int
    outputs: int
    part: str
    """attention or mlp."""

    @property
    def count(self) -> int:
        """Numbers in the weight."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Architecture:
    """A dense decoder-only model. Sizes are numbers of elements."""

    name: str
    model_type: str
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qkv_bias: bool
    """Biases on the query, key and value projections."""
    positions: int = 0
    """Learned position embeddings (GPT-2)."""
    config: dict[str, Any] = field(default_factory=dict, compare=False)
    """The fields as transformers takes them, for the dry run."""
    published: int = 0
    """Parameters as published, 0 where they are not."""
    source: str = ""

    @property
    def q(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.head_dim

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies two projections (SwiGLU, GeGLU)."""
        return self.model_type != "gpt2"

    @property
    def norms(self) -> int:
        """Norms over the hidden state in a block."""
        return 4 if self.model_type in ("gemma2", "gemma3_text") else 2

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised a head."""
        return self.model_type in ("qwen3", "gemma3_text")

    @functools.cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """The linear layers of one block."""
        h, f = self.hidden, self.ffn
        if self.model_type == "gpt2":
            return (
                Matrix("c_attn", h, 3 * h, "attention"),
                Matrix("attn.c_proj", h, h, "attention"),
                Matrix("c_fc", h, f, "mlp"),
                Matrix("mlp.c_proj", f, h, "mlp"),
            )
        if self.model_type == "phi3":
            return (
                Matrix("qkv_proj", h, self.q + 2 * self.kv, "attention"),
                Matrix("o_proj", self.q, h, "attention"),
                Matrix("gate_up_proj", h, 2 * f, "mlp"),
                Matrix("down_proj", f, h, "mlp"),
            )
        return (
            Matrix("q_proj", h, self.q, "attention"),
            Matrix("k_proj", h, self.kv, "attention"),
            Matrix("v_proj", h, self.kv, "attention"),
            Matrix("o_proj", self.q, h, "attention"),
            Matrix("gate_proj", h, f, "mlp"),
            Matrix("up_proj", h, f, "mlp"),
            Matrix("down_proj", f, h, "mlp"),
        )

    @property
    def linear(self) -> int:
        """Weights in the blocks' linear layers: what nf4 quantises."""
        return self.layers * sum(matrix.count for matrix in self.matrices)

    @property
    def head(self) -> int:
        """Weights of the output head (shared with the embedding where they are tied)."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        block = sum(matrix.count for matrix in self.matrices)
        if self.model_type == "gpt2":
            block += sum(matrix.outputs for matrix in self.matrices) + 4 * self.hidden
            extra = 2 * self.hidden + self.positions * self.hidden
        else:
            block += self.norms * self.hidden
            block += (self.q + 2 * self.kv) if self.qkv_bias else 0
            block += 2 * self.head_dim if self.qk_norm else 0
            extra = self.hidden
        return self.layers * block + self.head * (1 if self.tied else 2) + extra

    def adapters(self, rank: int, targets: tuple[str, ...]) -> list[tuple[Matrix, int]]:
        """Return each targeted matrix and the numbers in its LoRA pair.

        `all-linear` names every matrix of the blocks; an empty tuple those of the attention. Raises InputError
        on a name that the model has not.
        """
        chosen = self.targeted(targets)
        return [(matrix, rank * (matrix.inputs + matrix.outputs)) for matrix in chosen]

    def targeted(self, targets: tuple[str, ...]) -> tuple[Matrix, ...]:
        """Return the matrices that LoRA targets name; see `adapters`."""
        if targets == ("all-linear",):
            return self.matrices
        if not targets:
            return tuple(matrix for matrix in self.matrices if matrix.part == "attention")
        names = {matrix.name: matrix for matrix in self.matrices}
        chosen: dict[str, Matrix] = {}
        for target in targets:
            found = [one for name, one in names.items() if target == name or name.endswith("." + target)]
            if not found:
                raise InputError(
                    f"{self.name} has no layer {target!r}{did_you_mean(target, names)}",
                    where="--lora-targets",
                    mend=f"its linear layers are {', '.join(names)}",
                )
            chosen.update((one.name, one) for one in found)
        return tuple(chosen.values())


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((DATA / "architectures.toml").read_text(encoding="utf-8"))


def names() -> tuple[str, ...]:
    """Return the names of the published architectures."""
    return tuple(_table())


def load(model: str) -> Architecture:
    """Return the architecture that a name, a hub id, a config.json or a model folder means, without a network.

    `embedded` and `random:NAME` mean what they mean to a job. Raises InputError naming what is missing, absurd, unknown
    (with the nearest names) or not covered.
    """
    model = EMBEDDED if model == "embedded" else model.removeprefix("random:")
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError("this folder has no config.json", where=model, mend="give a model's folder")
    if path.suffix == ".json" or path.is_file():
        return _from_file(path, model)
    table = _table()
    key = model.lower()
    by_hub = {row["hub"].lower(): name for name, row in table.items()}
    key = by_hub.get(key, key)
    for ending in ("", "-instruct", "-it", "-pt", "-base", "-hf", "-chat", "-chat-hf"):
        short = key.rsplit("/", 1)[-1].removesuffix(ending)
        if short in table:
            row = table[short]
            return _build(
                short,
                {k: v for k, v in row.items() if k not in ("hub", "parameters")},
                where=model,
                published=row.get("parameters", 0),
                source=f"config.json of {row['hub']}",
            )
    cached = _in_cache(model)
    if cached is not None:
        return _from_file(cached, model)
    raise InputError(
        f"unknown model {model!r}{did_you_mean(key.rsplit('/', 1)[-1], table)}",
        where="--model",
        mend="give a published name (`labassist plan memory --models` lists them), a config.json, a folder, or a "
        "hub id that was downloaded",
    )


def small(name: str, hidden: int, layers: int, heads: int, vocabulary: int, positions: int) -> Architecture:
    """Return a small decoder like GPT-2, with learned positions and tied embeddings. Raises InputError on absurd sizes."""
    sizes = {
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": vocabulary,
        "n_positions": positions,
    }
    return _build(name, {"model_type": "gpt2", **sizes}, where=name)


def _in_cache(hub_id: str) -> Path | None:
    """Return the config.json of a hub repository that was downloaded before; nothing is fetched."""
    if hub_id.count("/") != 1:
        return None
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    found = cache.glob(f"models--{hub_id.replace('/', '--')}/snapshots/*/config.json")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _from_file(path: Path, model: str) -> Architecture:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", where=model, mend="give a model's config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(
            f"is no JSON that can be read: {error}", where=model, mend="give a model's config.json"
        ) from error
    if not isinstance(config, dict):
        raise InputError(
            "is no config.json: it holds no object", where=model, mend="give a model's config.json"
        )
    name = str(config.get("_name_or_path") or path.resolve().parent.name)
    # A config is a stranger's file, and its name goes to a terminal.
    name = harmless(" ".join(name.split()))
    return _build(name, config, where=model, source=str(path))


def _build(
    name: str, config: dict[str, Any], *, where: str, published: int = 0, source: str = ""
) -> Architecture:
    """Check a config and make an Architecture of it."""
    kind = _covered(config, where)
    fields = _sizes(config, kind, where)
    heads = fields["num_attention_heads"]
    kv_heads = fields.get("num_key_value_heads") or heads
    head_dim = fields.get("head_dim") or fields["hidden_size"] // heads
    if heads % kv_heads:
        raise InputError(
            f"{heads} attention heads cannot share {kv_heads} key-value heads",
            where=where,
            mend="mend the config",
        )
    if not head_dim:
        raise InputError(f"{heads} heads are more than the hidden size", where=where, mend="mend the config")
    tied = fields.get("tie_word_embeddings")
    return Architecture(
        name=name,
        model_type=kind,
        hidden=fields["hidden_size"],
        ffn=fields["intermediate_size"],
        layers=fields["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=fields["vocab_size"],
        tied=(kind in ("gemma", "gemma2", "gemma3_text", "gpt2")) if tied is None else bool(tied),
        qkv_bias=kind == "qwen2" or bool(fields.get("attention_bias")),
        positions=int(fields.get("max_position_embeddings") or 1024) if kind == "gpt2" else 0,
        config={key: value for key, value in config.items() if _plain(key, value)},
        published=published,
        source=source,
    )


def _covered(config: dict[str, Any], where: str) -> str:
    """Return the model_type of a dense decoder. Raises InputError for any other model."""
    kind = config.get("model_type")
    for key in EXPERTS:
        if config.get(key):
            raise InputError(
                f"is a mixture of experts ({key} = {config[key]}), which the planner does not cover",
                where=where,
                mend="dense decoders only: weights are all its parameters x 2 bytes, the rest must be measured",
            )
    for key in MODALITIES:
        if config.get(key):
            raise InputError(
                f"has a {key.removesuffix('_config')} part, which the planner does not cover",
                where=where,
                mend="give its text part's config alone (text_config as a config.json of its own)",
            )
    if not isinstance(kind, str):
        raise InputError(
            "has no model_type", where=where, mend="give the config.json of a transformers model"
        )
    if kind not in DENSE:
        raise InputError(
            f"model_type {kind!r} is not covered{did_you_mean(kind, DENSE)}",
            where=where,
            mend=f"covered are the dense decoders {', '.join(DENSE)}",
        )
    return kind


def _sizes(config: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
    """Return the config under the names of the other decoders. Raises InputError where a size lacks or is none."""
    fields = dict(config)
    if kind == "gpt2":
        for old, new in GPT2_FIELDS.items():
            if fields.get(old) is not None:
                fields[new] = fields[old]
        if fields.get("intermediate_size") is None and _is_size(fields.get("hidden_size")):
            fields["intermediate_size"] = 4 * fields["hidden_size"]
    missing = [key for key in NEEDED if fields.get(key) is None]
    if missing:
        raise InputError(
            f"lacks {', '.join(missing)}", where=where, mend="give the model's whole config.json"
        )
    limits = dict.fromkeys(NEEDED, MAX_WIDTH) | {
        "num_hidden_layers": MAX_LAYERS,
        "vocab_size": MAX_VOCABULARY,
    }
    limits |= {"num_key_value_heads": MAX_WIDTH, "head_dim": MAX_WIDTH}
    for key, limit in limits.items():
        value = fields.get(key)
        if value is not None and not (_is_size(value) and value <= limit):
            raise InputError(
                f"{key} = {value!r} is no size from 1 to {limit}", where=where, mend="mend the config"
            )
    return fields


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _plain(key: str, value: Any) -> bool:
    """Say whether the dry run needs a field: sizes and switches, no names of files, code or quantisation."""
    return key in ("model_type", "hidden_act", "hidden_activation", "activation_function") or (
        isinstance(value, (int, float)) and not key.startswith("_")
    )
