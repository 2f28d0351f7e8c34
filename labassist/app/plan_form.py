"""What the plan screen asks for: its settings, what each may be, and the plan that they make. No terminal."""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labassist.errors import InputError, did_you_mean
from labassist.planner import arch, cards, cost, optim
from labassist.planner import time as timing
from labassist.planner.answer import memory_answer
from labassist.planner.plan import ATTENTIONS, LOSSES, METHODS, STOCK_OPTIMIZER, STRATEGIES, Plan

DOUBLES = tuple(2**power for power in range(24))
BATCHES = tuple(sorted({part * 2**power for part in (2, 3) for power in range(12)} | {1}))
TOKENS = tuple(part * 10**power for power in range(5, 12) for part in (1, 2, 5))


class Field(NamedTuple):
    """One setting."""

    name: str
    label: str
    help: str
    ladder: tuple[int, ...] = ()
    """Numbers that the arrows step through; others may be typed."""


FIELDS = (
    Field("model", "model", "a published name, a config.json, a folder, or a downloaded hub id"),
    Field("method", "method", "full trains every weight; lora and qlora a pair of thin matrices beside each"),
    Field("dtype", "precision", "bf16: weights in 16 bits; mixed: fp32 weights, products in 16 bits"),
    Field("seq", "sequence", "tokens of an example", DOUBLES),
    Field("batch", "batch", "examples in one forward, on one card", BATCHES),
    Field(
        "accumulate", "accumulate", "forwards before one update: batch x accumulate examples a step", DOUBLES
    ),
    Field("optim", "optimizer", "keeps two moments a trained weight; in 8 bits a quarter of the room"),
    Field(
        "checkpointing",
        "checkpointing",
        "keep a block's input only and compute the rest again in the backward",
    ),
    Field("attention", "attention", "eager keeps every score, heads x sequence x sequence"),
    Field("loss", "loss", "full: the scores of every token over the whole vocabulary at once"),
    Field("lora_r", "lora rank", "width of the trained pairs", DOUBLES),
    Field("lora_targets", "lora targets", "the layers that get a pair"),
    Field("gpus", "cards", "cards that train together", DOUBLES),
    Field("strategy", "strategy", "ddp copies everything; zero and fsdp share out what they name"),
    Field("link", "link", "between the cards; a number is GB/s in one direction"),
    Field("card", "card", "a card's name, or a size as 24GB"),
    Field("tokens", "tokens", "how much is trained, for the time and the cost", TOKENS),
)

TRAINING = ("accumulate", "optim", "checkpointing", "loss", "gpus", "tokens")
ADAPTING = ("lora_r", "lora_targets")
TOGETHER = ("strategy", "link")


@dataclass(frozen=True)
class Planned:
    """What the settings come to."""

    plan: Plan
    card: cards.Card
    memory: dict[str, Any]
    """The document of `plan memory`."""
    time: timing.Duration | None
    """None for inference, for what does not fit, and where `no_time` says why."""
    no_time: str = ""
    rent: cost.Cost | None = None
    no_rent: str = ""


