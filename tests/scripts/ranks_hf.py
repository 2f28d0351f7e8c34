"""A stock trainer on several ranks, whose machine damages the rank files of its checkpoints: `FAULT OUT`."""

import os
import shutil
import sys
from pathlib import Path

import ckpt_real
import torch
from torch import distributed
from transformers import TrainerCallback

FAULT, OUT = sys.argv[1], Path(sys.argv[2])


class Damage(TrainerCallback):
    """Loses, swaps or overwrites the files of the ranks as soon as all of them are written."""

    def on_save(self, args, state, control, **more):
        distributed.barrier()
        first, second = (OUT / f"checkpoint-{state.global_step}" / f"rng_state_{at}.pth" for at in (0, 1))
        if state.is_world_process_zero and FAULT == "missing":
            second.unlink()
        if state.is_world_process_zero and FAULT == "copied":
            shutil.copy(first, second)
        if state.is_world_process_zero and FAULT == "swapped":
            aside = first.with_name("aside")
            first.rename(aside)
            second.rename(first)
            aside.rename(second)
        distributed.barrier()


trainer = ckpt_real.trainer(OUT, [Damage()], per_device_train_batch_size=1)
torch.manual_seed(
    50 + int(os.environ["RANK"])
)  # the Trainer seeds all ranks alike: swapped files would do no harm
trainer.train()
