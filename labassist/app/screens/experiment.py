"""One `ckpt prove` or `ckpt ablate`: how far it is, and its answer."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import EXPERIMENT
from labassist.app.screens.base import LabScreen
from labassist.app.verdict import KIND, verdict_lines
from labassist.app.where import Source
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines, folded
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.ledger.canonical import decode_number

DOES = {
    "prove": "Three recorded runs: one unbroken, one that stops at the checkpoint, one that goes on from it. "
    "Then every batch, loss, gradient norm and rate, the random generators and every tensor are compared.",
    "ablate": "An unbroken run, then one resume with everything and one without each of the six states in turn: "
    "what each state is worth, and from which step on its absence shows.",
}

COLUMNS = (
    Column("dropped", 14),
    Column("verdict", 14),
    Column("differs at", 10, right=True),
    Column("at its peak", 12, right=True),
    Column("at the end", 12, right=True),
)


class ExperimentScreen(LabScreen):
    """Shows one experiment, which goes on when the screen is left."""

    NAME = EXPERIMENT
    CSS_PATH: ClassVar[Any] = "experiment.tcss"

    def __init__(self, name: str, command: Sequence[str], cwd: Path | None = None) -> None:
        """`name`, `command` (what follows `labassist`) and `cwd` are those of `Experiments.start`."""
        super().__init__()
        self._experiment = name
        self._kind = command[1]
        self._command = ["labassist", *command]
        self._cwd = cwd
        self._drawn: object = None

    def body(self) -> Iterable[Widget]:
        """Return the words, the table and the chart."""
        yield Lines(id="said")
        yield Rows(COLUMNS, self._cells, cursor_sign=self.lab.signs.cursor, id="dropped")
        yield Lines(id="meaning")
        chart = ChartView(id="chart", x_name="step after the resume")
        chart.ascii = self.lab.plain
        yield chart

    def on_mount(self) -> None:
        """Show what was told so far."""
        super().on_mount()
        self.catch_up()

    @property
    def _told(self) -> messages.ExperimentMoved:
        return self.lab.experiments.told[self._experiment]

    def title_line(self) -> list[Line]:
        """Return what is tried."""
        busy = self.lab.experiments.busy(self._experiment)
        state: Line = [(f"{self.lab.signs.live} running", "good")] if busy else [("ended", "plain")]
        return [
            [(self._kind.capitalize(), "strong")],
            [(self._experiment.partition(" ")[2], "strong")],
            state,
        ]

    def hear(self, message: Message) -> None:
        """Take what it says."""
        super().hear(message)
        if isinstance(message, messages.ExperimentMoved) and message.name == self._experiment:
            self.catch_up()
            self.refresh_lines()

    def catch_up(self) -> None:
        """Show the newest word."""
        told = self._told
        marks = self.lab.signs
        width = max(20, self.size.width - 4)
        if told.answer is not None and self._kind == "ablate":
            self._show_ablation(told.answer)
            return
        if told.answer is not None:
            lines = proof_lines(told.answer, self.lab.plain, self.lab.signs, self.size.height - 5)
        elif told.problem:
            lines = [[(f"{marks.no} no answer: ", "bad"), (told.problem, "plain")]]
        else:
            lines = [
                [(f"{marks.live} ", "good"), (told.phase, "strong")],
                [],
                [(DOES[self._kind], "plain")],
                [],
                [("It goes on when you leave this screen, or the app.", "dim")],
            ]
        self.lines("#said").show(*folded(lines, width))
        self.lines("#said").styles.height = len(folded(lines, width)) + 1

    def on_resize(self) -> None:
        """Fold anew."""
        super().on_resize()
        self.call_after_refresh(self.catch_up)

    def can(self, action: str) -> bool:
        """Start again what has ended."""
        return action != "again" or not self.lab.experiments.busy(self._experiment)

    def action_again(self) -> None:
        """Make the runs anew."""
        self.remove_class("-ablated")
        self._drawn = None
        self.lab.experiments.start(self._experiment, *self._command[1:], cwd=self._cwd)
        self.catch_up()
        self.refresh_lines()

    def action_copy(self) -> None:
        """Copy the command."""
        self.copy(shlex.join(self._command))

    def sources(self) -> list[Source]:
        """Return the runs behind the answer."""
        answer = self._told.answer
        if answer is None:
            return []
        asked = shlex.join(self._command)
        if self._kind == "prove":
            return [
                Source("verdict", answer["verdict"], asked),
                *(
                    Source(f"the {name} run", run, "a run of this ledger")
                    for name, run in answer["runs"].items()
                ),
            ]
        return [
            Source(
                row["state"] or "nothing dropped",
                row["verdict"],
                f"run {row['run']}" if row["run"] else "no run",
            )
            for row in answer["states"]
        ]

    # --- an ablation

    def _show_ablation(self, answer: Mapping[str, Any]) -> None:
        self.add_class("-ablated")
        self.lines("#said").styles.height = None
        origin = answer["resumed_from"]["step"]
        self.lines("#said").show(
            [
                (answer["job"], "strong"),
                (
                    f"  resumed from step {origin:,}, against run {words.short(answer['uninterrupted'])}",
                    "plain",
                ),
            ]
        )
        if self._drawn is not answer:
            self._drawn = answer
            table = self.query_one(Rows)
            table.show(answer["states"], 0)
            table.focus()

    @on(Rows.Moved)
    def _moved(self) -> None:
        """Lay the highlighted row's curve over the unbroken run's; the first row: all of them."""
        row = self.query_one(Rows).here
        answer = self._told.answer
        if row is None or answer is None:
            return
        self.lines("#meaning").show(*folded([[(row["meaning"], "plain")]], max(20, self.size.width - 4)))
        chart = self.query_one(ChartView)
        chart.clear()
        steps, losses = answer["curves"]["steps"], answer["curves"]["loss"]
        names = [row["state"]] if row["state"] else [name for name in losses if name != "uninterrupted"]
        for name in ("uninterrupted", *names):
            chart.extend(curve(steps, losses.get(name, ())), name if name == "uninterrupted" else label(name))

    def _cells(self, row: Mapping[str, Any]) -> list[Piece]:
        first = row["first_divergent_step"]
        verdict = row["verdict"].replace("_", " ")
        return [
            (label(row["state"] or "control"), "strong"),
            (verdict, KIND.get(row["verdict"], "dim")),
            (f"{first:,}" if first is not None else "-", "plain"),
            (_effect(row["peak"]), "plain"),
            (_effect(row["final"]), "plain"),
        ]


def label(state: str) -> str:
    """Return what a resume lacks, as a person reads it."""
    return "nothing" if state == "control" else state.replace("_", " ")


def curve(steps: Sequence[int], losses: Sequence[Any]) -> list[tuple[float, float]]:
    """Return the points of one run, steps counted from the resume; steps that it has no loss for are left out."""
    return [
        (step - steps[0] + 1, float(decode_number(loss)) if isinstance(loss, str) else loss)
        for step, loss in zip(steps, losses, strict=False)
        if loss is not None
    ]


def _effect(effect: Mapping[str, Any] | None) -> str:
    if effect is None:
        return "-"
    difference = effect["difference"]
    return f"{difference:+.4f}" if isinstance(difference, int | float) else str(difference)


def proof_lines(answer: Mapping[str, Any], plain: bool, marks: words.Signs, room: int) -> list[Line]:
    """Return the answer of `ckpt prove`: the verdict in large letters, then the runs and the culprit."""
    runs = {name: words.short(run) for name, run in answer["runs"].items()}
    lines = verdict_lines(answer, marks, plain=plain, room=max(3, room - 6), what="resumed run")
    lines += [
        [],
        [
            (
                f"unbroken {runs['uninterrupted']}, interrupted {runs['interrupted']} at step "
                f"{answer['interrupted_at']:,}, resumed {runs['resumed']} from step "
                f"{answer['resumed_from']['step']:,}",
                "plain",
            )
        ],
    ]
    equal = sum(one["equal"] for one in answer["rng"])
    if answer["rng"]:
        lines.append([(f"random generators equal at {equal} of {len(answer['rng'])} checkpoints", "plain")])
    if answer["culprit"]:
        lines.append([("culprit: ", "bad"), (answer["culprit"].replace("_", " "), "strong")])
    later = [f"{name} from step {one['step']:,}" for name, one in answer["differences"].items()]
    if later:
        lines.append([(f"differing: {', '.join(later)}", "plain")])
    return lines
