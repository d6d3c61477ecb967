"""Writes Python stacks to stderr: when a thread crashes, and when the host asks before it kills a guest that hangs.

`faulthandler` does both in signal handlers in C, so also while C code holds the interpreter's lock.
"""

from __future__ import annotations

import faulthandler

from naiad_stub.wire import STACKS_SIGNAL

_STDERR = 2


def write_stack_on_crash() -> None:
    """From now on write the stack of a thread that crashes: SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL.

    Of that thread alone: the server passes the last lines on to clients, and the other threads' would push out what the
    model wrote before. The process still ends by the signal, which the server names.
    """
    faulthandler.enable(file=_STDERR, all_threads=False)


def write_stacks_on_signal() -> None:
    """From now on write the stacks of all threads when STACKS_SIGNAL arrives."""
    faulthandler.register(STACKS_SIGNAL, file=_STDERR, all_threads=True)
