"""Everything that can be done now, by name: type a part of it, enter does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from textual import on
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from labassist.app import actions, words
from labassist.app.actions import COMMANDS
from labassist.app.screens.base import LabScreen
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece

RECENT = 30
"""Runs that are offered by name; the ledger finds any other."""


class Command(NamedTuple):
    """One thing to do."""

    name: str
    """`area: verb`."""
    keys: str
    """The key that does it here, where there is one."""
    help: str
    do: Callable[[], object]


def commands(screen: LabScreen) -> list[Command]:
    """Return what can be done on a screen now, then the labs and the newest runs to go to."""
    found = [
        Command(
            f"{screen.NAME.lower()}: {screen.label(action)}",
            actions.keys(action)[0],
            action.help,
            _act(screen, action.name),
        )
        for action in actions.on(screen.NAME)
        if screen.can(action.method) and action.name != "commands"
    ]
    found += [Command(name, "", text, do) for name, text, do in screen.places()]
    lab = screen.lab
    for number, title in lab.lab_names().items():
        found.append(Command(f"lab: {title}", "", "Open the lab.", _open_lab(screen, number)))
    for run in list(lab.runs.runs if lab.runs else ())[: -RECENT - 1 : -1]:
        name = f"run: {words.short(run['id'])} {run['job']}"
        found.append(Command(name, "", f"Open the run: {run['state']}.", _open_run(screen, run["id"])))
    if screen.NAME != actions.COURSE:
        found.append(Command("app: course", "", "Go back to the course.", lab.go_home))
        found.append(Command("app: quit", "ctrl+q", "Leave the app. Runs go on.", lab.action_leave))
    return found


def _act(screen: LabScreen, action: str) -> Callable[[], object]:
    return lambda: screen.run_action(f"screen.{action}")


def _open_lab(screen: LabScreen, lab: str) -> Callable[[], object]:
    return lambda: screen.lab.open_lab(lab)


def _open_run(screen: LabScreen, run: str) -> Callable[[], object]:
    return lambda: screen.lab.open_run(run)


class CommandsScreen(LabScreen):
    """Returns what to do, or None."""

    NAME = COMMANDS
    AUTO_FOCUS = "Input"
    BINDINGS = [  # noqa: RUF012 - as Textual declares it
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
    ]

    def __init__(self, commands: Sequence[Command]) -> None:
        super().__init__()
        self._commands = commands

    def body(self) -> Iterable[Widget]:
        """Return the line to type into, and what fits."""
        yield Input(placeholder="a part of its name; enter does it", compact=True, id="part")
        yield Rows(
            (Column("what", 36), Column("key", 6), Column("", 0)),
            self._cells,
            cursor_sign=self.lab.signs.cursor,
            empty="nothing of that name",
            id="list",
        )

    def on_mount(self) -> None:
        """List all."""
        super().on_mount()
        self.query_one(Rows).show(self._commands)

    def title_line(self) -> list[Line]:
        """Return what this is."""
        return [[("All that can be done now", "strong")], [("type to find, enter does it", "dim")]]

    def action_move(self, by: int) -> None:
        """Highlight another command."""
        self.query_one(Rows).action_move(by)

    def action_page(self, by: int) -> None:
        """Go a screen up or down."""
        self.query_one(Rows).action_page(by)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        parts = event.value.lower().split()
        fitting = [one for one in self._commands if all(part in one.name.lower() for part in parts)]
        self.query_one(Rows).show(fitting, 0)

    @on(Input.Submitted)
    @on(Rows.Chosen)
    def _chosen(self) -> None:
        here: Command | None = self.query_one(Rows).here
        if here is not None:
            self.dismiss(here.do)

    def _cells(self, command: Command) -> list[Piece]:
        return [(command.name, "plain"), (command.keys, "key"), (command.help, "dim")]
