"""Everything that the app reads, in one thread of its own: the ledger, the watched runs, the machine.

Screens ask (`watch`, `find`, `start` …) and get messages back. Nothing heavy is imported before `start`, and a
file that takes its time never holds up a key.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from textual.message import Message

from labassist.app import messages
from labassist.app.command import CommandFailed, Replay, ask
from labassist.app.errands import Errands
from labassist.app.pace import NORMAL, Pace
from labassist.errors import InputError, LabError
from labassist.workspace import Workspace

if TYPE_CHECKING:
    from labassist.app.watch import RunWatch
    from labassist.ledger.store import Ledger


class Desk:
    """Posts what changes. Only `post` crosses into the app's thread."""

    def __init__(self, workspace: Workspace, post: Callable[[Message], object], pace: Pace = NORMAL) -> None:
        self.workspace = workspace
        self._pace = pace
        self.errands = Errands(workspace.root, post)
        """Commands whose answer a screen waits for."""
        self._post = post
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ledger: Ledger | None = None
        self._machine_id = ""
        self._seen = -1
        self._lives: dict[str, str] = {}
        self._runs: list[dict[str, Any]] = []
        self._watched: dict[str, RunWatch] = {}
        self._replays: dict[str, Replay] = {}
        self._phases: dict[str, str] = {}
        self._sampler: Any = None
        self._sampled = 0.0
        self._rescued = 0.0
        self._labs: dict[str, int] | None = None
        """The time of each lab.toml of the workspace, by its path; None until they are looked at."""

    # --- asked by screens, on the app's thread

    def start(self) -> None:
        """Begin to read. The thread is a daemon: a file system that hangs does not keep the app from ending."""
        threading.Thread(target=self._work, name="labassist-desk", daemon=True).start()

    def stop(self) -> None:
        """End the thread at its next moment."""
        self._asked.put(None)

    def watch(self, runs: Iterable[str], afresh: Iterable[str] = ()) -> None:
        """Follow exactly these runs from now on; a new one, and those `afresh`, are told from the beginning."""
        wanted, again = list(dict.fromkeys(runs)), set(afresh)
        self._asked.put(lambda: self._watch(wanted, again))

    def find(self, text: str) -> None:
        """Answer with `Found`."""
        self._asked.put(lambda: self._find(text))

    def checkpoints(self) -> None:
        """Answer with `CheckpointsRead`."""
        self._asked.put(self._checkpoints)

    def detail(self, run: str) -> None:
        """Answer with `RunDetail`."""
        self._asked.put(lambda: self._detail(run))

    def begin(self, *words: str) -> None:
        """Start a run by the words of its command, as `run JOB --profile tiny`; answers with `RunStarted` or a notice."""
        self._aside(lambda: self._begin(words))

    def replay(self, run: str) -> None:
        """Start a replay; answers with `ReplayMoved` until it has ended. One at a time for a run."""
        self._asked.put(lambda: self._replay(run))

    def end(self, run: str) -> None:
        """Ask a run for a checkpoint and its end."""
        self._asked.put(lambda: self._end(run))

    # --- in the thread

    def _work(self) -> None:
        due = time.monotonic()
        while True:
            try:
                wait = max(0.0, due - time.monotonic())
                asked = self._asked.get(timeout=wait)
            except queue.Empty:
                due = time.monotonic() + self._pace.look
                self._guarded(self._tick)
                continue
            if asked is None:
                return
            self._guarded(asked)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except LabError as error:
            self._complain(str(error))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self._complain(f"{where}{error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - or the thread would end, and the screen stand still, without a word
            self._complain(f"internal error, a bug in labassist: {type(error).__name__}: {error}")

    def _complain(self, line: str) -> None:
        for folder, name in ((self.workspace.root, "workspace"), (self.workspace.ledger, "ledger")):
            if self._ledger is not None and not folder.is_dir():
                line = f"{folder}: the {name} was moved or deleted; put it back, or leave and start again where it is"
                break
        self._post(messages.Notice([("! ", "bad"), (line, "plain")]))

    def _tick(self) -> None:
        ledger = self._open()
        self._look(ledger)
        self._poll_watched()
        self._poll_replays()
        if time.monotonic() - self._sampled > self._pace.machine:
            self._sampled = time.monotonic()
            self._sample()
            self._look_at_labs()

    def _look_at_labs(self) -> None:
        """Ask for the course again where a lab.toml was written, put in or taken away."""
        found: dict[str, int] = {}
        for path in self.workspace.labs.glob("*/lab.toml"):
            with contextlib.suppress(FileNotFoundError):  # taken away since it was listed
                found[str(path)] = path.stat().st_mtime_ns
        before, self._labs = self._labs, found
        if before is not None and found != before:
            self.errands.ask("labs", "labs")

    def _sample(self) -> None:
        if self._sampler is None:
            from labassist.machine.sample import Sampler

            self._sampler = Sampler(self.workspace.root)
        self._post(messages.MachineSampled(self._sampler.sample()))

    def _open(self) -> Ledger:
        if self._ledger is None:
            from labassist.ledger.environment import machine
            from labassist.ledger.store import Ledger

            self._ledger = Ledger.open(self.workspace.ledger, create=True)
            self._machine_id = machine().id
        return self._ledger

    def _look(self, ledger: Ledger) -> None:
        """Post the runs where the journal has grown or a life has changed; rescue what nobody watches."""
        from labassist.ledger.database import JournalStorage
        from labassist.ledger.names import by_creation
        from labassist.ledger.view import RUNS
        from labassist.runs import life

        ledger.journal.refresh()
        grown = ledger.journal.entries != self._seen
        if grown:
            self._seen = ledger.journal.entries
            storage = ledger.db.storage
            assert isinstance(storage, JournalStorage)
            self._runs = by_creation(row for row in storage.live()[RUNS].values() if "id" in row)
        lives: dict[str, str] = {}
        alone = False
        for document in self._runs:
            if document["state"] == "running":
                folder = ledger.run_folder(document["id"])
                lives[document["id"]] = life.life(folder, document, self._machine_id)
                alone = alone or (lives[document["id"]] != "unseen" and not life.held(folder / "supervised"))
        if alone and not ledger.readonly:
            self._rescue()
        if grown or lives != self._lives:
            self._lives = lives
            replays: dict[str, messages.Document] = {
                row["replay_of"]: row for row in self._runs if row.get("replay_of")
            }
            self._post(messages.RunsChanged(self._runs, lives, replays, ledger.readonly))

    def _rescue(self) -> None:
        """Let a labassist process adopt or close what was left behind, as each does at its start."""
        if time.monotonic() - self._rescued > 5.0:
            self._rescued = time.monotonic()
            self._aside(lambda: ask(self.workspace.root, "attach"))

    def _watch(self, runs: Sequence[str], afresh: set[str]) -> None:
        from labassist.app.watch import RunWatch

        ledger = self._open()
        known = {run: watch for run, watch in self._watched.items() if run not in afresh}
        self._watched = {run: known.get(run) or RunWatch(ledger, run, self._machine_id) for run in runs}
        self._poll_watched()

    def _poll_watched(self) -> None:
        for run, watch in list(self._watched.items()):
            try:
                for news in watch.poll():
                    self._post(news)
            except LabError as error:
                del self._watched[run]
                self._complain(str(error))

    def _find(self, text: str) -> None:
        try:
            self._post(messages.Found(text, matching(self._runs, text)))
        except InputError as error:
            self._post(messages.Found(text, [], str(error)))

    def _checkpoints(self) -> None:
        from labassist.app.checkpoints import read_checkpoints

        self._post(read_checkpoints(self._open()))

    def _detail(self, run: str) -> None:
        from labassist.app.detail import read_detail

        self._post(read_detail(self._open(), self._runs, run))

    def _begin(self, words: Sequence[str]) -> None:
        document = ask(self.workspace.root, words[0], "--detach", *words[1:])
        self._post(messages.RunStarted(document["id"]))

    def _replay(self, run: str) -> None:
        if run not in self._replays:
            self._replays[run] = Replay(self.workspace.root, run)
            self._phases[run] = ""
            self._poll_replays()

    def _poll_replays(self) -> None:
        for run, replay in list(self._replays.items()):
            ended, answer, said = replay.poll()
            if ended:
                del self._replays[run]
                self._look(self._open())
                self._post(messages.ReplayMoved(run, "", answer, "" if answer else said))
            elif said != self._phases[run]:
                self._phases[run] = said
                self._post(messages.ReplayMoved(run, said))

    def _end(self, run: str) -> None:
        from labassist.runs import life

        folder = self._open().run_folder(run)
        said = "asked for a checkpoint and its end" if life.ask_to_stop(folder) else "it is not alive"
        self._post(messages.Notice([(f"run {run}: {said}", "plain")]))

    def _aside(self, work: Callable[[], object]) -> None:
        """Do what takes a second beside the looking."""

        def guarded() -> None:
            try:
                work()
            except CommandFailed as error:
                self._complain(str(error))
            except OSError as error:
                self._complain(error.strerror or str(error))

        threading.Thread(target=guarded, name="labassist-aside", daemon=True).start()


def matching(runs: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the runs that fit every word: an expression of `ledger.search`, or a text found in what a list shows.

    Raises InputError for an expression that cannot be read.
    """
    import re

    from labassist.ledger.search import select

    words = re.sub(r"\s*(<=|>=|!=|=|<|>|~)\s*", r"\1", text).split()
    expressions = [word for word in words if re.search(r"[<>=~]", word)]
    try:
        found = select(runs, expressions)
    except InputError as error:
        expression = error.where.removeprefix("--where ")
        mend = "write it as in lr>1e-4, state=failed or job~train"
        raise InputError(error.what, where=f"find {expression}", mend=mend) from None
    for word in words:
        if word not in expressions:
            low = word.lower()
            found = [run for run in found if low in _text(run)]
    return found


def _text(run: dict[str, Any]) -> str:
    verdict = (run.get("verdict") or {}).get("verdict", "")
    names = (run["id"], run["job"], run.get("profile", ""), run["state"], run["mode"])
    parts = (*names, run.get("note", ""), verdict)
    return " ".join(parts).lower()
