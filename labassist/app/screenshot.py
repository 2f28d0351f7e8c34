"""Pictures of the app: the golden path in a workspace of its own, as SVG files, at 80x24 and 160x50.

python -m labassist.app.screenshot DIR
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path

from textual.pilot import Pilot

from labassist.app.app import LabApp
from labassist.app.widgets.lines import Lines
from labassist.app.widgets.pager import Pager
from labassist.errors import LabError
from labassist.workspace import Workspace, new

SIZES = ((80, 24), (160, 50))

STEPS = (
    ("course", (), "#keys", "enter open"),
    ("commands", ("colon",), "#keys", "esc back"),
    ("lab-text", (*"lab:", "space", *"01", "enter"), "#keys", "n read, next"),
    ("lab-question", ("n",), "#ask", "Predict first"),
    ("lab-guess", ("c",), "#ask", "Your guess"),
    ("lab-run", ("space",), "#pace", "left"),
    ("lab-check", (), "#check", "expected"),
    ("run", ("o",), "#progress", "in all"),
    ("replay", ("r",), "#verdict", "losses so far|compared"),
    ("verdict", (), "#verdict", "compared"),
    ("config", ("3",), "#page", "optim.lr"),
    ("lineage", ("5",), "#page", "BITWISE"),
    ("where", ("w",), "#whole", "ledger"),
    ("ledger", ("escape", "l"), "#keys", "enter open"),
    ("compare", ("space", "down", "space", "d"), "#page", "the same"),
    ("audit", ("escape", "a"), "#list", "checked"),
    ("machine", ("escape", "m"), "#list", "Host"),
    ("help", ("question_mark",), "#keys", "esc back"),
    ("jobs", ("escape", "escape", "escape", "escape", "escape", "s"), "#keys", "enter run"),
    ("profiles", ("colon", *"01-first-loop/train", "enter"), "#keys", "enter start"),
    ("plan", ("escape", "escape", "p"), "#answer", "FITS"),
    ("plan-full", ("down", "left", "left"), "#answer", "DOES NOT FIT"),
    ("checkpoints", ("escape", "c"), "#head", "EXACT"),
    ("prove", ("down", "down", "p"), "#said", "BITWISE"),
)
PATIENCE_S = 300.0


async def take(workspace: Workspace, folder: Path, size: tuple[int, int]) -> list[Path]:
    """Play the golden path at one size and return the pictures. Raises LabError where it does not get on."""
    app = LabApp(workspace)
    taken = []
    async with app.run_test(size=size) as pilot:
        while app.runs is None or app.machine is None:
            await pilot.pause(0.1)
        for name, keys, widget, text in STEPS:
            await pilot.press(*keys)
            await _until(pilot, app, widget, text)
            await pilot.pause(0.6)
            taken.append(folder / f"{name}-{size[0]}x{size[1]}.svg")
            app.save_screenshot(taken[-1].name, str(folder))
    return taken


async def _until(pilot: Pilot[int], app: LabApp, widget: str, text: str) -> None:
    end = time.monotonic() + PATIENCE_S

    def there() -> bool:
        parts = app.screen.query(widget)
        shown = [part.text for part in parts if isinstance(part, (Lines, Pager))]
        return any(re.search(text, one) for one in shown)

    while not there():
        if time.monotonic() > end:
            raise LabError(f"{text!r} did not come up in {PATIENCE_S:g} s", where=f"screen {app.screen}")
        await pilot.pause(0.1)


def main() -> int:
    """Take every picture and print where it lies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the pictures go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        with tempfile.TemporaryDirectory() as scratch:
            workspace = new(Path(scratch) / "my-lab").workspace
            for picture in asyncio.run(take(workspace, folder, size)):
                print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
