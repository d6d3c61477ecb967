"""Keys that a person presses in a terminal while a command redraws it."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Keys", "single_keys"]

_NAMES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "k": "up",
    "j": "down",
    " ": "page down",
    "b": "page up",
    "g": "home",
    "G": "end",
}
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
"""One key: the sequence of a key without a letter (ECMA-48, section 5.4), or a letter."""


class Keys:
    """Reads keys one by one; without a terminal there are none."""

    def __init__(self, terminal: int | None) -> None:
        """Read from *terminal*, the descriptor of one that does not wait for a line."""
        self._terminal = terminal
        self._waiting: deque[str] = deque()

    def read(self, seconds: float) -> str:
        """The next key: a letter, or the name of another key; empty if none is pressed for that time."""
        if not self._waiting and self._terminal is None:
            time.sleep(seconds)
        elif not self._waiting and self._terminal is not None and select.select([self._terminal], [], [], seconds)[0]:
            text = os.read(self._terminal, 256).decode("utf-8", "replace")
            self._waiting.extend(_NAMES.get(key, key) for key in _KEY.findall(text))
        return self._waiting.popleft() if self._waiting else ""


@contextmanager
def single_keys() -> Iterator[Keys]:
    """The keys of the terminal, which does not wait for whole lines until the context is closed.

    Ctrl-C still interrupts.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield Keys(None)
        return
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield Keys(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)
