"""A stock TRL script: QLoRA (nf4) of a small random model with adamw_8bit, nothing from a hub."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

LINE = os.environ.get("LINE", "callback")


class Kill(TrainerCallback):
    """A machine that goes away in the middle of a run."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == int(os.environ.get("KILL_AT", "0")):
            for thread in threading.enumerate():
                if thread.name.startswith("seal-"):  # which checkpoint is whole by now is no matter of luck
                    thread.join()
            os.kill(os.getpid(), signal.SIGKILL)


def base():
    """Return a small model in four bits; its weights are made once and lie beside the script."""
    folder = Path("base-model")
    if not folder.exists():
        config = Qwen2Config(
            vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings="tied" in sys.argv,
            dtype=torch.bfloat16,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    four = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_use_double_quant=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=four, dtype=torch.bfloat16)


def main():
    if "seeded" in sys.argv:
        set_seed(3)
    words = models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(words), pad_token="<pad>", eos_token="<eos>"
    )
    draw = torch.Generator().manual_seed(5)
    rows = torch.randint(3, 128, (48, 24), generator=draw).tolist()
    arguments = SFTConfig(
        output_dir="qlora", per_device_train_batch_size=2, max_steps=16, max_length=24, save_steps=5,
        learning_rate=5e-3, logging_steps=20, report_to="none", optim=os.environ.get("OPTIM", "adamw_8bit"),
        use_cpu=True, bf16=True, dataset_kwargs={"skip_prepare_dataset": True}, disable_tqdm=True,
    )  # fmt: skip
    adapter = LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0 if "still" in sys.argv else 0.05, target_modules="all-linear", task_type="CAUSAL_LM",
        use_dora="dora" in sys.argv, modules_to_save=["lm_head"] if "head" in sys.argv else None,
    )  # fmt: skip
    callbacks = [Kill()]
    if LINE == "callback":
        from labassist import record

        callbacks.insert(0, record.LedgerCallback())
    model = base()
    if "kbit" in sys.argv:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model)
    trainer = SFTTrainer(
        model=model, args=arguments, processing_class=tokenizer, callbacks=callbacks, peft_config=adapter,
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
    )  # fmt: skip
    if LINE == "attach":
        from labassist import record

        record.attach(trainer)
    losses = []
    step = trainer.training_step

    def told(*args, **kwargs):
        loss = step(*args, **kwargs)
        losses.append(float(loss).hex())
        return loss

    trainer.training_step = told
    trainer.train(resume_from_checkpoint=os.environ.get("RESUME"))
    if os.environ.get("LOSSES"):
        Path(os.environ["LOSSES"]).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
