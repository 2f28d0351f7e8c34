"""Textual's terminal driver, made to end where it would spin or hang: no more input, a terminal that is gone."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
from collections.abc import Callable
from typing import Any

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

# Leave the alternate screen, show the cursor, wrap lines, and end what the driver asked the terminal for:
# the mouse, focus events, bracketed paste, in-band resize, the kitty keyboard protocol.
RESTORE = "\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[<u\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"

_WAIT_S = 0.1


class TerminalDriver(LinuxDriver):
    """Writes to stdout; at the end of its input it ends the app."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._hang_up: Callable[[int], None] = app.leave_for
        self._file = sys.__stdout__

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return width and height; of a terminal that tells none (0 by 0) those that its console assumes.

        Textual's own guess is a line shorter than its console's: it would lay the screen out anew for ever.
        """
        width, height = shutil.get_terminal_size(fallback=(80, 25))
        return width, height

    def run_input_thread(self) -> None:
        """Pass on what is typed until the app ends or there is no more input."""
        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while not self.exit_event.is_set():
            ready, _, _ = select.select([self.fileno], [], [], _WAIT_S)
            if ready:
                try:
                    data = os.read(self.fileno, 4096)
                except OSError:  # EIO: the other end of the pseudo-terminal is closed
                    data = b""
                if not data:
                    self._hang_up(signal.SIGHUP)
                    return
                for event in parser.feed(decode(data)):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)


def restore_terminal(attributes: list[Any] | None) -> None:
    """Bring the terminal back by hand, where the app cannot any more. Never blocks for long, never raises."""
    with contextlib.suppress(OSError, ValueError, termios.error):
        if attributes is not None:
            termios.tcsetattr(0, termios.TCSANOW, attributes)
    with contextlib.suppress(OSError, ValueError):
        os.set_blocking(1, False)
        os.write(1, RESTORE.encode())
        os.set_blocking(1, True)
