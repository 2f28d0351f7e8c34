"""The first lab's job on a leash: it waits at a step for as long as a test acts on it, however quick the machine is.

`Leash(lab)` puts the waiting into the job's script. A run or a replay that is started with `leash.env` in the
environment records the leash's step and waits there, alive, until it is given more (`upto`, `free`), asked to stop, or
killed. Inside a save it waits where `hold_save` says so.
"""

from __future__ import annotations

import os
from pathlib import Path

FAR = 10**9

LINE = "        log.record(step, loss=mean, lr=rate, grad_norm=norm, batch=record.digest(torch.cat(drawn)))\n"

HELD = """\
        import os, time

        leash = os.environ.get("TEST_LEASH")
        if leash:
            saved, fsync = (int(word) for word in open(leash + "-save").read().split())
            if step == saved:
                recorder.wait()  # the save before it is whole
                calls, real = iter(range(fsync)), os.fsync
                os.fsync = lambda file: time.sleep(600) if next(calls, None) is None else real(file)
            for _ in range(60_000):  # ten minutes or so: nothing outlives a test that failed for ever
                if step < int(open(leash).read()) or recorder.stop_requested:
                    break
                time.sleep(0.01)
"""


class Leash:
    """How far the runs of a lab may go that are on it: up to step 58 at first, which is short of QUICK's 60."""

    def __init__(self, lab: Path, folder: Path | None = None) -> None:
        """Put a lab's job on a leash whose files lie in `folder`, else beside the lab."""
        self.lab = lab
        self._file = (folder or lab.parent) / f"{lab.name}-leash"
        self.env = {"TEST_LEASH": str(self._file)}
        script = lab / "labs" / "01-first-loop" / "train.py"
        text = script.read_text()
        assert LINE in text
        script.write_text(text.replace(LINE, LINE + HELD))
        self.hold_save(0)
        self.upto(58)

    def upto(self, step: int) -> None:
        """Let the runs go on, and wait once they have recorded `step`."""
        _put(self._file, str(step))

    def free(self) -> None:
        """Let the runs go to their end."""
        self.upto(FAR)

    def hold_save(self, step: int, fsync: int = 0) -> None:
        """Have the save at `step` hang once so many of its fsyncs are done; 0: no save."""
        _put(Path(f"{self._file}-save"), f"{step} {fsync}")


def _put(path: Path, text: str) -> None:
    """Write the file in one step: a run that reads it finds the old text or the new one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)
