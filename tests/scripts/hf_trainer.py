"""A stock script: a small model from a configuration, dropout, accumulation, random augmentation."""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS = int(os.environ.get("STEPS", "30"))
LINE = os.environ.get("LINE", "attach")


class Kill(TrainerCallback):
    """A machine that goes away in the middle of a run."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == int(os.environ.get("KILL_AT", "0")):
            for thread in threading.enumerate():
                if thread.name.startswith("seal-"):  # which checkpoint is whole by now is no matter of luck
                    thread.join()
            os.kill(os.getpid(), signal.SIGKILL)


def collate(rows):
    """Batch the rows, with a few tokens drawn anew each time: augmentation from three generators."""
    ids = torch.tensor(np.array([row["input_ids"] for row in rows]))
    noise = torch.rand(ids.shape) < 0.1
    ids = torch.where(noise, torch.randint(3, 64, ids.shape), ids)
    ids[0, random.randrange(ids.shape[1])] = int(np.random.randint(3, 64))
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def main():
    if "exact" in sys.argv:
        from labassist import record

        record.exact(seed=11, threads=1)
    set_seed(11)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attention_dropout=0.1,
        tie_word_embeddings="tied" in sys.argv,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    draw = torch.Generator().manual_seed(5)
    rows = [{"input_ids": torch.randint(3, 64, (24,), generator=draw).tolist()} for _ in range(4 * 26)]
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUTPUT", "out"), per_device_train_batch_size=4, max_steps=STEPS,
        gradient_accumulation_steps=2, logging_steps=20, save_steps=5, learning_rate=2e-3, report_to="none",
        use_cpu=True, disable_tqdm=True, warmup_steps=4, dataloader_num_workers=int("workers" in sys.argv),
        save_total_limit=2 if "limit" in sys.argv else None, save_only_model="bare" in sys.argv,
        weight_decay=float(os.environ.get("DECAY", "0")),
    )  # fmt: skip
    extra = [Kill()]
    if LINE == "callback":
        from labassist import record

        extra = [record.LedgerCallback(), *extra]
    trainer = Trainer(model, arguments, data_collator=collate, train_dataset=rows, callbacks=extra)
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
    if "fail" in sys.argv:
        sys.exit("the script failed after training")


if __name__ == "__main__":
    main()
