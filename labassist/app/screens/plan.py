"""Know before you rent: a plan's settings, and what they come to, redrawn at each change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.containers import Container
from textual.widget import Widget

from labassist.app import messages
from labassist.app.actions import PLAN
from labassist.app.plan_form import Field, Form, Planned
from labassist.app.plan_lines import plan_lines
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.lines import Lines, folded
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.errors import InputError
from labassist.planner import cards, cost
from labassist.planner.time import flops_a_token

FORMULAS = {
    "weights": "2 bytes a parameter in bf16, 4 in fp32 or mixed; in nf4 0.516 a linear one, embeddings in 16 bits",
    "gradients": "those alive at the peak, in the precision of what is trained",
    "optimizer": "two moments a trained parameter; in 8 bits a byte each, and a maximum for every 256",
    "activations": "what a block's backward needs x blocks; with checkpointing their inputs and one block",
    "logits": "scores of the vocabulary: 14 bytes each at once, or tiles of 4,096 x 32,768",
    "workspace": "64 MiB of cuBLAS, the strategy's buffers, the optimizer's temporaries",
    "context": "0.75 GiB outside PyTorch's allocator (measured on an H200), and paged optimizer states",
    "fragmentation": "what the allocator reserves and cannot use, from replayed traces: docs/accuracy.md",
}
"""A part of the memory -> how labassist/planner/formula.py counts it."""


class PlanScreen(LabScreen):
    """Settings at the left, memory, time and cost at the right. The formula takes milliseconds: no waiting."""

    NAME = PLAN
    CSS_PATH: ClassVar[Any] = "plan.tcss"

    def __init__(self) -> None:
        super().__init__()
        self._prices: cost.Prices | None = None
        self._problem = ""
        self._planned: Planned | None = None
        self._typed: Field | None = None
        self.form = Form()

    def body(self) -> Iterable[Widget]:
        """Return the settings and the answer."""
        with Container(id="sides"):
            yield Rows(
                (Column("setting", 13), Column("value", 0)),
                self._cells,
                cursor_sign=self.lab.signs.cursor,
                id="fields",
            )
            yield Lines(id="answer")
        yield Lines(id="about")
        yield Prompt()

    def on_mount(self) -> None:
        """Begin with this machine's card, and the workspace's prices."""
        super().on_mount()
        try:
            self._prices = cost.prices(None, self.lab.workspace.root)
        except InputError as error:
            self.notice([(f"{self.lab.signs.alarm} ", "bad"), (str(error), "plain")])
        self.form = Form(_own_card(self.lab.machine), self._prices)
        self._redraw()

    def title_line(self) -> list[Line]:
        """Return the model and how much of it is trained."""
        parts: list[Line] = [[("Plan", "strong")]]
        if self._planned is not None:
            plan = self._planned.plan
            parts.append([(plan.model.name, "strong")])
            parts.append([(f"{plan.model.parameters / 1e9:,.2f} billion parameters", "plain")])
            if plan.trains:
                parts.append([(f"{plan.trainable / 1e6:,.1f} million trained", "plain")])
        return parts

    def can(self, action: str) -> bool:
        """Fit only what does not; copy only what is a plan."""
        if action == "fit":
            return self._planned is not None and bool(self._planned.memory["suggestions"])
        if action == "copy":
            return self._planned is not None
        return True

    def on_resize(self) -> None:
        """Fit the bars to the width."""
        super().on_resize()
        self.call_after_refresh(self._show)

    # --- keys

    def action_more(self) -> None:
        """Take the next value of the highlighted setting."""
        self._change(1)

    def action_less(self) -> None:
        """Take the value before."""
        self._change(-1)

    def _change(self, way: int) -> None:
        self.form.change(self._here, way)
        self._redraw()

    @on(Rows.Moved)
    def _moved(self) -> None:
        self._about()

    @on(Rows.Chosen)
    def action_type(self) -> None:
        """Type a value."""
        field = self._typed = self._here
        self.query_one(Prompt).ask("take it", f"{field.label}: {field.help}")

    @on(Prompt.Given)
    def _given(self, event: Prompt.Given) -> None:
        if self._typed is None or not event.text:
            return
        try:
            self.form.put(self._typed, event.text)
        except InputError as error:
            self.notice([(f"{self.lab.signs.alarm} ", "bad"), (str(error), "plain")])
            self.query_one(Prompt).again(event.text)
            return
        self.notice([])
        self._redraw()

    def action_fit(self) -> None:
        """Make the cheapest change that makes it fit."""
        if self._planned is not None:
            self.form.take(self._planned.memory["suggestions"][0]["options"])
            self._redraw()

    def action_copy(self) -> None:
        """Copy the command that gives this answer."""
        self.copy(self.form.command())

    def sources(self) -> list[Source]:
        """Return the formula or the table behind each number."""
        planned = self._planned
        if planned is None:
            return []
        parts = planned.memory["parts"]
        found = [
            Source(name, f"{parts[name]:.2f} GiB", text) for name, text in FORMULAS.items() if name in parts
        ]
        found.append(
            Source("total", f"{planned.memory['total_gib']:.2f} GiB", f"their sum: {self.form.command()}")
        )
        card = planned.card
        found.append(
            Source(
                "the card",
                f"{card.usable_gib:.2f} GiB",
                f"{card.name}, {card.source}: planner/data/cards.toml",
            )
        )
        if planned.time is not None and planned.time.mfu is not None:
            each = f"{flops_a_token(planned.plan) / 1e9:.1f} GFLOP a token"
            low, high = planned.time.mfu
            found.append(
                Source("time", each, f"over {card.tflops:g} TFLOP/s dense at an MFU of {low:g} to {high:g}")
            )
        if planned.rent is not None and self._prices is not None:
            rate = f"{self._prices.of('rent', self.form.values['card']):.2f} {self._prices.currency} an hour"
            found.append(
                Source("rent", rate, f"{self._prices.path}, as of {self._prices.as_of}: yours to edit")
            )
        return found

    # --- what is shown

    @property
    def _here(self) -> Field:
        field: Field = self.query_one(Rows).here
        return field

    def _redraw(self) -> None:
        """Work the plan out anew, and show it."""
        try:
            self._planned, self._problem = self.form.planned(), ""
        except InputError as error:
            self._planned, self._problem = None, str(error)
        self.query_one(Rows).show(self.form.fields())
        self._show()
        self.refresh_lines()

    def _show(self) -> None:
        widget = self.lines("#answer")
        width = widget.size.width
        if not width:
            return
        if self._planned is None:
            lines = folded([[(f"{self.lab.signs.alarm} ", "bad"), (self._problem, "plain")]], width)
        else:
            marks, room = self.lab.signs, widget.size.height
            lines = plan_lines(self._planned, self._prices, marks, width, room, plain=self.lab.plain)
        widget.show(*lines)

    def _about(self) -> None:
        field = self.query_one(Rows).here
        self.lines("#about").show([(f"{field.label}: {field.help}", "dim")] if field else [])

    def _cells(self, field: Field) -> list[Piece]:
        return [(field.label, "plain"), (self.form.text(field), "strong")]


def _own_card(machine: messages.MachineSampled | None) -> str:
    """Return this machine's card by its name in the table, else a common one."""
    for gpu in machine.sample.gpus if machine else ():
        try:
            return cards.find(gpu.name).name
        except InputError:
            continue
    return "RTX 4090"
