"""Small checkpoints made by the real libraries, on the CPU, in a second or two each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SAMPLES, LENGTH, WORDS = 24, 16, 64


def dataset() -> Any:
    import torch
    from datasets import Dataset

    ids = torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
    return Dataset.from_dict({"input_ids": ids, "labels": ids})


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{at}": at for at in range(3, WORDS)}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def model(seed: int = 0) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, attention_dropout=0.1, **sizes))


def arguments(out: Path, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": str(out),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "save_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1e-2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 1,
        **more,
    }


def trainer(out: Path, callbacks: Any = (), **more: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    data = dataset()
    return Trainer(
        model=model(),
        args=TrainingArguments(**arguments(out, **more)),
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def hf(out: Path, callbacks: Any = (), **more: Any) -> Path:
    """Train with the stock Trainer and return the checkpoint in the middle of the first epoch."""
    trainer(out, callbacks, **more).train()
    return out / "checkpoint-4"


def quantised() -> Any:
    """Return the tiny model with its linear layers in nf4, as from_pretrained would make it."""
    import tempfile

    import torch
    from transformers import BitsAndBytesConfig

    with tempfile.TemporaryDirectory() as folder:
        model().save_pretrained(folder)
        from transformers import AutoModelForCausalLM

        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        return AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=config, device_map={"": "cpu"}, dtype=torch.bfloat16
        )


def trl_trainer(out: Path, *, nf4: bool = False, dropout: float = 0.1, **more: Any) -> Any:
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    given = arguments(out, max_length=LENGTH, dataset_kwargs={"skip_prepare_dataset": True}, **more)
    given.setdefault("bf16", nf4)
    lora = LoraConfig(
        r=2, lora_alpha=4, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return SFTTrainer(
        model=quantised() if nf4 else model(),
        args=SFTConfig(**given),
        train_dataset=dataset().remove_columns("labels"),
        processing_class=tokenizer(),
        peft_config=lora,
    )


def trl(out: Path, *, nf4: bool = False, **more: Any) -> Path:
    """Train a LoRA with TRL's SFTTrainer, on a plain or an nf4 base."""
    trl_trainer(out, nf4=nf4, **more).train()
    return out / "checkpoint-4"


def accelerate(out: Path, *, stateful: bool = False) -> Path:
    """Train three steps with Accelerate and save its state."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration
    from torch.utils.data import DataLoader

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful)
    )
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    data = DataLoader(
        torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), batch_size=4, shuffle=True
    )
    net, optimizer, data, schedule = accelerator.prepare(net, optimizer, data, schedule)
    for at, batch in enumerate(data):
        if at == 3:
            break
        accelerator.backward(net(batch).pow(2).mean())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.save_state(str(out))
    return out


def lightning(out: Path, *, every: int = 3, stateful: bool = False) -> Path:
    """Train three epochs of four updates with Lightning, and return the folder of its checkpoints."""
    _lightning(out, every, stateful, None)
    return out


def lightning_epochs(checkpoint: Path, out: Path) -> set[int]:
    """Resume from a checkpoint of Lightning and return the epochs that it trains."""
    return _lightning(out, 100, True, checkpoint)


def _lightning(out: Path, every: int, stateful: bool, checkpoint: Path | None) -> set[int]:
    import lightning as pl
    import torch
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    epochs = set()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            epochs.add(self.current_epoch)
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    keep = pl.pytorch.callbacks.ModelCheckpoint(out, every_n_train_steps=every, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        accumulate_grad_batches=2,
        callbacks=[keep],
        default_root_dir=out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    kind = StatefulDataLoader if stateful else DataLoader
    trainer.fit(Module(), kind(torch.randn(16, 4), batch_size=2), ckpt_path=checkpoint)
    return epochs
