"""Wait for one command, and write down how it ended.

Started by path (`python -I -S shim.py FOLDER ALIVE_FD KEEP -- CMD …`), so it needs the standard library
only and stays small. It outlives its supervisor: an adopted run still gets its exit status. While it
waits it holds the lock on `alive`; with KEEP=1 the command inherits the lock too, so that not even a
killed shim makes a living trainer look dead (only for our own trainers: a command that leaves a daemon
behind would look alive for ever).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time


def main(argv: list[str]) -> int:
    """Run the command behind `--` and return its status (128 + signal when it was killed)."""
    folder, alive, keep = argv[0], int(argv[1]), argv[2] == "1"
    command = argv[argv.index("--") + 1 :]
    child: subprocess.Popen[bytes] | None = None
    asked: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if child is None:
            asked.append(number)
        else:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(alive,) if keep else (),
            process_group=0,
            restore_signals=True,
            preexec_fn=_default_hangup,
        )
    except OSError as error:
        print(f"labassist: cannot start {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        _write_end(folder, {"exit": 127, "signal": None, "time": _now()})
        return 127
    os.ftruncate(alive, 0)
    os.pwrite(alive, json.dumps({"shim": os.getpid(), "trainer": child.pid}).encode(), 0)
    for number in asked:
        child.send_signal(number)
    status = child.wait()
    killed = -status if status < 0 else None
    _write_end(folder, {"exit": None if killed else status, "signal": killed, "time": _now()})
    return 128 + killed if killed else status


def _default_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _now() -> str:
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


def _write_end(folder: str, end: dict[str, object]) -> None:
    path = os.path.join(folder, "end.json")
    try:
        with open(path + ".tmp", "w") as file:
            json.dump(end, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
    except OSError as error:
        # A full disk still takes a few bytes where this file has its block already.
        with open(os.path.join(folder, "alive"), "r+b") as file:
            file.write(json.dumps({**end, "shim": os.getpid(), "trouble": error.strerror}).encode())
            file.truncate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
