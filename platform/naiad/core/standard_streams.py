"""The standard streams: opened where a program was started without some of them; whether output can be written."""

from __future__ import annotations

import os
import sys

_NAMES = ("stdin", "stdout", "stderr")


def open_standard_streams() -> None:
    """Open `/dev/null` as each of stdin, stdout and stderr that is closed (`<&-`, some service managers and cron).

    The kernel gives the lowest free number to the next descriptor. Without this, a socket would become stdout: prints
    would be sent to a client, child processes would replace the socket by their own stream, and libuv, which refuses to
    close one of the three numbers, would abort the process.
    """
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # becomes *number*: all lower ones are open
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:  # Python found it closed when it started
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - lives as long as the process


def output_failure() -> OSError | None:
    """Why this program's output cannot be written; None if it can. BrokenPipeError: its reader is gone."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    return None
