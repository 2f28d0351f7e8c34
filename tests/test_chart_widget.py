from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Static

from labassist.app.widgets.chart import SHORTEST_WAIT, ChartView


class Counting(ChartView):
    """Notes which of its lines Textual asks for."""

    def __init__(self) -> None:
        super().__init__(total=1000)
        self.asked: list[int] = []

    def render_line(self, y: int) -> Strip:
        self.asked.append(y)
        return super().render_line(y)


class One(App[None]):
    CSS = "Counting { border: solid white; }"

    def compose(self) -> ComposeResult:
        yield Counting()
        yield Static("below")


def with_app(
    check: Callable[[Pilot[None], Counting], Awaitable[None]], size: tuple[int, int] = (80, 24)
) -> None:
    async def body() -> None:
        app = One()
        async with app.run_test(size=size) as pilot:
            await check(pilot, app.query_one(Counting))

    asyncio.run(body())


async def settled(pilot: Pilot[None]) -> None:
    """Wait until no repaint is due any more."""
    view = pilot.app.query_one(Counting)
    await pilot.pause()
    while view._timer is not None:
        await pilot.pause(SHORTEST_WAIT / 5)
    await pilot.pause()


def screen(pilot: Pilot[None]) -> list[str]:
    """What stands on the terminal, line by line."""
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()]


def wave(start: int, end: int) -> list[tuple[int, float]]:
    return [(x, 2.0 + math.sin(x / 50)) for x in range(start, end)]


def test_what_the_chart_says_stands_on_the_screen() -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        view.extend(wave(0, 500))
        await settled(pilot)
        lines = screen(pilot)
        assert lines[1].startswith("│loss 1.473 ")
        assert [line[1:79] for line in lines[2:22]] == view.chart.rows()
        assert any("⠀" < character <= "⣿" for character in lines[10])

    with_app(check)


def test_only_changed_lines_are_asked_for() -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        view.extend(wave(0, 500))
        await settled(pilot)
        view.asked.clear()
        view.append(500, 1.4)
        await settled(pilot)
        changed = set(view.asked)
        assert changed
        assert len(changed) < view.size.height / 2
        assert screen(pilot)[2:22] == [f"│{row}│" for row in view.chart.rows()]
        view.asked.clear()
        await settled(pilot)
        assert view.asked == []

    with_app(check)


def test_many_points_cost_few_paints() -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        await settled(pilot)
        view.asked.clear()
        for x, y in wave(0, 1000):
            view.append(x, y)
        await settled(pilot)
        assert len(view.asked) <= 3 * view.size.height
        assert view.chart.last == 999
        assert screen(pilot)[2:22] == [f"│{row}│" for row in view.chart.rows()]

    with_app(check)


@pytest.mark.parametrize("size", [(120, 40), (40, 12), (12, 6), (3, 3), (80, 24)])
def test_resizing_keeps_up(size: tuple[int, int]) -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        view.extend(wave(0, 500))
        await settled(pilot)
        await pilot.resize_terminal(*size)
        await settled(pilot)
        width, height = view.size
        if width and height:
            assert view.chart.width == width
            rows = view.chart.rows()
            words = height - len(rows)
            top = view.content_region.y + words
            shown = [line[1 : 1 + width] for line in screen(pilot)[top : top + len(rows)]]
            assert shown == rows[: len(shown)]
        view.append(501, 9.0)
        await settled(pilot)
        assert view.chart.at(501) == 9.0

    with_app(check)


def test_a_widget_without_cells_keeps_its_points() -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        await pilot.resize_terminal(2, 2)  # the border leaves nothing
        assert view.size == (0, 0)
        view.extend(wave(0, 500))
        await asyncio.sleep(2 * SHORTEST_WAIT)
        await pilot.resize_terminal(80, 24)
        await settled(pilot)
        assert screen(pilot)[2:22] == [f"│{row}│" for row in view.chart.rows()]
        assert view.chart.at(499) == wave(499, 500)[0][1]

    with_app(check)


def test_ascii_log_and_smoothed_are_reactive() -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        view.extend(wave(0, 500))
        await settled(pilot)
        view.ascii = True
        await settled(pilot)
        lines = screen(pilot)
        assert all(line[1:79].isascii() for line in lines[1:22])
        assert "|" in "".join(line[1:79] for line in lines[2:22])
        view.smoothed = True
        await settled(pilot)
        assert "o smoothed" in screen(pilot)[21]
        assert "(smoothed " in screen(pilot)[1]
        view.log_y = True
        view.total = 500
        await settled(pilot)
        lines = screen(pilot)
        assert "step 499/500" in lines[21]
        assert lines[2].startswith("│5 ")

    with_app(check)


def test_a_nan_has_a_style_of_its_own_and_more_series_than_colours_are_drawn() -> None:
    async def check(pilot: Pilot[None], view: Counting) -> None:
        view.append(1, math.nan)
        for index in range(5):
            view.extend([(x, float(index)) for x in range(0, 100, 10)], f"s{index}")
        await settled(pilot)
        strips = pilot.app.screen._compositor.render_strips()
        marks = [segment for strip in strips for segment in strip if segment.text == "!"]
        assert [segment.style.reverse for segment in marks if segment.style] == [True]
        assert "s4" in strips[1].text

    with_app(check)


def test_points_before_the_first_layout_are_kept() -> None:
    async def body() -> None:
        view = Counting()
        view.extend(wave(0, 100))
        app: App[None] = App()
        async with app.run_test(size=(60, 12)) as pilot:
            await app.mount(view)
            await settled(pilot)
            assert "step 99/1,000" in "".join(screen(pilot))
            view.clear()
            await settled(pilot)
            assert "step" not in "".join(screen(pilot))

    asyncio.run(body())
