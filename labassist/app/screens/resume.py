"""Checkpoints: which there are, whether a resume from each is exact, and the experiments that prove it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual import on
from textual.containers import Container, Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widget import Widget

from labassist.app import checkpoints, messages, words
from labassist.app.actions import RESUME
from labassist.app.checkpoints import Checked, Place
from labassist.app.experiments import words_for
from labassist.app.runfacts import size
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.lines import Lines, fitted, folded
from labassist.app.widgets.pager import Pager
from labassist.app.widgets.prompt import Prompt
from labassist.app.widgets.rows import Column, Rows
from labassist.app.words import Line, Piece
from labassist.errors import InputError, counted

PLACES = (
    Column("made by", 0),
    Column("step", 7, right=True),
    Column("size", 8, right=True),
    Column("when", 6, right=True),
    Column("resume", 11),
    Column("go on", 9),
)
FINDINGS = (Column("finding", 24), Column("what", 0))

NONE = "no checkpoints yet; o looks at a folder from elsewhere"

PAUSE_S = 0.25
"""Seconds that the highlight rests before its folder is read: scrolling past starts nothing."""

CHECK = "ckpt check"
"""The errand's name: one check at a time, the newest."""


class ResumeScreen(LabScreen):
    """Lists checkpoints; shows six states and the findings of the highlighted one."""

    NAME = RESUME
    CSS_PATH: ClassVar[Any] = "resume.tcss"
    AUTO_FOCUS: ClassVar[str] = "#places"

    def __init__(self, run: str = "") -> None:
        """`run`: highlight this run's newest checkpoint first."""
        super().__init__()
        self._wanted = run
        self._known: list[Place] = []
        self._typed: list[Place] = []
        self._read = False
        self._checked: dict[Path, Checked] = {}
        self._asked: Path | None = None
        self._timer: Timer | None = None

    def body(self) -> Iterable[Widget]:
        """Return the list, the states, the findings, and the line to type a path into."""
        sign = self.lab.signs.cursor
        with Container(id="sides"):
            yield Rows(PLACES, self._place_cells, cursor_sign=sign, empty="reading", id="places")
            with Vertical(id="detail"):
                yield Lines(id="head")
                yield Lines(id="states")
                yield Rows(FINDINGS, self._finding_cells, cursor_sign=sign, id="findings")
                yield Pager(plain=self.lab.plain, id="finding")
        yield Prompt()

    def on_mount(self) -> None:
        """Ask which checkpoints there are."""
        super().on_mount()
        self.lab.desk.checkpoints()

    def on_unmount(self) -> None:
        """Give a check up that nobody waits for."""
        self.lab.desk.errands.drop(CHECK)

    def title_line(self) -> list[Line]:
        """Return how many there are, and which experiments go on."""
        count = len(self._known)
        parts: list[Line] = [
            [("Resume", "strong")],
            [(f"{counted(count, 'checkpoints')} in the ledger", "plain")],
        ]
        for name, told in self.lab.experiments.told.items():
            if self.lab.experiments.busy(name):
                parts.append([(f"{self.lab.signs.live} {name}: ", "good"), (told.phase, "plain")])
        return parts

    def can(self, action: str) -> bool:
        """Prove only what this ledger can run again."""
        place: Place | None = self.query_one("#places", Rows).here
        if action == "finding":
            return bool(self._findings()) and not self.has_class("-open")
        if action == "check":
            return place is not None and not place.over and not self._of(place).busy
        run = self._run(place)
        if action in ("prove", "ablate"):
            if run is None or (self.lab.runs and self.lab.runs.readonly):
                return False
            again = run["kind"] == "job" or not any("${" in word for word in run["argv"])
            return again and (action == "prove" or run["kind"] == "job")
        return True

    def hear(self, message: Message) -> None:
        """Take what the desk says."""
        super().hear(message)
        if isinstance(message, messages.CheckpointsRead):
            self._known, self._read = list(message.places), True
            self._list()
        elif isinstance(message, messages.Answered) and message.key == CHECK:
            self._answered(message)
        elif isinstance(message, messages.ExperimentMoved):
            self.refresh_lines()
        elif isinstance(message, messages.RunsChanged):
            self.catch_up()

    def catch_up(self) -> None:
        """Look for new checkpoints."""
        self.lab.desk.checkpoints()

    def on_resize(self) -> None:
        """Fit the texts."""
        super().on_resize()
        self.call_after_refresh(self._show)

    # --- keys

    def action_folder(self) -> None:
        """Type a path to look at."""
        self.query_one(Prompt).ask("look at it", "a checkpoint, or a folder of them: outputs/checkpoint-500")

    @on(Prompt.Given)
    def _given(self, event: Prompt.Given) -> None:
        if event.text:
            path = (self.lab.workspace.root / Path(event.text).expanduser()).resolve()
            self._checked.pop(path, None)
            self._typed = [Place(path, path)]
            self._list(path)
            self._ask()

    def action_check(self) -> None:
        """Read the folder again."""
        place: Place = self.query_one("#places", Rows).here
        self._checked.pop(place.folder, None)
        self._ask()

    @on(Rows.Chosen)
    def action_finding(self) -> None:
        """Go to the findings, or open the highlighted one."""
        table = self.query_one("#findings", Rows)
        if self.focused is not table:
            if table.rows:
                table.focus()
            return
        found = self._found()
        if found is not None and table.here is not None:
            pager = self.query_one(Pager)
            pager.show(checkpoints.finding_lines(table.here, found, self.lab.signs))
            pager.top()
            self.add_class("-open")
            pager.focus()
            self.refresh_lines()

    def action_back(self) -> None:
        """Close the finding, else leave the findings, else go back."""
        if self.has_class("-open"):
            self.remove_class("-open")
            self.query_one("#findings", Rows).focus()
            self.refresh_lines()
        elif self.focused is self.query_one("#findings", Rows):
            self.focus_main()
        else:
            super().action_back()

    def action_prove(self) -> None:
        """Run the job unbroken, interrupted and resumed, and compare every bit."""
        self._start("prove")

    def action_ablate(self) -> None:
        """Resume with each state left out in turn."""
        self._start("ablate")

    def _start(self, kind: str) -> None:
        from labassist.app.screens.experiment import ExperimentScreen
        from labassist.runs.jobs import load_job, resolve

        place: Place = self.query_one("#places", Rows).here
        run = self._run(place)
        if run is None:
            return
        defaults: Mapping[str, Any] = {}
        if run["kind"] == "job":
            try:
                defaults = resolve(load_job(self.lab.workspace, run["job"]), run.get("profile")).flat
            except InputError as error:
                self.notice([(f"{self.lab.signs.alarm} ", "bad"), (str(error), "plain")])
                return
        name = f"{kind} {words.short(run['id'])}@{place.step}"
        command = words_for(kind, run, defaults, place.step)
        cwd = self.lab.workspace.root / run["cwd"]
        self.lab.experiments.start(name, *command, cwd=cwd)
        self.app.push_screen(ExperimentScreen(name, command, cwd))

    def sources(self) -> list[Source]:
        """Return where the states come from."""
        place: Place | None = self.query_one("#places", Rows).here
        found = self._found()
        if place is None or found is None:
            return []
        asked = f"labassist ckpt check {place.folder}" + (" --quick" if self._of(place).quick else "")
        read = "the files themselves, read without running anything in them"
        return [
            Source("a resume is", found["verdict"], f"{asked}: the worst of its findings"),
            *(
                Source(state.replace("_", " "), presence.replace("_", " "), f"{asked}: {read}")
                for state, presence in found["states"].items()
            ),
        ]

    # --- the checks

    @on(Rows.Moved)
    def _moved(self) -> None:
        self._show()
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(PAUSE_S, self._ask)

    def _ask(self) -> None:
        """Have the highlighted one's folder read, unless it was."""
        place: Place | None = self.query_one("#places", Rows).here
        if place is None or place.over or place.folder in self._checked:
            return
        if self._asked is not None:
            del self._checked[self._asked]  # given up: the highlight is elsewhere now
        quick = checkpoints.quick(self._known, place.folder)
        self._checked[place.folder], self._asked = Checked(quick=quick), place.folder
        options = ("--quick",) if quick else ()
        self.lab.desk.errands.ask(CHECK, "ckpt", "check", str(place.folder), *options)
        self._show()

    def _answered(self, message: messages.Answered) -> None:
        folder, self._asked = self._asked, None
        if folder is None:
            return
        checked = self._checked[folder]
        checked.answer, checked.problem = message.document, message.problem
        if self._typed and self._typed[0].folder == folder and checked.answer is not None:
            self._typed = checkpoints.typed(folder, checked.answer)
        self._list(folder)

    def _of(self, place: Place) -> Checked:
        return self._checked.get(place.folder, Checked())

    def _found(self) -> Mapping[str, Any] | None:
        place: Place | None = self.query_one("#places", Rows).here
        return self._of(place).of(place.path) if place and not place.over else None

    def _findings(self) -> list[Mapping[str, Any]]:
        found = self._found()
        return list(found["findings"]) if found else []

    def _run(self, place: Place | None) -> Mapping[str, Any] | None:
        runs = self.lab.runs.runs if self.lab.runs and place and place.run else ()
        return next((run for run in runs if place and run["id"] == place.run), None)

    # --- what is shown

    def _list(self, folder: Path | None = None) -> None:
        """List every place, and stay on the one that is highlighted, or go to the first of a typed `folder`."""
        table = self.query_one("#places", Rows)
        if self._read and table.empty != NONE:
            table.empty = NONE
            table.refresh()
        here: Place | None = table.here
        rows = [*self._typed, *self._known]
        at = 0
        for index, place in enumerate(rows):
            if here is not None and place.same(here):
                at = index
                break
            if self._wanted and place.run == self._wanted:
                at, self._wanted = index, ""
                break
        if folder is not None and self._typed and self._typed[0].folder == folder:
            at = 0
        if self._read or self._typed:
            table.show(rows, at)

    def _show(self) -> None:
        table = self.query_one("#places", Rows)
        place: Place | None = table.here
        found = self._found()
        marks = self.lab.signs
        width = max(20, self.lines("#head").size.width)
        top: list[Line] = []
        below = checkpoints.states(found, marks) if found else []
        if place is not None:
            checked = self._of(place)
            if found is not None:
                parts = [[(place.path.name, "strong")], *checkpoints.head(found, marks)]
                if checked.quick:
                    parts.append([("sizes and structure only, no checksums", "warn")])
                top = [fitted(parts, width)]
            elif place.over:
                top = [[(f"{marks.no} ", "bad"), (place.path.name, "strong")]]
                why = f"Run {words.short(place.over)} wrote over it: the files there are of that run."
                below = folded([[(why, "plain")]], width)
            elif checked.problem:
                top = [[(f"{marks.no} ", "bad"), (place.path.name, "strong")]]
                below = folded([[(checked.problem, "plain")]], width)
            else:
                top = [[(f"{marks.live} reading ", "good"), (str(place.path), "dim")]]
        self.lines("#head").show(*top)
        if self.has_class("-wide") and self.has_class("-tall"):
            # Beside the list there are rows for whole sentences; each begins where its first row does.
            below = folded(below, width, indent=checkpoints.SAID_AT)
            self.lines("#states").styles.height = max(7, len(below)) + 1
        else:
            self.lines("#states").styles.height = None
        self.lines("#states").show(*below)
        findings = self.query_one("#findings", Rows)
        empty = "nothing to say against it" if found else ""
        if (findings.rows, findings.empty) != (self._findings(), empty):
            findings.empty = empty
            findings.show(self._findings(), 0)
            findings.refresh()
        table.repaint()
        self.refresh_lines()

    def _place_cells(self, place: Place) -> list[Piece]:
        marks = self.lab.signs
        checked = self._of(place)
        found = None if place.over else checked.of(place.path)
        run = self._run(place)
        if place.run:
            made = f"{words.short(place.run)}  {run['job'] if run else ''}"
        else:
            made = (
                str(place.path.relative_to(self.lab.workspace.root))
                if self._inside(place)
                else str(place.path)
            )
        verdict: Piece = ("reading" if place.folder == self._asked else "-", "dim")
        if place.over:
            verdict = (f"{marks.no} over", "dim")
        elif checked.problem:
            verdict = (f"{marks.no} none", "bad")
        elif found is not None:
            sign, kind = checkpoints.VERDICTS[found["verdict"]]
            verdict = (f"{getattr(marks, sign)} {found['verdict']}", kind)
        use = not place.over and checked.resumes_from(place.path)
        return [
            (made, "strong"),
            (f"{place.step:,}" if place.step is not None else "-", "plain"),
            (size(place.bytes) if place.bytes else "-", "plain"),
            (words.ago(place.time) if place.time else "-", "plain"),
            verdict,
            (f"{marks.live} from it" if use else "", "good"),
        ]

    def _inside(self, place: Place) -> bool:
        return place.path.is_relative_to(self.lab.workspace.root)

    def _finding_cells(self, one: Mapping[str, Any]) -> list[Piece]:
        sign, kind = checkpoints.SEVERITIES[one["severity"]]
        return [(f"{getattr(self.lab.signs, sign)} {one['code']}", kind), (one["message"], "plain")]
