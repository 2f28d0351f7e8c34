"""What every screen has: a title, a body, a line of news, and a bottom line with the keys that work now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from labassist.app import actions, messages
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.words import Line

if TYPE_CHECKING:
    from labassist.app.app import LabApp

Parameters = tuple[object, ...]


class LabScreen(Screen[Any]):
    """One screen of the app. It hears from the desk through `hear`, and offers what `can` allows."""

    NAME: ClassVar[str] = ""
    """Its name in the registry of actions."""

    watching: Sequence[str] = ()
    """Runs that the desk follows while this screen is open."""

    AUTO_FOCUS = "Rows"

    def __init__(self) -> None:
        super().__init__()
        self._laid_out = False
        self._missed: list[messages.RunGrew] = []
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

    def can(self, action: str) -> bool:  # noqa: ARG002 - what the screens decide by
        """Say whether an action makes sense now; the bottom line shows only those."""
        return True

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        if isinstance(message, messages.Notice):
            self.notice(message.line)

    def on_mount(self) -> None:
        """Write what stands where there is no room for the rest."""
        self._laid_out = True
        self.query_one("#small", Lines).show(
            [("too small for labassist:", "plain")],
            [("it needs 40 by 10 cells", "plain")],
        )

    def tell(self, message: Message) -> None:
        """Hear now, or when this screen is in front again: Textual would repaint all for a screen behind."""
        if self.app.screen is self and self._stands():
            self.hear(message)
        elif isinstance(message, messages.RunGrew):
            self._missed.append(message)  # a curve must not miss points while the help is read

    def _stands(self) -> bool:
        """Say whether the parts are there: not before they are laid out, nor while they are taken away."""
        return self._laid_out and self.is_attached and bool(self.query("#body > *"))

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was in front."""
        self.lab.follow()
        if self._stands():
            missed, self._missed = self._missed, []
            for message in missed:
                self.hear(message)
            self.catch_up()
            self.refresh_lines()

    def catch_up(self) -> None:
        """Show what the app knows now."""

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
        parts: list[Line] = [
            [(actions.keys(action)[0], "key"), (f" {action.label}", "plain")]
            for action in actions.on(self.NAME)
            if self.can(action.name)
        ]
        last = parts[-2:]
        kept = sum(len(text) for part in last for text, _ in part) + 3 * len(last)
        first = fitted(parts[:-2], width - kept, "   ")
        return fitted([first, *last] if first else last, width, "   ")

    def check_action(self, action: str, parameters: Parameters) -> bool | None:  # noqa: ARG002
        """Let only those actions run that the bottom line offers."""
        known = any(one.name == action for one in actions.on(self.NAME))
        return self.can(action) if known else True

    def action_back(self) -> None:
        """Go back one screen."""
        self.dismiss(None)

    def action_help(self) -> None:
        """Show every key."""
        from labassist.app.screens.help import HelpScreen

        self.app.push_screen(HelpScreen())

    def action_ledger(self) -> None:
        """Open the ledger, or go back to it where it is open behind this screen."""
        from labassist.app.screens.ledger import LedgerScreen

        if any(isinstance(screen, LedgerScreen) for screen in self.app.screen_stack):
            self.dismiss(None)
        else:
            self.app.push_screen(LedgerScreen())

    def action_leave(self) -> None:
        """Leave the app."""
        self.lab.action_leave()
