"""Wait for one command, and write down how it ended.

Started by path (`python -I -S shim.py FOLDER ALIVE_FD KEEP -- CMD …`), so it needs the standard library
only and stays small. On its stdin it is told `{"env": the command's environment, "adopt": argv}`. It outlives
its supervisor: an adopted run still gets its exit status, and it is the shim that sees, by the lock on
`supervised`, that nobody watches any more, and calls `adopt`, so that the run's limits and the command at its
end need nobody at a keyboard.

While it waits it holds the lock on `alive`; with KEEP=1 the command inherits the lock too, so that not even a
killed shim makes a living trainer look dead (only for our own trainers: a command that leaves a daemon behind
would look alive for ever).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

LOOK_EVERY_S = 3.0
"""Seconds between two looks for a supervisor."""
LONGEST_PAUSE_S = 60.0


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
    told = json.load(sys.stdin)
    try:
        child = subprocess.Popen(
            command,
            env=told["env"],
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
    threading.Thread(target=_look, args=(folder, told["adopt"]), daemon=True).start()
    status = child.wait()
    killed = -status if status < 0 else None
    _write_end(folder, {"exit": None if killed else status, "signal": killed, "time": _now()})
    if _unwatched(folder):
        _adopt(folder, told["adopt"])
    return 128 + killed if killed else status


def _look(folder: str, adopt: list[str]) -> None:
    """Have the run adopted whenever its supervisor has gone; less often where that fails, as on a full disk."""
    pause = LOOK_EVERY_S
    while True:
        time.sleep(pause)
        if _unwatched(folder):
            _adopt(folder, adopt, wait=True)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        else:
            pause = LOOK_EVERY_S


def _unwatched(folder: str) -> bool:
    """Say whether nobody holds the lock on `supervised`."""
    try:
        lock = os.open(os.path.join(folder, "supervised"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # the folder is gone: there is no run to be watched
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _adopt(folder: str, adopt: list[str], *, wait: bool = False) -> None:
    """Start what takes the run over, with the supervisor's environment, which is ours."""
    path = os.path.join(folder, "supervisor.log")
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            started = subprocess.Popen(
                adopt, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        finally:
            os.close(log)
    except OSError as error:
        print(f"labassist: nobody watches, and none can be started: {error}", file=sys.stderr, flush=True)
        return
    if wait:
        started.wait()


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
