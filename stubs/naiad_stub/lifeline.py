"""What ties a process of ours to the one that started it: when it ends, and when it does not."""

from __future__ import annotations

import os
import signal
import threading

_PR_SET_PDEATHSIG = 1


def ignore_termination_signals() -> None:
    """Outlive the signals that service managers send to all processes of a service at once.

    By a handler that does nothing: processes that the model starts would inherit SIG_IGN, and then it could not
    `terminate` them.
    """
    usual = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    masks = threading.local()

    def hold() -> None:
        # What is sent to the child before it has its own handlers back must not be lost.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, usual)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=restore)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; elsewhere than on Linux a thread watches for it."""
    if os.uname().sysname == "Linux":
        import ctypes  # numpy imports it anyway

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        return

    def watch() -> None:
        import time

        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="naiad-parent", daemon=True).start()
