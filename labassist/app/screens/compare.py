"""Two runs side by side: their curves in one chart, and all that differs between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual.message import Message
from textual.widget import Widget

from labassist.app import messages, words
from labassist.app.actions import COMPARE
from labassist.app.progress import LABELS, Progress
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.pager import Pager
from labassist.app.words import Line, Signs
from labassist.errors import counted

KEY = "diff"

PATCH_LINES = 400
"""Most lines of a patch that are shown."""


class CompareScreen(LabScreen):
    """Compares two runs; A is the older one."""

    NAME = COMPARE
    CSS_PATH: ClassVar[Any] = "compare.tcss"
    AUTO_FOCUS = "Pager"

    def __init__(self, a: str, b: str) -> None:
        super().__init__()
        self._sides = {run: Progress() for run in (a, b)}
        self._series = "loss"
        self._found: Mapping[str, Any] | None = None
        self._problem = ""

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """Both runs."""
        return list(self._sides)

    def body(self) -> Iterable[Widget]:
        """Return the chart and the page of differences."""
        chart = ChartView(id="chart")
        chart.ascii = self.lab.plain
        yield chart
        yield Pager(plain=self.lab.plain, id="page", classes="line")

    def on_mount(self) -> None:
        """Ask for the curves and for what differs."""
        super().on_mount()
        self.lab.follow(afresh=self.watching)
        self.lab.desk.errands.ask(KEY, "diff", *self.watching)
        self._show()

    def on_unmount(self) -> None:
        """Nobody waits for the answer any more."""
        self.lab.desk.errands.drop(KEY)

    def title_line(self) -> list[Line]:
        """Return which two, and whether anything differs."""
        a, b = map(words.short, self._sides)
        parts: list[Line] = [[("A ", "dim"), (a, "strong"), ("  B ", "dim"), (b, "strong")]]
        if self._found is not None:
            marks = self.lab.signs
            same = self._found["same"]
            parts.append(
                [(f"{marks.yes} nothing differs" if same else "they differ", "good" if same else "warn")]
            )
        return parts

    def can(self, action: str) -> bool:
        """Another series only where there is one."""
        if action == "series":
            return len(self._names()) > 1
        return True

    def sources(self) -> list[Source]:
        """Return where the curves and the differences come from."""
        a, b = self._sides
        found = [
            Source(f"curve {words.short(run)}", self._series, f"ledger/runs/{run}/metrics-rank0.jsonl")
            for run in self._sides
        ]
        return [*found, Source("what differs", "the page below", f"labassist diff {a} {b}")]

    def hear(self, message: Message) -> None:
        """Take the curves and the answer."""
        super().hear(message)
        if isinstance(message, messages.RunGrew) and message.run in self._sides:
            side = self._sides[message.run]
            side.feed(message)
            if message.begins:
                self._draw()
            else:
                self._add(message.run, [r for r in message.points if self._series in r])
            chart = self.query_one(ChartView)
            chart.total = (
                max((one.document or {}).get("total_steps", 0) for one in self._sides.values()) or None
            )
            self.refresh_lines()
        elif isinstance(message, messages.RunGone) and message.run in self._sides:
            said = f"{message.what} was taken away (run {words.short(message.run)})"
            self.notice([("! ", "bad"), (said, "plain")])
        elif isinstance(message, messages.Answered) and message.key == KEY:
            self._found, self._problem = message.document, message.problem
            self._show()
            self.refresh_lines()

    # --- keys

    def action_series(self) -> None:
        """Draw the next series that either run has."""
        names = self._names()
        at = names.index(self._series) if self._series in names else -1
        self._series = names[(at + 1) % len(names)]
        self._draw()

    def action_smooth(self) -> None:
        """Switch the moving average."""
        chart = self.query_one(ChartView)
        chart.smoothed = not chart.smoothed

    def action_log_scale(self) -> None:
        """Switch the scale."""
        chart = self.query_one(ChartView)
        chart.log_y = not chart.log_y

    # --- what is shown

    def _names(self) -> list[str]:
        known = {name for side in self._sides.values() for name in side.series}
        return [name for name in LABELS if name in known] + sorted(known - LABELS.keys())

    def _draw(self) -> None:
        chart = self.query_one(ChartView)
        chart.clear()
        for run, side in self._sides.items():
            chart.extend(side.series.get(self._series, ()), self._label(run))

    def _add(self, run: str, rows: list[dict[str, Any]]) -> None:
        self.query_one(ChartView).extend([(row["step"], row[self._series]) for row in rows], self._label(run))

    def _label(self, run: str) -> str:
        letter = "A" if run == self.watching[0] else "B"
        return f"{letter} {words.short(run)} {LABELS.get(self._series, self._series)}"

    def _show(self) -> None:
        marks = self.lab.signs
        if self._problem:
            lines: list[Line] = [[(f"{marks.no} no answer: ", "bad"), (self._problem, "plain")]]
        elif self._found is None:
            lines = [[("comparing code, numbers, environment, curves and checkpoints …", "dim")]]
        else:
            lines = difference_page(self._found, marks)
        self.query_one(Pager).show(lines)


def difference_page(found: Mapping[str, Any], marks: Signs) -> list[Line]:
    """Return the answer of `diff --json` in lines: what differs first, then what is the same."""
    lines: list[Line] = []
    same: list[str] = []
    for part in ("config", "data", "environment"):
        if found[part]:
            lines.append([(part, "head")])
            lines += [
                [
                    (f"  {key}  ", "plain"),
                    (_text(pair["a"]), "strong"),
                    (" -> ", "dim"),
                    (_text(pair["b"]), "strong"),
                ]
                for key, pair in found[part].items()
            ]
        else:
            same.append(part)
    if found["code"]["same"]:
        same.append("code")
    lines += _curves(found["curves"], marks, same)
    checkpoints = found["checkpoints"]
    first = checkpoints["first_difference"]
    if first:
        where = f"first at step {first['step']:,}, {first['tensor'] or 'kept at other steps'}"
        lines.append([("checkpoints", "head"), (f"  {where}", "plain")])
    elif checkpoints["compared"]:
        same.append(f"checkpoints ({counted(checkpoints['compared'], 'tensors')})")
    if same:
        lines.append([(f"{marks.yes} the same  ", "good"), (", ".join(same), "plain")])
    if not found["code"]["same"]:
        lines += [[("code", "head"), ("  A -> B", "dim")]]
        if found["code"].get("note"):
            lines.append([(f"  {found['code']['note']}", "plain")])
        patch = found["code"]["patch"].splitlines()
        kinds = {"+": "good", "-": "bad"}
        lines += [[(row, kinds.get(row[:1], "plain"))] for row in patch[:PATCH_LINES]]
        if len(patch) > PATCH_LINES:
            lines.append([(f"({len(patch) - PATCH_LINES:,} more lines)", "dim")])
    return lines


def _curves(curves: Mapping[str, Any], marks: Signs, same: list[str]) -> list[Line]:
    """Return a line for the first step that differs, and one for each series that does."""
    unlike = {name: one["first_difference"] for name, one in curves.items() if one["first_difference"]}
    equal = [name for name in curves if name not in unlike]
    if equal:
        same.append(f"series {', '.join(equal)}")
    if not unlike:
        return []
    step = min(first["step"] for first in unlike.values())
    lines: list[Line] = [[("curves", "head"), (f"  first difference at step {step:,}", "strong")]]
    for name, first in sorted(unlike.items(), key=lambda item: (item[1]["step"], item[0])):
        a, b = (words.value(first[side], 8) for side in ("a", "b"))
        said = f"{a} / {b} at step {first['step']:,}; {curves[name]['equal']:,} of {curves[name]['compared']:,} equal"
        lines.append([(f"  {marks.no} {name}  ", "plain"), (said, "plain")])
    return lines


def _text(value: object) -> str:
    return (
        "-"
        if value is None
        else value
        if isinstance(value, str)
        else words.value(value, 8)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )
