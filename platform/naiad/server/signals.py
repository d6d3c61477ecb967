"""What a server does when a signal arrives."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

logger = logging.getLogger("naiad.app")


def stop_on_signals(flush: Callable[[], object]) -> asyncio.Event:
    """An event that SIGINT and SIGTERM set; to be called on the running event loop.

    A further signal, while the event is set, ends the process by its default action, after *flush* has written the
    queued lines of the log. Guests and installers end with it.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stopping.is_set():
            logger.warning("signal %d again: ending at once", number)
            flush()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    return stopping


def call_on_hangup(*functions: Callable[[], None]) -> None:
    """Call *functions* on each SIGHUP, which programs that rotate files send.

    Only for a server with a log file or trace file: any other ends with its terminal, by the signal's default action.
    """

    def on_hangup() -> None:
        for function in functions:
            function()
        logger.info("SIGHUP: reopened the files")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)
