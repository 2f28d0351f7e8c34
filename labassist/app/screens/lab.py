"""One step of a lab: read it, commit to a guess, run or edit what it asks for, check it, go on."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from labassist.app import actions, coursefacts, messages, words
from labassist.app.actions import LAB
from labassist.app.editor import edit
from labassist.app.markdown import drawn
from labassist.app.screens.base import LabScreen
from labassist.app.steprun import StepRun
from labassist.app.where import Source
from labassist.app.widgets.chart import ChartView
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.widgets.pager import Pager
from labassist.app.widgets.prompt import Prompt
from labassist.app.words import Line
from labassist.errors import InputError

LETTERS = "abcdefgh"
"""Options that a key commits to."""

READING = {"lab": "reading the lab …"}


class StepScreen(LabScreen):
    """Shows a lab's steps, one at a time."""

    NAME = LAB
    CSS_PATH: ClassVar[Any] = "lab.tcss"
    AUTO_FOCUS = "Pager"
    # Before the keys of the registry: while a question is open, its letters are answers.
    BINDINGS = [Binding(letter, f"letter('{letter}')", show=False) for letter in LETTERS]  # noqa: RUF012

    def __init__(self, lab: str) -> None:
        super().__init__()
        self.id_of_lab = lab
        self.document: dict[str, Any] | None = None
        """What `lab --json` answered last."""
        self.at = 0
        """Index of the step that is shown."""
        self._problem = ""
        self._checking = 0.0
        """When the check that goes on was started, by the monotonic clock; 0: none goes on."""
        self._then_on = False
        """Go to the next step when the answer is there."""
        self._run = StepRun()

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """The step's run."""
        return [self._run.id] if self._run.id else []

    @property
    def step(self) -> dict[str, Any] | None:
        """The step that is shown."""
        found: dict[str, Any] | None = self.document["steps"][self.at] if self.document else None
        return found

    def body(self) -> Iterable[Widget]:
        """Return the text, and beside or below it what is to be done, the run, and the check."""
        yield Pager(plain=self.lab.plain, id="text")
        with Vertical(id="work"):
            yield Lines(id="ask")
            chart = ChartView(id="chart", classes="line")
            chart.ascii = self.lab.plain
            yield chart
            yield Lines(id="pace")
            yield Lines(id="machine")
            yield Lines(id="health")
            yield Lines(id="check", classes="line")
        yield Prompt()

    def on_mount(self) -> None:
        """Ask for the lab."""
        super().on_mount()
        self._ask("lab", "lab", self.id_of_lab)
        self.set_interval(1.0, self._tick_check)
        self.show_all()

    def on_unmount(self) -> None:
        """Leave nothing behind that only this screen waits for; the course shows what was done."""
        self.lab.desk.errands.drop("check")
        self.lab.read_course()

    def title_line(self) -> list[Line]:
        """Return the lab, the step and the trail."""
        if self.document is None or self.step is None:
            return [[(self.id_of_lab, "strong")]]
        lab, step = self.document["lab"], self.step
        trail = coursefacts.trail(self.document["steps"], self.at, self.lab.signs)
        number = f"step {step['number']} of {len(self.document['steps'])}"
        sign = {
            "done": (f"{self.lab.signs.yes} done", "good"),
            "failed": (f"{self.lab.signs.no} not yet", "bad"),
        }
        state = sign.get(step["standing"])
        parts: list[Line] = [[(f"{lab['id'][:2]} {lab['title']}", "strong")], [(number, "plain")], trail]
        parts += [[state]] if state else []
        return [*parts, [(step["title"], "plain")]]

    def can(self, action: str) -> bool:
        """Offer what the step has, in the order in which it is done."""
        step, readonly = self.step, bool(self.lab.runs and self.lab.runs.readonly)
        if action in ("back", "help", "commands", "where", "ledger", "machine", "jobs"):
            return True
        if step is None or self.document is None:
            return False
        guessing = coursefacts.waits_for_guess(step)
        if action == "guess":
            return guessing and not readonly
        if action == "run_or_stop":
            free = self._run.alive or not (guessing or readonly or self._run.starting)
            return step["run"] is not None and free
        if action == "check":
            return not guessing and step["kind"] not in ("read", "predict")
        if action == "hint":
            return bool(step["hints"]["total"])
        if action == "edit":
            return step["edit"] is not None
        if action == "copy":
            return step["run"] is not None
        if action == "open":
            return bool(self._run.id)
        if action == "next":
            return bool(step["kind"] == "read" or step["standing"] == "done")
        if action == "previous":
            return self.at > 0
        return action != "read" or bool(self._run.id)

    def label(self, action: actions.Action) -> str:
        """Say what the key does to this step now."""
        step = self.step
        if step is None:
            return action.label
        if action.name == "run_or_stop":
            return "stop run" if self._run.alive else "run again" if self._run.id else "run"
        if action.name == "check" and self._checking:
            return "give the check up"
        if action.name == "hint":
            return f"hint ({len(step['hints']['taken'])} of {step['hints']['total']})"
        if action.name == "next":
            last = self.document is not None and self.at == len(self.document["steps"]) - 1
            read = "" if step["standing"] == "done" else "read, "
            return read + ("back to the course" if last else "next")
        return action.label

    def key_names(self, action: actions.Action) -> str:
        """The letters of the options are the keys of a guess."""
        options = self.step["predict"]["options"] if action.name == "guess" and self.step else {}
        return " ".join(options) if options else super().key_names(action)

    def sources(self) -> list[Source]:
        """Return where the step's values and its run's numbers come from."""
        step = self.step
        return (coursefacts.step_sources(step) if step else []) + self._run.progress.sources()

    # --- what the desk says

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.Answered):
            self._answered(message)
        elif isinstance(message, messages.RunGrew) and message.run == self._run.id:
            self._grew(message)
        elif isinstance(message, messages.RunGone) and message.run == self._run.id:
            self.notice(
                [("! ", "bad"), (f"{message.what} was taken away (run {words.short(message.run)})", "plain")]
            )
            self._ask("lab", "lab", self._place())
        elif isinstance(message, messages.MachineSampled):
            self._show_machine()
        elif isinstance(message, messages.Notice):
            self._run.starting = False
            self.refresh_lines()
        elif isinstance(message, (messages.RunsChanged, messages.ReplayMoved)):
            self._find_run()
            self.refresh_lines()

    def started(self, run: str) -> bool:
        """Follow the run that was asked for here."""
        if not self._run.starting:
            return False
        self._run.starting = False
        self.notice([])
        self._follow(run)
        return True

    def catch_up(self) -> None:
        """Find the step's run again."""
        self._find_run()
        self.show_all()

    def on_resize(self) -> None:
        """Draw everything anew."""
        super().on_resize()
        self.call_after_refresh(self.show_all)

    def _ask(self, key: str, *command: str) -> None:
        language = ("--lang", self.lab.lang) if command[0] in ("lab", "check") else ()
        self.lab.desk.errands.ask(key, *command, *language)

    def _place(self) -> str:
        assert self.step is not None
        return f"{self.id_of_lab}/{self.step['id']}"

    def _answered(self, message: messages.Answered) -> None:
        if message.key not in ("lab", "check", "hint", "step"):
            return
        if message.key == "check":
            self._checking = 0.0
        then_on, self._then_on = self._then_on, False
        if message.problem:
            self._problem = message.problem if self.document is None else ""
            self.notice([("! ", "bad"), (message.problem, "plain")])
        elif message.key == "step":
            self._run.starting = False
            self._ask("lab", "lab", self._place())
        elif message.key == "hint":
            self._hinted(message.document)
        else:
            self._take(message.document)
            if then_on:
                self._go(self.at + 1)
        self.show_all()
        self.refresh_lines()

    def _take(self, answer: dict[str, Any]) -> None:
        """Take the steps that an answer has; at first go to the one that it names."""
        first = self.document is None
        if first:
            self.document = answer
            ids = [step["id"] for step in answer["steps"]]
            self._go(ids.index(answer["step"]))
        else:
            assert self.document is not None
            new = {step["id"]: step for step in answer["steps"]}
            self.document["lab"] = answer["lab"]
            self.document["steps"] = [new.get(step["id"], step) for step in self.document["steps"]]
            self._find_run()
        if answer.get("note"):
            self.notice([(f"{self.lab.signs.alarm} ", "warn"), (answer["note"], "plain")])

    def _hinted(self, answer: dict[str, Any]) -> None:
        assert self.document is not None
        for step in self.document["steps"]:
            if step["id"] == answer["step"]:
                step["hints"] = {"taken": answer["hints"], "total": answer["total"]}
        self.show_all()
        self.query_one("#text", Pager).action_edge(True)

    # --- the run

    def _find_run(self) -> None:
        """Follow the step's live run, or else its newest one."""
        step = self.step
        if step is not None:
            run = self._run.belonging(step, self.lab.runs)
            if run != self._run.id:
                self._follow(run)

    def _follow(self, run: str) -> None:
        self._run.follow(run)
        self.query_one(ChartView).clear()
        self.lab.follow(afresh=self.watching)
        self.show_all()
        self.refresh_lines()

    def _grew(self, message: messages.RunGrew) -> None:
        chart = self.query_one(ChartView)
        if message.begins:
            chart.clear()
        lived = self._run.alive
        self._run.progress.feed(message)
        chart.total = message.document.get("total_steps") or None
        losses = [(row["step"], row["loss"]) for row in message.points if "loss" in row]
        if losses:
            chart.extend(losses)
        if not message.loading:
            self._show_run()
        if lived and not self._run.alive:
            self._ended()
        if lived != self._run.alive:
            self.refresh_lines()

    def _ended(self) -> None:
        """The run is over: what it was for can be looked at."""
        if self.step is not None and self.can("check"):
            self.action_check()
        elif self.step is not None:
            self._ask("lab", "lab", self._place())

    # --- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A letter is an answer while the question that has it is open."""
        if action == "letter":
            step = self.step
            options = step["predict"]["options"] if step and coursefacts.waits_for_guess(step) else {}
            return bool(parameters[0] in options and self.can("guess"))
        return super().check_action(action, parameters)

    def action_letter(self, letter: str) -> None:
        """Commit to an option."""
        self._ask("lab", "lab", self._place(), f"--predict={letter}")

    def action_guess(self) -> None:
        """Ask for a guess that is typed."""
        predict = self.step["predict"] if self.step else {}
        if predict["options"]:
            self.notice(
                [("press the letter of your guess: ", "plain"), (" ".join(predict["options"]), "key")]
            )
        else:
            unit = f" in {predict['unit']}" if predict["unit"] else ""
            self.query_one(Prompt).ask("guess", f"your guess{unit}")

    def on_prompt_given(self, message: Prompt.Given) -> None:
        """Commit to what was typed."""
        if message.text:
            self._ask("lab", "lab", self._place(), f"--predict={message.text}")

    def action_run_or_stop(self) -> None:
        """Start the step's run, or ask the live one for its end."""
        step = self.step
        if self._run.alive:
            self.lab.desk.end(self._run.id)
        elif step is not None:
            self._run.starting = True
            self.notice([(f"starting {step['run']['line']} …", "plain")])
            self._run.begin(self.lab, step["run"]["words"])
            self.refresh_lines()

    def action_check(self) -> None:
        """Check the step, or give the check that goes on up."""
        if self._checking:
            self.lab.desk.errands.drop("check")
            self._checking = 0.0
            self.notice([("the check was given up", "plain")])
        else:
            self._checking = time.monotonic()
            self.notice([("checking …", "plain")])
            self._ask("check", "check", self._place())
        self.refresh_lines()

    def _tick_check(self) -> None:
        """Say how long a slow check has taken."""
        passed = time.monotonic() - self._checking
        if self._checking and passed > 2:
            self.notice([(f"checking for {passed:.0f} s; c gives it up", "plain")])

    def action_hint(self) -> None:
        """Take the next hint."""
        self._ask("hint", "hint", self._place())

    def action_edit(self) -> None:
        """Open the editor at the step's line."""
        assert self.step is not None
        place = self.step["edit"]
        try:
            edit(self.lab, self.lab.workspace.root / place["file"], place["line"])
        except InputError as error:
            self.notice([("! ", "bad"), (str(error), "plain")])
        else:
            self.notice([("c checks what is in the file now", "plain")])
            self._ask("lab", "lab", self._place())

    def action_next(self) -> None:
        """Go on; a text is read then."""
        step = self.step
        if step is not None and step["standing"] != "done":
            self._then_on = True
            self._ask("lab", "lab", self._place(), "--done")
        else:
            self._go(self.at + 1)

    def action_previous(self) -> None:
        """Go back one step."""
        self._go(self.at - 1)

    def action_open(self) -> None:
        """Open the step's run."""
        self.lab.open_run(self._run.id)

    def action_copy(self) -> None:
        """Copy the step's command."""
        assert self.step is not None
        self.copy(self.step["run"]["line"])

    def _go(self, at: int) -> None:
        """Show another step; behind the last one lies the course."""
        assert self.document is not None
        if at >= len(self.document["steps"]):
            self.dismiss(None)
            return
        self.at = max(0, at)
        self.notice([])
        self._run = StepRun()
        self.query_one(ChartView).clear()
        self._find_run()
        self.query_one("#text", Pager).top()
        self.lab.follow()
        self.show_all()
        self.refresh_lines()

    # --- what is shown

    def show_all(self) -> None:
        """Write every part."""
        self._show_text()
        self._show_ask()
        self._show_run()
        self._show_check()

    def _show_text(self) -> None:
        pager = self.query_one("#text", Pager)
        step = self.step
        if step is None:
            said = self._problem or READING["lab"]
            pager.show([[(said, "bad" if self._problem else "dim")]])
            return
        width = min(84, max(20, pager.size.width))
        pager.show(drawn(step["text"], width, self.lab.signs) + coursefacts.hint_lines(step))

    def _show_ask(self) -> None:
        step, marks = self.step, self.lab.signs
        widget = self.lines("#ask")
        lines = coursefacts.question(step, marks) + coursefacts.what_to_do(step) if step else []
        _fill(widget, folded(lines, max(20, widget.size.width)))

    def _show_run(self) -> None:
        """Show the run's pace, its health and the machine beside it, where there is a run."""
        progress, marks = self._run.progress, self.lab.signs
        known = bool(self._run.id) and progress.document is not None
        self.set_class(known, "-run")
        if not known:
            return
        title = f"run {words.short(self._run.id)}"
        chart = self.query_one(ChartView)
        if chart.border_title != title:
            chart.border_title = title
        room = max(20, self.lines("#pace").size.width)
        self.lines("#pace").show(fitted(progress.how_far(marks, 10) + progress.newest()[1:2], room))
        health = progress.how_it_goes(marks)
        _fill(self.lines("#health"), folded(health[:1], room)[:2])
        self._show_machine()

    def _show_machine(self) -> None:
        self.set_class(self._run.alive, "-live")
        if self.lab.machine is None or not self._run.alive:
            return
        from labassist.machine.line import machine_line

        widget = self.lines("#machine")
        widget.show(
            [(machine_line(self.lab.machine.sample, max(10, widget.size.width), self.lab.plain), "dim")]
        )

    def _show_check(self) -> None:
        widget = self.lines("#check")
        lines = coursefacts.verdict_of(self.step, self.lab.signs) if self.step else []
        room = 12 if self.has_class("-wide") else 6
        rows = folded(lines, max(20, widget.size.width), indent=8)
        if len(rows) > room:
            rows = [*rows[: room - 1], [("w shows every criterion whole", "dim")]]
        self.set_class(bool(rows), "-checked")
        _fill(widget, rows)


def _fill(widget: Lines, lines: list[Line]) -> None:
    """Show lines in a widget that is as high as they are many."""
    height = len(lines) + (1 if widget.has_class("line") else 0)
    if widget.styles.height is None or widget.styles.height.value != height:
        widget.styles.height = height
    widget.show(*lines)
