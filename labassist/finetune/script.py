"""A fine-tuning run as a plain TRL script to take away: its numbers inlined, labassist only in one line.

The script trains what the job trains, in the same order: on the same machine its curve is the run's, bit for bit.
"""

from __future__ import annotations

import pprint
from pathlib import Path
from typing import Any

from labassist.data.rows import PROSE
from labassist.errors import InputError
from labassist.finetune import model_folder
from labassist.finetune.model_folder import EMBEDDED, RANDOM

NEEDED = ("model.name", "model.method", "lora.r", "optim.name", "layout", "data.train", "data.heldout")

LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {},
    "padding-free": {"padding_free": True, "max_length": None},
    "packed": {"packing": True, "packing_strategy": "bfd"},
    "stream": {"packing": True, "packing_strategy": "wrapped"},
}

HEAD = '''\
"""{method} of {model} as run {run} did it. Exported by labassist; a plain script from here on.

    pip install torch transformers peft trl datasets accelerate{bits}
    python {name}                           trains
    labassist run -- python {name}          trains in exact mode: recorded, replayed, resumed bit for bit

Take the two lines with LedgerCallback out, and it needs no labassist. {licence}
"""

{imports}
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer{four_import}, set_seed
from trl import SFTConfig, SFTTrainer

from labassist.record import LedgerCallback

MODEL = {folder!r}
'''

ROWS = '''

def samples(path):
    """Return the lines of a JSONL file; of each the answer alone is trained on."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return Dataset.from_list([sample(row) for row in rows])


def sample(row):
    if "messages" in row:
        return {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]}
    if "instruction" in row:
        asked = "\\n\\n".join(filter(None, (row["instruction"], row.get("input", ""))))
        return {
            "prompt": [{"role": "user", "content": asked}],
            "completion": [{"role": "assistant", "content": row["output"]}],
        }
    return row
'''

PARAGRAPHS = '''

def samples(path):
    """Return the paragraphs of a text; every token is trained on."""
    with open(path, encoding="utf-8") as file:
        parts = file.read().split("\\n\\n")
    return Dataset.from_list([{"text": part.strip("\\n")} for part in parts if part.strip()])
'''

FOUR = """\
    four_bit = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
"""

MAIN = """

def main():
    gpu = torch.cuda.is_available()
    set_seed({seed})
    tokenizer = AutoTokenizer.from_pretrained(MODEL{revision})
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
{four}    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
{loading}    )
    adapters = LoraConfig(
{adapters}    )
    arguments = SFTConfig(
{arguments}    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=samples({train!r}),
        eval_dataset=samples({heldout!r}){rows},
        processing_class=tokenizer,
        peft_config=adapters,
        callbacks=[LedgerCallback()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
"""


def script(document: dict[str, Any], root: Path, name: str = "train.py") -> str:
    """Return the script of a run of lab 07's jobs, `document` being its record and `root` its workspace.

    Raises InputError for a run of another job, and for a layout that a plain script cannot have.
    """
    c = document.get("config", {})
    lacking = [key for key in NEEDED if key not in c]
    if lacking:
        raise InputError(
            f"this run's configuration has no {lacking[0]}: only the fine-tuning jobs can be made a script",
            where=f"run {document['id']}",
            mend="give a run of 07-qlora/sft or 07-qlora/cpt",
        )
    four = c["model.method"] == "qlora"
    folder, revision, licence = _model(document, root)
    prose = Path(c["data.train"]).suffix in PROSE
    loading = {
        "quantization_config": "four_bit" if four else None,
        "dtype": "torch.bfloat16",
        "device_map": '{"": 0} if gpu else None',
        "attn_implementation": repr("sdpa"),
        "revision": repr(revision) if revision else None,
        "trust_remote_code": "True" if c.get("model.trust_remote_code") else None,
    }
    held = c.get("data.heldout_rows", 0)
    return "".join(
        [
            HEAD.format(
                method="QLoRA" if four else "LoRA",
                model=c["model.name"],
                run=document["id"],
                bits=" bitsandbytes" if four else "",
                name=name,
                licence=f"The model's licence: {licence}." if licence else "Mind the model's licence.",
                imports=("" if prose else "import json\n\n") + "import torch\nfrom datasets import Dataset",
                four_import=", BitsAndBytesConfig" if four else "",
                folder=folder,
            ),
            PARAGRAPHS if prose else ROWS,
            MAIN.format(
                seed=document["seed"],
                revision=f", revision={revision!r}" if revision else "",
                four=FOUR if four else "",
                loading=_lines({key: value for key, value in loading.items() if value is not None}),
                adapters=_lines(_plain(_adapters(c))),
                arguments=_lines(_plain(_arguments(document, c)) | {"use_cpu": "not gpu"}),
                train=c["data.train"],
                heldout=c["data.heldout"],
                rows=f".select(range({held}))" if held else "",
            ),
        ]
    )


def _model(document: dict[str, Any], root: Path) -> tuple[str, str, str]:
    """Return where the script loads the model from: a hub's id and commit, or a folder; and its licence."""
    name = document["config"]["model.name"]
    [given] = [one for one in document.get("inputs", []) if one["name"] == "model"] or [{}]
    facts = given.get("split", {})
    if name != EMBEDDED and not name.startswith(RANDOM) and model_folder.is_hub_id(name, root):
        return name, str(facts.get("revision", "")), str(facts.get("licence", ""))
    if name == EMBEDDED or name.startswith(RANDOM):
        name = str(Path(given.get("path", name)).parent)
    return name, "", str(facts.get("licence", ""))


def _adapters(c: dict[str, Any]) -> dict[str, Any]:
    targets = c["lora.targets"]
    return {
        "r": c["lora.r"],
        "lora_alpha": c["lora.alpha"],
        "lora_dropout": c["lora.dropout"],
        "target_modules": targets if targets == "all-linear" else targets.split(","),
        "task_type": "CAUSAL_LM",
    }


def _arguments(document: dict[str, Any], c: dict[str, Any]) -> dict[str, Any]:
    """Return TRL's arguments as the job sets them (`arguments` in labs/07-qlora/train.py)."""
    return {
        "output_dir": f"outputs/{document['id']}",
        "max_length": c["length"],
        "per_device_train_batch_size": c["batch"],
        "per_device_eval_batch_size": c["batch"] if c["checkpointing"] else 4 * c["batch"],
        "gradient_accumulation_steps": c["accumulate"],
        "max_steps": c["steps"],
        "learning_rate": c["optim.lr"],
        "lr_scheduler_type": c["optim.schedule"],
        "warmup_steps": c["optim.warmup"],
        "weight_decay": c["optim.weight_decay"],
        "max_grad_norm": c["optim.clip"],
        "optim": c["optim.name"],
        "bf16": True,
        "gradient_checkpointing": c["checkpointing"],
        "seed": document["seed"],
        "logging_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": c["every.eval"],
        "save_strategy": "steps",
        "save_steps": c["every.checkpoint"],
        "save_total_limit": c["keep"],
        "report_to": "none",
        **LAYOUTS[c["layout"]],
    }


def _plain(values: dict[str, Any]) -> dict[str, str]:
    return {key: pprint.pformat(value, width=90).replace("'", '"') for key, value in values.items()}


def _lines(values: dict[str, str]) -> str:
    return "".join(f"        {key}={value},\n" for key, value in values.items())
