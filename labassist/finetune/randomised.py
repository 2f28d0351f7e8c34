"""Random weights of a real architecture: what a card holds and how fast it is, without the model's download.

`random:qwen2.5-7b` has every shape of the published model, weights drawn from a fixed seed, and a tokenizer of
256 bytes. It learns a file by heart at best: it is for measuring.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from labassist.finetune import model_folder
from labassist.finetune.model_folder import RANDOM, Model, Say
from labassist.planner import arch

SEED = 0
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
SPECIAL = ("<pad>", "<s>", "</s>")


def prepare(name: str, store: Path, say: Say) -> Model:
    """Return random weights of the architecture that `name` means, made the first time. Raises InputError.

    The architecture is one of the planner's by name, a config.json, or a folder with one.
    """
    architecture = arch.load(name.removeprefix(RANDOM))
    facts = {
        "source": f"random weights (seed {SEED}) of {architecture.name}",
        "licence": "none: they are noise",
    }
    folder = store / f"random-{architecture.name}-{architecture.parameters}"
    if not folder.is_dir():
        model_folder.need_disk(store, 2 * architecture.parameters, f"random weights of {architecture.name}")
        with model_folder.making(folder) as made:
            if made != folder:
                say(f"making random weights of {architecture.name} ({architecture.parameters / 1e9:.2f}e9)")
                config = json.dumps(architecture.config | {"model_type": architecture.model_type})
                model_folder.apart("labassist.finetune.randomised", config, str(made), say=say)
                model_folder.described(name, made, made, facts)
    return model_folder.described(name, folder, folder, facts)


def make(fields: dict[str, object], folder: Path) -> None:
    """Write the weights, on a GPU where there is one, and the tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = str(fields.pop("model_type"))
    config = AutoConfig.for_model(kind, **fields)
    config.dtype = torch.bfloat16
    config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 1, 2
    torch.manual_seed(SEED)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder, max_shard_size="4GB")
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> Any:
    """Return a tokenizer whose tokens are the 256 bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {token: at for at, token in enumerate([*SPECIAL, *alphabet])}
    made = Tokenizer(models.BPE(tokens, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    pad, begin, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=pad, bos_token=begin, eos_token=end)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


if __name__ == "__main__":
    make(json.loads(sys.argv[1]), Path(sys.argv[2]))
