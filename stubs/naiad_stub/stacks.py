"""Writes the Python stacks of all threads to stderr when the host asks for them by a signal.

`faulthandler` does that in its signal handler in C, so also while C code holds the interpreter's lock. The host asks
before it kills a guest that hangs.
"""

from __future__ import annotations

from naiad_stub.wire import STACKS_SIGNAL


def write_stacks_on_signal() -> None:
    """Begin to react to STACKS_SIGNAL."""
    import faulthandler  # here: only guests with a limit for hangs need it

    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
