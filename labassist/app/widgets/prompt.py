"""One line to type into, at the bottom of a screen, hidden while nothing is asked."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class Prompt(Input):
    """Asks for one line. Posts `Given` on enter and `Closed` when it is left, either way."""

    DEFAULT_CSS = """
    Prompt { display: none; height: 1; padding: 0 2; }
    Prompt.-shown { display: block; }
    """

    KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("enter", "Take the line as it stands."),
        ("esc", "Leave the line; nothing is done."),
    )

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", show=False)]

    class Given(Message):
        """The line was taken."""

        def __init__(self, purpose: str, text: str) -> None:
            super().__init__()
            self.purpose = purpose
            self.text = text

    class Typed(Message):
        """A key was pressed in it: what was said of the line before is read."""

    class Closed(Message):
        """The line is hidden again."""

    def __init__(self) -> None:
        super().__init__(compact=True, id="prompt")
        self.purpose = ""
        """What is asked, in a word: `find`, `note`, `guess`."""

    @property
    def open(self) -> bool:
        """Whether it is shown."""
        return self.has_class("-shown")

    def ask(self, purpose: str, placeholder: str, text: str = "") -> None:
        """Show the line, with what may be typed as its placeholder, and take the keys."""
        self.purpose, self.placeholder, self.value = purpose, placeholder, text
        self._show(all_chosen=True)

    def again(self, text: str) -> None:
        """Show a line that was refused, to be mended at its end."""
        self.value = text
        self.cursor_position = len(text)
        self._show(all_chosen=False)

    def _show(self, *, all_chosen: bool) -> None:
        self.select_on_focus = all_chosen
        self.add_class("-shown")
        self.focus()

    def on_key(self) -> None:
        """Tell of the key; Input takes it."""
        self.post_message(self.Typed())

    def action_close(self) -> None:
        """Hide the line."""
        self.remove_class("-shown")
        self.post_message(self.Closed())

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_close()
        self.post_message(self.Given(self.purpose, event.value.strip()))
