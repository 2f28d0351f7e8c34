"""What a newcomer's script does with the one line: `python newcomer.py none|never|late|second|measured|plain`."""

import os
import sys
import time

import torch
from transformers import Trainer, TrainingArguments, set_seed

from labassist import record


class Line(torch.nn.Module):
    """Fit a line, slowly where PAUSE says so."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        """Return the loss as the Trainer wants it."""
        time.sleep(float(os.environ.get("PAUSE", "0")))
        out = self.weight(x).squeeze(-1)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


def make():
    """Return a trainer of a new model."""
    rows = [{"x": torch.full((4,), float(at)) / 64, "labels": float(at) / 64} for at in range(64)]
    arguments = TrainingArguments(
        output_dir=os.environ.get("OUTPUT", "out"), per_device_train_batch_size=4, use_cpu=True,
        max_steps=int(os.environ.get("STEPS", "3")), save_steps=2, report_to="none", disable_tqdm=True,
        weight_decay=float(os.environ.get("DECAY", "0")),
    )  # fmt: skip
    return Trainer(Line(), arguments, train_dataset=rows, eval_dataset=rows)


set_seed(3)
what = sys.argv[1]
if what == "none":
    record.attach(None)
trainer = make()
if what in ("never", "second", "measured", "plain"):
    record.attach(trainer)
if what == "second":
    record.attach(make())
if what != "never":
    trainer.train()
if what == "measured":
    if "CRASH" in os.environ:
        os._exit(9)
    trainer.evaluate()
if what == "late":
    record.attach(trainer)
print("the script goes on")