class Form:
    """The settings; each has a value that `change` steps and `put` takes as typed."""

    def __init__(self, card: str = "RTX 4090", prices: cost.Prices | None = None) -> None:
        """Begin with lab 07's recipe for a 7B model."""
        self.prices = prices
        self._rates: dict[str, float] = {}
        self.values: dict[str, Any] = {
            "model": "qwen2.5-7b",
            "method": "qlora",
            "dtype": "bf16",
            "seq": 2048,
            "batch": 2,
            "accumulate": 1,
            "optim": "",
            "checkpointing": True,
            "attention": "sdpa",
            "loss": "chunked",
            "lora_r": 16,
            "lora_targets": "",
            "gpus": 1,
            "strategy": "ddp",
            "link": "PCIe 4 x16",
            "card": card,
            "tokens": 10_000_000,
        }

    def fields(self) -> list[Field]:
        """Return the settings that mean something now."""
        return [field for field in FIELDS if self.applies(field.name)]

    def applies(self, name: str) -> bool:
        """Say whether a setting means something beside the others."""
        method: str = self.values["method"]
        trains = method != "inference"
        if name in TRAINING or name == "gpus":
            return trains
        if name in ADAPTING:
            return method in ("lora", "qlora")
        if name in TOGETHER:
            return trains and int(self.values["gpus"]) > 1
        return not (name == "dtype" and method == "qlora")

    def choices(self, name: str) -> Sequence[Any]:
        """Return what the arrows step through where it is not a ladder of numbers."""
        if name == "lora_targets":
            return ("", "q_proj,v_proj", "all-linear") if self._llama() else ("", "all-linear")
        if name == "strategy" and self.values["method"] == "qlora":
            return tuple(one for one in STRATEGIES if one not in ("zero3", "fsdp"))
        by_size = sorted(cards.known(), key=lambda card: card.total_mib) if name == "card" else ()
        return {
            "model": arch.names(),
            "method": METHODS,
            "dtype": ("bf16", "mixed", "fp32"),
            "optim": ("", *optim.NAMES),
            "checkpointing": (True, False),
            "attention": ATTENTIONS,
            "loss": LOSSES,
            "strategy": STRATEGIES,
            "link": tuple(cards.links()),
            "card": tuple(card.name for card in by_size),
        }[name]

    def _llama(self) -> bool:
        try:
            return any(matrix.name == "q_proj" for matrix in arch.load(self.values["model"]).matrices)
        except InputError:
            return False

    def change(self, field: Field, way: int) -> None:
        """Take the next (1) or the earlier (-1) value: numbers end at the ends of their ladder, names go round."""
        value = self.values[field.name]
        if field.ladder:
            at = bisect_right(field.ladder, value) if way > 0 else bisect_left(field.ladder, value) - 1
            self.values[field.name] = field.ladder[max(0, min(at, len(field.ladder) - 1))]
            return
        choices = list(self.choices(field.name))
        at = choices.index(value) + way if value in choices else 0
        self.values[field.name] = choices[at % len(choices)]

    def put(self, field: Field, text: str) -> None:
        """Take a value as it was typed. Raises InputError on what is no value of this setting."""
        if field.ladder:
            scale = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
            digits = text[:-1] if scale > 1 else text
            if not digits.replace(",", "").isdecimal() or not int(digits.replace(",", "")):
                raise InputError(f"{text!r} is no whole number above zero", where=field.label)
            self.values[field.name] = int(digits.replace(",", "")) * scale
        elif isinstance(self.values[field.name], bool):
            if text not in ("yes", "no"):
                raise InputError(f"{text!r} is neither yes nor no", where=field.label)
            self.values[field.name] = text == "yes"
        else:
            if field.name == "card":
                cards.find(text)
            elif field.name == "model":
                text = str(Path(text).expanduser()) if Path(text).expanduser().exists() else text
                arch.load(text)
            elif field.name == "link":
                cards.link(text)
            elif field.name != "lora_targets" and text not in self.choices(field.name):
                choices = [one for one in self.choices(field.name) if one]
                raise InputError(
                    f"{text!r} is none of {', '.join(choices)}{did_you_mean(text, choices)}",
                    where=field.label,
                )
            self.values[field.name] = text

    def text(self, field: Field) -> str:
        """Return a setting's value as a person reads it."""
        value = self.values[field.name]
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return short(value) if field.name == "tokens" else f"{value:,}"
        if field.name == "optim" and not value:
            return f"{STOCK_OPTIMIZER} (default)"
        if field.name == "lora_targets" and not value:
            return "attention (default)"
        return str(value)

    def plan(self) -> Plan:
        """Return the checked plan. Raises InputError where the settings do not go together."""
        return Plan(arch.load(self.values["model"]), **self._given()).checked()

    def _given(self) -> dict[str, Any]:
        given = {
            name: value
            for name, value in self.values.items()
            if name in Plan.__dataclass_fields__ and name != "model" and self.applies(name)
        }
        if "lora_targets" in given:
            given["lora_targets"] = tuple(filter(None, given["lora_targets"].split(",")))
        if given.get("strategy") not in (None, *self.choices("strategy")):
            given["strategy"] = STRATEGIES[0]
        return given

    def command(self) -> str:
        """Return the `labassist plan memory` line that gives the same answer."""
        words = ["labassist", "plan", "memory", "--model", self.values["model"]]
        for name, value in self._given().items():
            default = Plan.__dataclass_fields__[name].default
            if value == default and name != "method":
                continue
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", ",".join(value) if isinstance(value, tuple) else str(value)]
        return shlex.join([*words, "--card", self.values["card"]])

    def take(self, options: Sequence[str]) -> None:
        """Change the settings as a suggestion of `plan memory` says (`--batch 1 --accumulate 8`)."""
        words = " ".join(options).split()
        while words:
            name = words.pop(0).removeprefix("--").replace("-", "_")
            if not words or words[0].startswith("--"):
                self.values[name.removeprefix("no_")] = not name.startswith("no_")
                continue
            value = words.pop(0)
            self.values[name] = int(value) if value.isdecimal() else value

    def planned(self) -> Planned:
        """Return what the settings come to. Raises InputError where they do not go together."""
        plan = self.plan()
        card = cards.find(self.values["card"])
        memory = memory_answer(plan, card)
        if not plan.trains or not memory["fits"]:
            return Planned(plan, card, memory, None)  # how long a step takes that cannot be made says nothing
        speed = cards.link(self.values["link"]) if plan.gpus > 1 else 0.0
        try:
            took = timing.duration(plan, card, self.values["tokens"], gb_s=speed)
        except InputError as error:
            return Planned(plan, card, memory, None, no_time=f"{error.what}; {error.mend}")
        if self.prices is None:
            return Planned(plan, card, memory, took)
        try:
            rate = self._rate(self.prices)
        except InputError as error:
            return Planned(plan, card, memory, took, no_rent=error.what)
        rent = cost.cost(took.hours, plan.gpus, rate, 0.0, self.prices.person, cost.BUFFER)
        return Planned(plan, card, memory, took, rent=rent)

    def _rate(self, prices: cost.Prices) -> float:
        """Return the card's hour, looked up once: it takes longer than all the rest."""
        name = self.values["card"]
        if name not in self._rates:
            self._rates[name] = prices.of("rent", name)
        return self._rates[name]


def short(number: int) -> str:
    """Return a large number with its unit: `10M`, `1.5B`."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return str(number)
