"""A character-level GPT and the whole loop that trains it, to be read from top to bottom.

    labassist run 01-first-loop/train                    recorded: can be stopped, resumed, replayed
    python labs/01-first-loop/train.py                   by hand, with the numbers of train.toml

The model reads `context` characters and says at each of them what comes next. Sizes in the comments:
B windows, T characters a window, C = d_model numbers a character, H heads, V characters in the alphabet.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from corpus import load
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from labassist import record
from labassist.errors import InputError

# ---------------------------------------------------------------------------- the model


class Attention(nn.Module):
    """Each character looks back at the earlier ones and takes a weighted mean of what they offer."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.rate = dropout
        self.query_key_value = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each character gathered from itself and those before it, (B, T, C)."""
        b, t, c = x.shape
        split = self.query_key_value(x).view(b, t, 3, self.heads, c // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, T, C/H)
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        gathered: Tensor = self.dropout(self.out(mixed.transpose(1, 2).reshape(b, t, c)))
        return gathered


class Block(nn.Module):
    """Attention moves information between characters, the two linear layers work on each one alone.

    Both read a normalised copy and add to the stream (pre-norm): gradients pass the sum unhindered.
    """

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model, bias=False)
        self.attention = Attention(d_model, heads, dropout)
        self.norm2 = nn.LayerNorm(d_model, bias=False)
        self.widen = nn.Linear(d_model, 4 * d_model, bias=False)
        self.out = nn.Linear(4 * d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream (B, T, C) after this block."""
        x = x + self.attention(self.norm1(x))
        x = x + self.dropout(self.out(F.gelu(self.widen(self.norm2(x)))))
        return x


class GPT(nn.Module):
    """Characters in, a score for each possible next character out."""

    def __init__(
        self, alphabet: int, context: int, d_model: int, layers: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        if d_model % heads:
            raise InputError(
                f"d_model {d_model} does not divide into {heads} heads",
                where="model",
                mend="choose model.d_model as a multiple of model.heads",
            )
        self.context = context
        self.character = nn.Embedding(alphabet, d_model)
        self.position = nn.Embedding(context, d_model)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(d_model, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        self.score = nn.Linear(d_model, alphabet, bias=False)
        self.score.weight = self.character.weight  # tied: one table says what a character is, both ways
        for name, weight in self.named_parameters():
            if weight.dim() >= 2:
                # Each block adds to the stream twice; smaller outputs keep its size the same at any depth.
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if "out" in name else 0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (B, T, V) for characters (B, T)."""
        place = torch.arange(x.shape[1], device=x.device)
        h = self.dropout(self.character(x) + self.position(place))
        for block in self.blocks:
            h = block(h)
        scores: Tensor = self.score(self.norm(h))
        return scores

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy (nats a character) of the true next characters `y` (B, T)."""
        return F.cross_entropy(self(x).flatten(0, 1).float(), y.flatten())


# ---------------------------------------------------------------------------- the data


class Windows:
    """Draws each training window once an epoch, in a new order and from a new offset every time.

    Its state is the data position: without it a resumed run sees some windows twice and others never.
    """

    def __init__(self, length: int, context: int, batch: int, seed: int) -> None:
        self.length, self.context, self.batch = length, context, batch
        if (length - context) // context < batch:
            raise InputError(
                f"{length} characters do not give {batch} windows of {context}",
                where="data",
                mend="give more text, or a smaller batch or context",
            )
        self.generator = torch.Generator().manual_seed(seed)
        self.epoch = -1
        self._shuffle()

    def _shuffle(self) -> None:
        self.before = self.generator.get_state()
        offset = int(torch.randint(self.context, (), generator=self.generator))
        count = (self.length - 1 - offset) // self.context
        self.starts = offset + self.context * torch.randperm(count, generator=self.generator)
        self.epoch += 1
        self.drawn = 0

    def draw(self) -> Tensor:
        """Return where the next `batch` windows start, (B,). A remainder too small for one is left out."""
        if self.drawn + self.batch > len(self.starts):
            self._shuffle()
        self.drawn += self.batch
        return self.starts[self.drawn - self.batch : self.drawn]

    def state_dict(self) -> dict[str, Any]:
        """Return the generator as it was before this epoch, the epoch, and how far it has been drawn."""
        return {"generator": self.before, "epoch": self.epoch, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw the same epoch again and go to the same place in it."""
        self.generator.set_state(state["generator"])
        self._shuffle()
        self.epoch, self.drawn = state["epoch"], state["drawn"]


def cut(text: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Return the windows at `starts` and the same moved on by one character, both (B, T)."""
    starts = starts.to(text.device, non_blocking=True)
    windows = text[starts[:, None] + torch.arange(context + 1, device=text.device)]
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model: GPT, text: Tensor, at_most: int | None = None) -> Tensor:
    """Return the mean loss over the non-overlapping windows of `text`, or over `at_most` of them.

    The sampled windows are evenly spaced and always the same, so that two evaluations compare.
    """
    starts = torch.arange(0, len(text) - model.context, model.context)
    if at_most and at_most < len(starts):
        starts = starts[torch.linspace(0, len(starts) - 1, at_most).long()]
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=text.device)
    for part in torch.split(starts, 128):
        total += model.loss(*cut(text, part, model.context)).double() * len(part)
    model.train()
    return total / len(starts)


@torch.no_grad()
def write(model: GPT, first: Tensor, length: int, temperature: float, seed: int) -> list[int]:
    """Return `length` characters that the model writes after `first` (1, T), one at a time."""
    # A generator of its own: writing more or less must not change anything else.
    generator = torch.Generator(first.device).manual_seed(seed)
    model.eval()
    text = first
    for _ in range(length):
        scores = model(text[:, -model.context :])[:, -1] / temperature
        chosen = torch.multinomial(F.softmax(scores.float(), dim=-1), 1, generator=generator)
        text = torch.cat((text, chosen), dim=1)
    model.train()
    written: list[int] = text[0, first.shape[1] :].tolist()
    return written


# ---------------------------------------------------------------------------- the loop


def rate_factor(step: int, steps: int, warmup: int, floor: float) -> float:
    """Return the learning rate after `step` updates over the highest one: linear up, cosine down."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))


def make_optimizer(model: GPT, o: dict[str, Any]) -> torch.optim.AdamW:
    """AdamW; weight decay pulls on matrices, not on the norms' gains, which would only shrink."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.dim() >= 2], "weight_decay": o["weight_decay"]},
        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), fused=True)


