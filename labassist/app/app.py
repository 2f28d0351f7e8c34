"""The app: its screens, its theme, its signals, and the desk from which every screen hears."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from textual import on
from textual.actions import ActionParseResult
from textual.app import App
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.driver import Driver
from textual.message import Message

from labassist.app import coursecache, messages
from labassist.app.desk import Desk
from labassist.app.driver import TerminalDriver, restore_terminal
from labassist.app.experiments import Experiments
from labassist.app.pace import NORMAL, SLOW, Pace
from labassist.app.palette import THEME
from labassist.app.screens.base import LabScreen
from labassist.app.screens.course import CourseScreen
from labassist.app.terms import RunTerms
from labassist.app.words import Signs, short, signs
from labassist.workspace import Workspace

GRACE_S = 2.0
"""Seconds for an orderly end after a signal; then the terminal is restored by hand."""


class LabApp(App[int], inherit_bindings=False):
    """Draws what files say. It never trains, and may be killed at any moment."""

    CSS_PATH = ["app.tcss", "screens/course.tcss"]  # noqa: RUF012
    TITLE = "labassist"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (10, "-short"), (20, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, workspace: Workspace, *, plain: bool = False, slow: bool = False) -> None:
        """`plain`: draw with ASCII characters only. `slow`: few frames, for a slow link."""
        # Without colours the terminal's own two are used, on a light background too.
        super().__init__(driver_class=TerminalDriver, ansi_color=True if "NO_COLOR" in os.environ else None)
        self.workspace = workspace
        self.plain = plain
        self.slow = slow
        self.pace: Pace = SLOW if slow else NORMAL
        self.animation_level = "none"
        self.signs: Signs = signs(plain)
        self.desk = Desk(workspace, self.post_message, self.pace)
        self.experiments = Experiments(workspace.root, self.post_message)
        self.runs: messages.RunsChanged | None = None
        """What the ledger holds; None until it has been read."""
        self.machine: messages.MachineSampled | None = None
        self.replays: dict[str, messages.ReplayMoved] = {}
        """The newest word of each replay that this app started."""
        self.course: Mapping[str, Any] | None = None
        """What `labs --json` answered last; None until it has."""
        self.terms = RunTerms()
        """Price and limits of the runs that are started here."""
        self.lab_here = ""
        """The lab that was opened or highlighted last; empty: the next one is."""
        self.lang = "zh" if language().startswith("zh") and not plain else "en"
        """Language of the labs' texts, where they have it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.farewell = ""
        """Printed when the screen is left."""
        self._attributes = termios.tcgetattr(0) if sys.__stdin__ and sys.__stdin__.isatty() else None
        self.register_theme(THEME)
        self.theme = "labassist"

    def get_default_screen(self) -> LabScreen:
        """Start on the course."""
        return CourseScreen()

    def on_mount(self) -> None:
        """Answer to the signals of a lost connection."""
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            # Not the loop's own handlers: the loop stands still while a stalled terminal takes no output.
            for number in (signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, lambda number, _frame: self.leave_for(number))

    def on_ready(self) -> None:
        """Begin to read: the first frame stands."""
        gc.enable()
        gc.freeze()  # what is loaded now stays: later collections need not look at it
        self.desk.start()
        self.read_course()

    def leave_for(self, number: int) -> None:
        """End after a signal, with the status that a shell gives it. May be called on any thread."""
        status = 128 + number

        def by_hand() -> None:
            # The terminal may be gone, and then writing to it may never return.
            time.sleep(GRACE_S)
            restore_terminal(self._attributes)
            os._exit(status)

        threading.Thread(target=by_hand, daemon=True).start()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self.exit(status, return_code=status))

    def action_leave(self) -> None:
        """Leave; say what goes on without us."""
        live = [run for run, life in (self.runs.lives if self.runs else {}).items() if life == "alive"]
        if live:
            self.farewell = f"run {', '.join(map(short, live))} goes on; come back with: labassist"
        self.exit(0)

    def on_unmount(self) -> None:
        """Let the desk end."""
        self.desk.stop()

    @on(Driver.SignalResume)
    def _resumed(self) -> None:
        """Paint all of the screen again after `fg`."""
        self.screen.refresh(layout=True)

    # --- what screens ask for

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Do what a key is bound to, unless the screen holds it for later."""
        if isinstance(action, str) and isinstance(self.screen, LabScreen) and self.screen.holds(action):
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def read_course(self) -> None:
        """Ask for the labs and the progress, which come as the answer `labs`."""
        self.desk.errands.ask("labs", "labs")

    def replay(self, run: str) -> None:
        """Start a replay."""
        self.replays[run] = messages.ReplayMoved(run, "starting")
        self.desk.replay(run)

    def keep_note(self, run: str, text: str) -> None:
        """Keep a note with a run; the answer has the key `note`."""
        self.desk.errands.ask("note", "note", run, f" {text}")  # a dash at its start is no option

    def export(self, run: str) -> None:
        """Write a run as one page; the answer has the key `export`."""
        page = self.workspace.root / ".labassist" / "pages" / f"{short(run)}.html"
        self.desk.errands.ask("export", "export", run, "--to", "html", "--output", str(page))

    def open_run(self, run: str) -> None:
        """Show a run."""
        from labassist.app.screens.run import RunScreen

        self.push_screen(RunScreen(run))

    def open_lab(self, lab: str) -> None:
        """Show a lab at its next step."""
        from labassist.app.screens.lab import StepScreen

        self.lab_here = lab
        self.push_screen(StepScreen(lab))

    def lab_names(self) -> dict[str, str]:
        """Return each lab's id and its number with its title."""
        labs = self.course["labs"] if self.course else ()
        return {lab["id"]: f"{lab['id'][:2]} {lab['title']}" for lab in labs if not lab["problem"]}

    def go_home(self) -> None:
        """Go back to the course."""
        while len(self.lab_screens()) > 1:
            self.pop_screen()

    # --- what the desk says: kept here, shown by whatever screen is in front

    def lab_screens(self) -> list[LabScreen]:
        """Return the open screens, the one in front last."""
        return [screen for screen in self.screen_stack if isinstance(screen, LabScreen)]

    def show(self, kind: type[LabScreen]) -> None:
        """Open a screen of this kind, or go back to it where one is open already."""
        open_ones = [screen for screen in self.screen_stack if isinstance(screen, kind)]
        if not open_ones:
            self.push_screen(kind())
            return
        while self.screen is not open_ones[-1]:
            self.pop_screen()

    def follow(self, afresh: Iterable[str] = ()) -> None:
        """Have the desk follow the runs that the open screens show, and tell those `afresh` from the beginning."""
        self.desk.watch([run for screen in self.lab_screens() for run in screen.watching], afresh)

    def _tell(self, message: Message) -> None:
        for screen in self.lab_screens():
            screen.tell(message)

    def on_runs_changed(self, message: messages.RunsChanged) -> None:
        """Keep and show what the ledger holds."""
        self.runs = message
        self._tell(message)

    def on_machine_sampled(self, message: messages.MachineSampled) -> None:
        """Keep and show what the machine does."""
        self.machine = message
        self._tell(message)

    def on_replay_moved(self, message: messages.ReplayMoved) -> None:
        """Keep and show how far a replay is."""
        self.replays[message.run] = message
        self._tell(message)

    def on_run_started(self, message: messages.RunStarted) -> None:
        """Tell the screen that asked, wherever it is; a list of jobs opens the run."""
        for screen in reversed(self.lab_screens()):
            if screen.stands() and screen.started(message.run):
                return

    def on_answered(self, message: messages.Answered) -> None:
        """Keep what the course answered; pass all answers on to the screens, in front or not."""
        if message.key == "labs" and message.document:
            self.course = message.document
            coursecache.keep(self.workspace.root, message.document)
        self._tell(message)

    def on_run_gone(self, message: messages.RunGone) -> None:
        """Pass on to the screen that shows it."""
        self._tell(message)

    def on_run_detail(self, message: messages.RunDetail) -> None:
        """Pass on to the screen that asked."""
        self._tell(message)

    def on_run_grew(self, message: messages.RunGrew) -> None:
        """Pass on to the screen that watches."""
        self._tell(message)

    def on_found(self, message: messages.Found) -> None:
        """Pass on to the screen that searched."""
        self._tell(message)

    def on_checkpoints_read(self, message: messages.CheckpointsRead) -> None:
        """Pass on to the screen that asked."""
        self._tell(message)

    def on_experiment_moved(self, message: messages.ExperimentMoved) -> None:
        """Pass on to the screens that show it."""
        self._tell(message)

    def _fatal_error(self) -> None:
        """End after a bug without Textual's pages of source and values: `main` says it in a line."""
        self._close_messages_no_wait()

    def on_notice(self, message: messages.Notice) -> None:
        """Show one line."""
        self._tell(message)


def language() -> str:
    """Return the language that the environment asks for, as `zh_CN.UTF-8`."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")
