"""What every screen has: a title, a body, a line of news, and a bottom line with the keys that work now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Event, Mount
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from labassist.app import actions, messages
from labassist.app.where import Source
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.words import Line
from labassist.errors import InputError

if TYPE_CHECKING:
    from labassist.app.app import LabApp
    from labassist.app.widgets.prompt import Prompt

Parameters = tuple[object, ...]


NEWEST = (messages.RunsChanged, messages.Notice)
"""Messages of which a screen that could not hear needs only the newest."""

KEPT = (messages.RunGrew, messages.RunGone, messages.Answered, *NEWEST)
"""Messages that wait for a screen that cannot hear now."""


class LabScreen(Screen[Any]):
    """One screen of the app. It hears from the desk through `hear`, and offers what `can` allows."""

    NAME: ClassVar[str] = ""
    """Its name in the registry of actions."""

    watching: Sequence[str] = ()
    """Runs that the desk follows while this screen is open."""

    AUTO_FOCUS: ClassVar[str] = "Rows"

    def __init__(self) -> None:
        super().__init__()
        self._laid_out = False
        self._missed: list[Message] = []
        # From the start, or the first resize would style every widget a second time.
        width, height = self.app.size
        self.add_class(
            *self._get_breakpoint_classes(width, self.app.HORIZONTAL_BREAKPOINTS or []),
            *self._get_breakpoint_classes(height, self.app.VERTICAL_BREAKPOINTS or []),
        )
        self.set_class(self.lab.plain, "-plain")
        for binding in actions.bindings(self.NAME):
            for key in binding.key.split(","):
                self._bindings.bind(key, binding.action, binding.description, show=False)

    @property
    def lab(self) -> LabApp:
        """The app, by its own type."""
        return cast("LabApp", self.app)

    def compose(self) -> ComposeResult:
        """Lay out the parts that every screen has around the screen's own."""
        yield Lines(id="title")
        with Vertical(id="body"):
            yield from self.body()
        yield Lines(id="notice")
        yield Lines(id="keys")
        yield Lines(id="small")

    def body(self) -> Iterable[Widget]:
        """Return the widgets of this screen."""
        raise NotImplementedError

    def title_line(self) -> list[Line]:
        """Return the parts of the title, the most important first."""
        raise NotImplementedError

    def sources(self) -> list[Source]:
        """Return where the numbers on this screen come from, for `w`."""
        return []

    def places(self) -> list[tuple[str, str, Callable[[], object]]]:
        """Return where one may go to inside this screen: a name, a sentence, and what goes there."""
        return []

    def can(self, action: str) -> bool:  # noqa: ARG002 - what the screens decide by
        """Say whether an action makes sense now; the bottom line shows only those."""
        return True

    def holds(self, action: str) -> bool:  # noqa: ARG002 - for the screen on which keys wait
        """Keep an action, as its key is bound to it, for later; False: it is to be done now."""
        return False

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        if isinstance(message, messages.Notice):
            self.notice(message.line)

    async def on_event(self, event: Event) -> None:
        """Leave out the mount of a screen that was taken away before its parts came: there is nothing to fill."""
        if not isinstance(event, Mount) or self in self.app.screen_stack:
            await super().on_event(event)

    def on_mount(self) -> None:
        """Write what stands where there is no room for the rest."""
        self._laid_out = True
        self.query_one("#small", Lines).show(
            [("too small for labassist:", "plain")],
            [("it needs 40 by 10 cells", "plain")],
        )
        if self.lab.slow:
            for chart in self.query("ChartView"):
                chart.wait = self.lab.pace.chart  # type: ignore[attr-defined]

    def tell(self, message: Message) -> None:
        """Hear now, or when this screen is in front again: Textual would repaint all for a screen behind."""
        if self.app.screen is self and self.stands():
            self._hear_missed()
            self.hear(message)
        elif isinstance(message, KEPT):
            if isinstance(message, NEWEST):
                self._missed = [one for one in self._missed if type(one) is not type(message)]
            self._missed.append(message)  # a curve must not miss points while the help is read

    def stands(self) -> bool:
        """Say whether the parts are there: not before they are laid out, nor while they are taken away."""
        parts = self.query("#body *")
        return self._laid_out and self.is_attached and bool(parts) and all(one.is_mounted for one in parts)

    def _hear_missed(self) -> None:
        missed, self._missed = self._missed, []
        for message in missed:
            self.hear(message)

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was in front."""
        self.lab.follow()
        if self.stands():
            self._hear_missed()
            self.catch_up()
            self.refresh_lines()

    def catch_up(self) -> None:
        """Show what the app knows now."""

    def started(self, run: str) -> bool:  # noqa: ARG002 - for the screens that start runs
        """Take the run that this screen asked for; False where it asked for none."""
        return False

    def on_prompt_typed(self) -> None:
        """Take away what was said of the line before."""
        self.notice([])

    def on_prompt_closed(self) -> None:
        """Give the keys back to the screen."""
        self.focus_main()
        self.refresh_lines()

    def on_prompt_given(self, message: Prompt.Given) -> None:
        """Take a price and limits; other lines are their screens' own."""
        from labassist.app import terms
        from labassist.app.widgets.prompt import Prompt

        if message.purpose != terms.PURPOSE:
            return
        try:
            self.lab.terms = terms.read(self.lab.workspace.root, message.text)
        except InputError as error:
            self.notice([("! ", "bad"), (str(error), "plain")])
            self.query_one(Prompt).again(message.text)
        else:
            self.notice([(self.lab.terms.said or "no price and no limits", "plain")])
            self.catch_up()
            self.refresh_lines()

    def focus_main(self) -> None:
        """Give the keys to the part of this screen that one works with."""
        found = self.query(self.AUTO_FOCUS)
        self.set_focus(found.first(Widget) if found else None)

    def on_descendant_focus(self) -> None:
        """Show the keys of what is typed into now."""
        self.refresh_lines()

    def on_resize(self) -> None:
        """Fit title and keys to the width."""
        self.call_after_refresh(self.refresh_lines)

    def notice(self, line: Line) -> None:
        """Show news in at most three lines; an empty line clears them."""
        root = str(self.lab.workspace.root)
        line = [(text.replace(f"{root}/", "").replace(root, "this workspace"), kind) for text, kind in line]
        lines = folded([line], max(20, self.size.width - 2))[:3]
        widget = self.lines("#notice")
        widget.styles.height = max(1, len(lines))
        widget.show(*lines)

    def answered(self, message: messages.Answered, well: str) -> None:
        """Say how a command ended: `well`, or why it could not be done."""
        self.notice([("! ", "bad"), (message.problem, "plain")] if message.problem else [(well, "plain")])

    def exported(self, message: messages.Answered) -> None:
        """Say where the page lies that `x` asked for, from the workspace on where it lies in it."""
        path = message.document["path"] if message.document else ""
        self.answered(
            message, f"written: {path.removeprefix(f'{self.lab.workspace.root}/')}; open it in a browser"
        )

    def lines(self, selector: str) -> Lines:
        """Return one of this screen's text widgets."""
        return self.query_one(selector, Lines)

    def refresh_lines(self) -> None:
        """Write the title and the bottom line anew."""
        if not self._laid_out:
            return
        self.lines("#title").show(fitted(self.title_line(), max(0, self.size.width - 2)))
        self.lines("#keys").show(self.key_line(max(0, self.size.width - 2)))

    def key_line(self, width: int) -> Line:
        """Return the keys that work now; the last two (help and the way out) always have room."""
        if self.typing:
            taking: list[Line] = [[("enter", "key"), (f" {self.typing}", "plain")]]
            return fitted([*taking, [("esc", "key"), (" leave the line", "plain")]], width, "   ")
        parts: list[Line] = [
            [(self.key_names(action), "key"), (f" {self.label(action)}", "plain")]
            for action in sorted(actions.on(self.NAME), key=lambda one: one.name != self.foremost)
            if action.listed and self.can(action.method)
        ]
        last = parts[-2:]
        kept = sum(len(text) for part in last for text, _ in part) + 3 * len(last)
        first = fitted(parts[:-2], width - kept, "   ")
        return fitted([first, *last] if first else last, width, "   ")

    @property
    def foremost(self) -> str:
        """The action that the bottom line begins with; empty: in the order of the registry."""
        return ""

    @property
    def typing(self) -> str:
        """What enter does to the line that is typed now; empty while none is."""
        shown = self.query("#prompt.-shown")
        return str(shown.first().purpose) if shown else ""  # type: ignore[attr-defined]

    def key_names(self, action: actions.Action) -> str:
        """Return the keys that the bottom line names for an action."""
        return actions.keys(action)[0]

    def label(self, action: actions.Action) -> str:
        """Return what an action is called now."""
        return action.label

    def check_action(self, action: str, parameters: Parameters) -> bool | None:  # noqa: ARG002
        """Let only those actions run that the bottom line offers."""
        known = any(one.method == action for one in actions.on(self.NAME))
        return self.can(action) if known else True

    # --- what the keys do on every screen

    def action_back(self) -> None:
        """Go back one screen."""
        self.dismiss(None)

    def action_help(self) -> None:
        """Show every key."""
        from labassist.app.screens.help import HelpScreen

        self.app.push_screen(HelpScreen(self.NAME, self.focused))

    def action_ledger(self) -> None:
        """Open the ledger, or go back to it where it is open behind this screen."""
        from labassist.app.screens.ledger import LedgerScreen

        self.lab.show(LedgerScreen)

    def action_plan(self) -> None:
        """Open the planner."""
        from labassist.app.screens.plan import PlanScreen

        self.lab.show(PlanScreen)

    def action_checkpoints(self) -> None:
        """Open the checkpoints, at those of the run that is shown."""
        from labassist.app.screens.resume import ResumeScreen

        self.app.push_screen(ResumeScreen(getattr(self, "run", "")))

    def action_machine(self) -> None:
        """Open the machine's screen."""
        from labassist.app.screens.machine import MachineScreen

        self.lab.show(MachineScreen)

    def action_jobs(self) -> None:
        """Open the list of jobs."""
        from labassist.app.screens.jobs import JobsScreen

        self.lab.show(JobsScreen)

    def action_terms(self) -> None:
        """Ask for what an hour costs and where a run is to stop."""
        from labassist.app import terms
        from labassist.app.widgets.prompt import Prompt

        self.query_one(Prompt).ask(terms.PURPOSE, terms.TAKES, self.lab.terms.text)

    def action_read(self, way: int, by_cell: bool) -> None:
        """Move the cursor on this screen's chart."""
        self.query_one("ChartView").action_read(way, by_cell)  # type: ignore[attr-defined]

    def action_where(self) -> None:
        """Say where the numbers come from."""
        from labassist.app.screens.where import WhereScreen

        self.app.push_screen(WhereScreen(self.NAME, self.sources()))

    def action_commands(self) -> None:
        """List all that can be done now, and do what is chosen."""
        from labassist.app.screens.commands import CommandsScreen, commands

        def chosen(do: Callable[[], object] | None) -> None:
            if do is not None:
                self.call_later(do)

        self.app.push_screen(CommandsScreen(commands(self)), chosen)

    def copy(self, text: str) -> None:
        """Copy a text to the terminal's clipboard, and keep it in a file."""
        from labassist.app.clip import copy

        self.notice([("copied; also in ", "plain"), (str(copy(self.lab, text)), "strong")])

    def action_leave(self) -> None:
        """Leave the app."""
        self.lab.action_leave()