def gradient_norm(model: GPT, clip: float | str) -> Tensor:
    """Scale the gradients down to norm `clip` if they are longer, and return their norm before that."""
    norm: Tensor
    if clip == "off":
        lengths = [torch.linalg.vector_norm(w.grad) for w in model.parameters() if w.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(lengths))
    else:
        norm = nn.utils.clip_grad_norm_(model.parameters(), float(clip))
    return norm


def main() -> None:
    order = record.read_order("labs/01-first-loop/train.toml")
    c, o = order.config, order.config["optim"]
    record.determinism.apply(order.mode, order.seed, order.threads)
    device = c["device"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch sees no GPU here", where="device", mend="take --set device=auto")

    alphabet, train_numbers, val_numbers = load(order, c["data"])
    train_text, val_text = (
        torch.tensor(train_numbers, device=device),
        torch.tensor(val_numbers, device=device),
    )
    windows = Windows(len(train_text), c["context"], c["batch"], order.seed)
    if len(val_text) <= c["context"]:
        raise InputError("the validation part is shorter than a window", where="data", mend="give more text")

    model = GPT(len(alphabet), c["context"], **c["model"]).to(device)
    optimizer = make_optimizer(model, o)
    floor = o["min_lr"] / o["lr"] if o["lr"] else 1.0
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_factor(step, c["steps"], o["warmup"], floor)
    )
    half = torch.autocast(device, torch.bfloat16, enabled=c["precision"] == "bfloat16")

    recorder = record.start(
        order=order,
        total_steps=c["steps"],
        tokens_per_step=c["batch"] * c["context"] * c["accumulate"],
        parameters=sum(weight.numel() for weight in model.parameters()),
    )
    log = record.Lagged(recorder)
    # All that the next step depends on, besides the random generators: those are kept without being asked.
    states = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": schedule,
        "scaler": None,  # only 16-bit floats with few exponent bits (fp16) need their losses scaled
        "data_position": windows,
    }
    step = recorder.restore(states)

    exploded = False
    while step < c["steps"] and not recorder.stop_requested and not exploded:
        step += 1
        losses, drawn = [], []
        for _ in range(c["accumulate"]):
            starts = windows.draw()
            with half:
                loss = model.loss(*cut(train_text, starts, c["context"]))
            (loss / c["accumulate"]).backward()
            losses.append(loss.detach())
            drawn.append(starts)
        norm = gradient_norm(model, c["clip"])
        rate = optimizer.param_groups[0]["lr"]  # the rate that this update really uses
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

        mean = torch.stack(losses).mean()
        log.record(step, loss=mean, lr=rate, grad_norm=norm, batch=record.digest(torch.cat(drawn)))
        if step % c["every"]["eval"] == 0:
            with half:
                seen = evaluate(model, val_text, at_most=240)
            log.record(step, eval_loss=seen)
            print(f"step {step:6d}  loss {float(mean):.4f}  eval {float(seen):.4f}", flush=True)
        keep = step % c["every"]["checkpoint"] == 0
        if keep or step == c["steps"]:
            log.flush()  # a GPU's losses come some steps late: see them all before weights are kept
        exploded = c["on_nan"] == "stop" and recorder.nonfinite.startswith("loss ")
        if keep and not exploded:
            recorder.save(step, states)

    done = step == c["steps"] and not exploded
    if done:
        with half:
            final = evaluate(model, val_text)
        log.record(step, val_loss=final)
        print(f"loss over the whole validation text: {float(final):.4f}", flush=True)
        if math.isfinite(final):  # weights that are not numbers write nothing
            written = write(model, train_text[None, :1], **c["sample"], seed=order.seed)
            print(alphabet.decode(written), flush=True)
    if not exploded:
        recorder.save(step, states)
    recorder.finish(step, "done" if done else "stop")


if __name__ == "__main__":
    main()
