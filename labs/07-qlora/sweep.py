"""The same small training over and over, one thing changed: ranks, target modules or the layers that are trained when.

    labassist run 07-qlora/sweep                            ranks 4, 8, 16, 32
    labassist run 07-qlora/sweep --set over=targets         q,v / q,k,v,o / every linear layer
    labassist run 07-qlora/sweep --set over=unfreezing      all layers at once, or from the top in three stages

Each setting is trained with each seed. A step of this run is a seed, a series is a setting, and at the end a table says
which differences are larger than what seeds and samples make of themselves.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import train

from labassist import record
from labassist.data import rows
from labassist.finetune import load, models, sweep
from labassist.record import trainer_mends

RANKS = (4, 8, 16, 32)
TARGETS = {"q-v": "q_proj,v_proj", "q-k-v-o": "q_proj,k_proj,v_proj,o_proj", "all-linear": "all-linear"}
STAGES = {"at-once": 0, "staged": 3, "top-third": -3}
REFERENCE = {"rank": "r=16", "targets": "all-linear", "unfreezing": "at-once"}


def settings(over: str, lora: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name -> LoRA numbers of each setting. With the rank goes alpha: the update's scale stays as it is."""
    if over == "rank":
        scale = lora["alpha"] / lora["r"]
        return {f"r={r}": {**lora, "r": r, "alpha": scale * r, "stages": 0} for r in RANKS}
    if over == "targets":
        return {name: {**lora, "targets": targets, "stages": 0} for name, targets in TARGETS.items()}
    return {name: {**lora, "stages": stages} for name, stages in STAGES.items()}


def unfreezing(model: Any, stages: int, steps: int) -> Any:
    """Return a callback that trains the adapters of the top layers first, and each stage the next ones below too.

    3: thirds of the layers in thirds of the steps. -3: the top third alone, all the time. The optimizer holds every
    adapter from the beginning; one without a gradient is passed over.
    """
    from transformers import TrainerCallback

    count = model.config.num_hidden_layers
    layers = [
        (int(name.partition(".layers.")[2].partition(".")[0]), weight)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    ]

    class Unfreeze(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            stage = 1 + (state.global_step * stages // steps if stages > 0 else 0)
            lowest = count - max(1, count * stage // abs(stages))
            for layer, weight in layers:
                weight.requires_grad_(layer >= lowest)

    return Unfreeze()


def trained(base: Any, tokenizer: Any, data: tuple[Any, Any], c: dict[str, Any], lora: Any, seed: int) -> Any:
    """Return the trainer of one setting and seed, trained."""
    import torch
    from transformers import set_seed
    from trl import SFTConfig, SFTTrainer

    set_seed(seed)
    o = c["optim"]
    arguments = SFTConfig(
        output_dir=str(Path(c["folder"]) / "trainer"),
        max_length=c["length"],
        per_device_train_batch_size=c["batch"],
        per_device_eval_batch_size=c["batch"],
        max_steps=c["updates"],
        learning_rate=o["lr"],
        lr_scheduler_type=o["schedule"],
        warmup_steps=o["warmup"],
        optim=o["name"],
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=copy.deepcopy(base),  # in four bits a copy costs less than a load
        args=arguments,
        train_dataset=data[0],
        eval_dataset=data[1],
        processing_class=tokenizer,
        peft_config=train.adapters(lora),
    )
    if lora["stages"]:
        trainer.add_callback(unfreezing(trainer.model, lora["stages"], c["updates"]))
    trainer.train()
    return trainer


def each_loss(trainer: Any) -> list[float]:
    """Return the mean loss over the answer's tokens of each held-out sample, in nats."""
    import torch

    model, found = trainer.model.eval(), []
    for batch in trainer.get_eval_dataloader():
        labels = batch.pop("labels").to(model.device)[:, 1:]
        given = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16):
            logits = model(**given).logits[:, :-1]
        each = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
        found += (each.sum(1) / (labels != -100).sum(1)).tolist()
    return found


class Done:
    """The losses so far, a matrix a setting: what a checkpoint of a sweep holds."""

    def __init__(self, names: list[str]) -> None:
        self.losses: dict[str, list[list[float]]] = {name: [] for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"losses": self.losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.losses = state["losses"]


def main() -> None:
    order = record.read_order("labs/07-qlora/sweep.toml")
    c, m = order.config, order.config["model"]
    files = {name: order.input(name, c["data"][name]) for name in ("train", "heldout")}
    some, held = (rows.read(path) for path in files.values())
    held = held[: c["data"]["heldout_rows"] or None]
    model = models.of_order(order, m["name"], m["revision"], trust_remote_code=m["trust_remote_code"])
    load.quiet()
    record.determinism.apply(order.mode, order.seed, order.threads)
    tokenizer = load.tokenizer(model, chat=some[0].conversational)
    base = load.model(model, train.quantised(m["method"]), trust_remote_code=m["trust_remote_code"])
    # An evaluation would lay each copy's weights out anew for a faster kernel, which costs more than it saves here.
    trainer_mends.keep_differentiable(base)
    data = train.as_dataset(some), train.as_dataset(held)
    c["folder"] = str(order.folder or "outputs/07-qlora-sweep")

    wanted, reference = settings(c["over"], c["lora"]), REFERENCE[c["over"]]
    done = Done(list(wanted))
    recorder = record.start(order=order, total_steps=c["seeds"])
    states = {"model": done, "optimizer": None, "scheduler": None, "scaler": None, "data_position": None}
    step = recorder.restore(states)
    while step < c["seeds"] and not recorder.stop_requested:
        seed = order.seed + step
        step += 1
        for name, lora in wanted.items():
            trainer = trained(base, tokenizer, data, c, lora, seed)
            data = trainer.train_dataset, trainer.eval_dataset  # tokens by now: made once for all
            done.losses[name].append(each_loss(trainer))
            mean = sum(done.losses[name][-1]) / len(held)
            count = sum(
                weight.numel() for part, weight in trainer.model.named_parameters() if "lora_" in part
            )
            print(
                f"seed {seed} ({step} of {c['seeds']})  {name:<12} {count:>9,} trained  held-out {mean:.4f}"
            )
            recorder.record(step, **{name: mean})
        if step == c["seeds"]:
            made = sweep.rows(done.losses, reference)
            print(sweep.text(made, done.losses, reference), flush=True)
            for one in made:
                values = {"low": one.low, "high": one.high}
                if one.name != reference:
                    values |= {"apart_low": one.apart_low, "apart_high": one.apart_high}
                recorder.record(step, **{f"{one.name}.{what}": value for what, value in values.items()})
        recorder.save(step, states)
    recorder.finish(step, "done" if step == c["seeds"] else "stop")


if __name__ == "__main__":
    main()
