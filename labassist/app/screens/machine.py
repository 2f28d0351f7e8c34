"""What the machine is doing: each GPU, and the host within its container's limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.message import Message
from textual.widget import Widget

from labassist.app import messages
from labassist.app.actions import MACHINE
from labassist.app.machinefacts import gpu_page, gpu_sources, host_page, host_sources
from labassist.app.screens.base import LabScreen
from labassist.app.where import Source
from labassist.app.widgets.pager import Pager
from labassist.app.words import Line
from labassist.errors import counted

if TYPE_CHECKING:
    from labassist.machine.throttle import ThrottleTime


class MachineScreen(LabScreen):
    """Shows the newest sample; counts throttling while it is open."""

    NAME = MACHINE
    AUTO_FOCUS = "Pager"

    def __init__(self) -> None:
        super().__init__()
        self._throttled: dict[int, ThrottleTime] = {}

    def body(self) -> Iterable[Widget]:
        """Return the page."""
        yield Pager(plain=self.lab.plain, id="list")

    def on_mount(self) -> None:
        """Show what is known."""
        super().on_mount()
        self.catch_up()

    def title_line(self) -> list[Line]:
        """Return how many GPUs there are."""
        seen = self.lab.machine
        if seen is None:
            return [[("Machine", "strong")], [("reading …", "dim")]]
        count = len(seen.sample.gpus)
        said = counted(count, "GPUs") if count else "no GPU"
        host = seen.sample.host.cores
        cores = counted(int(host), "cores") if host == int(host) else f"{host:g} cores"
        return [[("Machine", "strong")], [(said, "plain")], [(cores, "plain")]]

    def sources(self) -> list[Source]:
        """Return which file or driver call each reading comes from."""
        seen = self.lab.machine
        return [] if seen is None else gpu_sources(seen.sample) + host_sources(seen.sample.host)

    def hear(self, message: Message) -> None:
        """Take a sample."""
        super().hear(message)
        if isinstance(message, messages.MachineSampled):
            from labassist.machine.throttle import ThrottleTime

            for gpu in message.sample.gpus:
                counted = self._throttled.setdefault(gpu.index, ThrottleTime())
                counted.add(message.sample.time, gpu.throttle_bits)
            self.catch_up()
            self.refresh_lines()

    def on_resize(self) -> None:
        """Fit the bars."""
        super().on_resize()
        self.call_after_refresh(self.catch_up)

    def catch_up(self) -> None:
        """Show the newest sample."""
        seen = self.lab.machine
        if seen is None:
            self.query_one(Pager).show([[("reading the machine …", "dim")]])
            return
        marks, cells = self.lab.signs, max(10, min(40, self.size.width - 40))
        lines: list[Line] = []
        for gpu in seen.sample.gpus:
            lines += [*gpu_page(gpu, self._throttled.get(gpu.index), marks, cells), []]
        if not seen.sample.gpus:
            lines += [[("no GPU  ", "head"), (seen.sample.no_gpu, "plain")], []]
        self.query_one(Pager).show(lines + host_page(seen.sample.host, marks, cells))
