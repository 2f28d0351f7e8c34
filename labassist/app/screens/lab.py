"""One step of a lab: read it, commit to a guess, run or edit what it asks for, check it, go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from textual.binding import Binding
from textual.message import Message
from textual.widget import Widget

from labassist.app import actions, coursefacts, messages, words
from labassist.app.actions import LAB
from labassist.app.editor import edit
from labassist.app.labkeys import HELD, LETTERS, labelled, offered
from labassist.app.labstate import LabState
from labassist.app.screens.base import LabScreen
from labassist.app.steperrands import ANSWERS, CHECK, HINT, KEEP, StepErrands
from labassist.app.steprun import COMMAND, StepRun
from labassist.app.where import Source
from labassist.app.widgets.pager import Pager
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.stepwork import StepWork
from labassist.app.words import Line
from labassist.errors import InputError


class StepScreen(LabScreen):
    """Shows a lab's steps, one at a time."""

    NAME = LAB
    CSS_PATH: ClassVar[Any] = "lab.tcss"
    AUTO_FOCUS = "Pager"
    # Before the keys of the registry: while a question is open, its letters are answers.
    BINDINGS = [Binding(letter, f"letter('{letter}')", show=False) for letter in LETTERS]  # noqa: RUF012

    def __init__(self, lab: str) -> None:
        super().__init__()
        self.state = LabState(lab)
        self._problem = ""
        self._asks = StepErrands(self.lab.desk.errands, self.lab.lang)
        self._run = StepRun()

    @property
    def watching(self) -> list[str]:  # type: ignore[override]
        """The step's run."""
        return [self._run.id] if self._run.id else []

    @property
    def step(self) -> dict[str, Any] | None:
        """The step that is shown."""
        return self.state.step

    def body(self) -> Iterable[Widget]:
        """Return the text, and beside or below it what is to be done, the run, and the check."""
        yield Pager(plain=self.lab.plain, id="text")
        yield StepWork(id="work")
        yield Prompt()

    def on_mount(self) -> None:
        """Ask for the lab."""
        super().on_mount()
        self._asks.read(self.state.place)
        self.set_interval(1.0, self._tick_check)
        self.show_all()

    def on_unmount(self) -> None:
        """Leave nothing behind that only this screen waits for; the course shows what was done."""
        self._asks.drop_check()
        self.lab.read_course()

    def title_line(self) -> list[Line]:
        """Return the lab, the step and the trail."""
        return self.state.title(self.lab.signs)

    def places(self) -> list[tuple[str, str, Callable[[], object]]]:
        """Return every step: looking ahead is allowed, only a run may be locked."""
        return [
            (
                f"step: {step['number']} {step['title']}",
                f"Go to the step: {step['standing']}.",
                partial(self._go, at),
            )
            for at, step in enumerate(self.state.steps)
        ]

    def can(self, action: str) -> bool:
        """Offer what the step has, in the order in which it is done."""
        readonly = bool(self.lab.runs and self.lab.runs.readonly)
        return offered(action, self.state, self._run, readonly=readonly, commanding=self._commanding)

    def label(self, action: actions.Action) -> str:
        """Say what the key does to this step now."""
        if action.name == "check" and self._asks.checking:
            return "give the check up"
        return labelled(action, self.state, self._run, commanding=self._commanding)

    @property
    def foremost(self) -> str:
        """Where a step is done, going on is what to do now."""
        return "next" if self.step and self.step["standing"] == "done" else ""

    def key_names(self, action: actions.Action) -> str:
        """The letters of the options are the keys of a guess."""
        return (action.name == "guess" and " ".join(self.state.options)) or super().key_names(action)

    def sources(self) -> list[Source]:
        """Return where the step's values and its run's numbers come from."""
        return self.state.sources() + self._run.progress.sources()

    @property
    def _commanding(self) -> bool:
        """Whether a step's command goes on that is more than one run."""
        return self.lab.desk.errands.busy(COMMAND)

    @property
    def _work(self) -> StepWork:
        return self.query_one(StepWork)

    # --- what the desk says

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.Answered):
            self._answered(message)
        elif isinstance(message, messages.RunGrew) and message.run == self._run.id:
            self._grew(message)
        elif isinstance(message, messages.RunGone) and message.run == self._run.id:
            gone = f"{message.what} was taken away (run {words.short(message.run)})"
            self.notice([("! ", "bad"), (gone, "plain")])
            self._asks.read(self.state.place)
        elif isinstance(message, messages.MachineSampled):
            self._work.show_machine(self._run)
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

    def _keep(self, option: str, *, typed: str = "", then_on: bool = False) -> None:
        """Keep a guess or a done-mark of the step that is shown."""
        self.notice([("keeping it in the ledger …", "plain")])
        self._asks.keep(self.state.place, option, typed=typed, then_on=then_on)

    def _answered(self, message: messages.Answered) -> None:
        if message.key not in ANSWERS:
            return
        self._asks.take(message.key)
        if message.problem:
            self._refused(message)
        elif message.key == COMMAND:
            self._ended()
        elif message.key == HINT:
            self._hinted(message.document)
        else:
            self.notice([])
            self._take(message.document)
            if message.key == KEEP and self._asks.then_on:
                self._go(self.state.at + 1)
            elif message.key == CHECK and self.step is not None:
                self.notice(coursefacts.after_check(self.step, self.lab.signs))
        self.show_all()
        self.refresh_lines()
        self._asks.go_on()

    def _refused(self, message: messages.Answered) -> None:
        """Say why a command could not be done; what was typed can be mended."""
        self._problem = "" if self.state.steps else message.problem
        self._asks.forget()
        self.notice([("! ", "bad"), (message.problem, "plain")])
        if message.key == KEEP and self._asks.typed and self.can("guess"):
            self._type_guess()
            self.query_one(Prompt).again(self._asks.typed)

    def _take(self, answer: dict[str, Any]) -> None:
        """Take the steps that an answer has; the first one says at which to begin."""
        if self.state.take(answer):
            self._go(self.state.at)
        else:
            self._find_run()
        if answer.get("note"):
            self.notice([(f"{self.lab.signs.alarm} ", "warn"), (answer["note"], "plain")])

    def _hinted(self, answer: dict[str, Any]) -> None:
        self.state.hinted(answer)
        self._asks.hinted(self.state.place, more=len(answer["hints"]) < answer["total"])
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
        if not self._commanding:
            self.notice([])
        self._work.chart.clear()
        self.lab.follow(afresh=self.watching)
        self.show_all()
        self.refresh_lines()

    def _grew(self, message: messages.RunGrew) -> None:
        lived, running = self._run.alive, self._run.running
        self._work.grow(self._run, message)
        if running and not self._run.running and not self._commanding:
            self._ended()
        if lived != self._run.alive:
            self.refresh_lines()

    def _ended(self) -> None:
        """The run is over: what it was for can be looked at."""
        if self.step is not None and self.can("check"):
            self._check()
        elif self.step is not None:
            self._asks.read(self.state.place)

    # --- keys

    def holds(self, action: str) -> bool:
        """Hold the keys of a step that is being kept until the answer says what they do there."""
        held = self._asks.keeping and action in HELD
        if held:
            self._asks.hold(partial(self._press, action))
        return held

    def _press(self, action: str) -> None:
        """Do what a held key means now, if anything: an answer comes before a key's other meaning."""
        letter = action.partition("'")[2][:1]
        if letter and self.check_action("letter", (letter,)):
            self.action_letter(letter)
        elif (name := HELD[action]) and self.check_action(name, ()):
            getattr(self, f"action_{name}")()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A letter answers the question that has it; `next` says what a step that is not done waits for."""
        if action == "next":
            return self.step is not None
        if action == "letter":
            return bool(parameters[0] in self.state.options and self.can("guess"))
        return super().check_action(action, parameters)

    def action_letter(self, letter: str) -> None:
        """Commit to an option."""
        self._keep(f"--predict={letter}")

    def action_guess(self) -> None:
        """Ask for a guess that is typed."""
        if letters := " ".join(self.state.options):
            self.notice([("press the letter of your guess: ", "plain"), (letters, "key")])
        else:
            self._type_guess()

    def _type_guess(self) -> None:
        assert self.step is not None
        unit = self.step["predict"]["unit"]
        self.query_one(Prompt).ask("guess", f"your guess in {unit}" if unit else "your guess")

    def on_prompt_given(self, message: Prompt.Given) -> None:
        """Commit to what was typed."""
        if message.text and message.purpose == "guess":
            self._keep(f"--predict={message.text}", typed=message.text)

    def action_run_or_stop(self) -> None:
        """Start the step's run, or ask the live one for its end."""
        step = self.step
        if self._commanding:
            self.lab.desk.errands.drop(COMMAND)
            self.notice([("the command was given up; a run that it started goes on", "plain")])
            self.refresh_lines()
        elif self._run.alive:
            self.lab.desk.end(self._run.id)
        elif step is not None:
            self.notice([(f"starting {step['run']['line']} …", "plain")])
            self._run.begin(self.lab, step["run"]["words"])
            self.refresh_lines()

    def action_check(self) -> None:
        """Check the step, or give the check that goes on up."""
        if self._asks.checking:
            self._asks.drop_check()
            self.notice([("the check was given up", "plain")])
            self.refresh_lines()
        else:
            self._check()

    def _check(self) -> None:
        self.notice([("checking …", "plain")])
        self._asks.check(self.state.place)
        self.refresh_lines()

    def _tick_check(self) -> None:
        """Say how long a slow check has taken."""
        if (passed := self._asks.checking) > 2:
            self.notice([(f"checking for {passed:.0f} s; c gives it up", "plain")])

    def action_hint(self) -> None:
        """Take the next hint; each press counts, also while one is on its way."""
        self._asks.hint(self.state.place)

    def action_edit(self) -> None:
        """Open the editor at the step's line."""
        assert self.step is not None
        place = self.step["edit"]
        try:
            edit(self.lab, self.lab.workspace.root / place["file"], place["line"])
        except InputError as error:
            self.notice([("! ", "bad"), (str(error), "plain")])
        else:
            key = "space runs" if self.step["run"] is not None else "c checks"
            self.notice([(f"{key} what is in the file now", "plain")])
            self._asks.read(self.state.place)

    def action_next(self) -> None:
        """Go on; a text is read then."""
        assert self.step is not None
        if not self.can("next"):
            self.notice(coursefacts.waits_for(self.step))
        elif self.step["standing"] != "done":
            self._keep("--done", then_on=True)
        else:
            self._go(self.state.at + 1)

    def action_previous(self) -> None:
        """Go back one step."""
        self._go(self.state.at - 1)

    def action_open(self) -> None:
        """Open the step's run."""
        self.lab.open_run(self._run.id)

    def action_text(self) -> None:
        """Show the text alone, or all parts again."""
        self.toggle_class("-reading")
        self.call_after_refresh(self.show_all)

    def action_copy(self) -> None:
        """Copy the step's command."""
        assert self.step is not None
        self.copy(self.step["run"]["line"])

    def _go(self, at: int) -> None:
        """Show another step; behind the last one lies the course."""
        if at >= len(self.state.steps):
            self._asks.forget()
            self.dismiss(None)
            return
        self.state.at = max(0, at)
        self._asks.no_hints()
        self.notice([])
        self._run = StepRun()
        self._work.chart.clear()
        self._find_run()
        self.query_one("#text", Pager).top()
        self.lab.follow()
        self.show_all()
        self.refresh_lines()

    # --- what is shown

    def show_all(self) -> None:
        """Write every part."""
        self._show_text()
        self._work.show(self.step, self._run)

    def _show_text(self) -> None:
        pager = self.query_one("#text", Pager)
        if self.step is None:
            said = self._problem or "reading the lab …"
            pager.show([[(said, "bad" if self._problem else "dim")]])
        else:
            pager.show(coursefacts.page(self.step, min(84, max(20, pager.size.width)), self.lab.signs))
