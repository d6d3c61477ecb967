"""The end of a guest or fork server: with its parent, before the host if memory runs out, not by a service manager."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

from naiad_stub.primitives import sleep, start_thread

_PR_SET_PDEATHSIG = 1
_OOM_SCORE_FILE = "/proc/self/oom_score_adj"
_OOM_SCORE_ABOVE_HOST = 200
_MAX_OOM_SCORE = 1000


def ignore_termination_signals() -> None:
    """Ignore SIGINT and SIGTERM: service managers send them to all processes of a service, but the host ends guests.

    By a handler that does nothing and not by SIG_IGN: processes that the model starts would inherit SIG_IGN, and the
    model could not `terminate` them. Children by fork get the usual handlers back.
    """
    usual = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    masks = threading.local()

    def hold() -> None:
        # Signals to the child are blocked, not lost, until it has the usual handlers back.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, usual)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=restore)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent exits; on systems other than Linux a thread does."""
    if os.uname().sysname == "Linux":
        import ctypes  # numpy imports it anyway

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent exited before the line above
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1)
        os._exit(1)

    start_thread(watch)


def raise_oom_score() -> None:
    """Have the kernel kill this guest rather than the host when memory runs out; call it once per guest.

    The kernel chooses by memory use plus `oom_score_adj`, a thousandth of all memory per point. The value is inherited
    from the host and by processes that the model starts. Raising it needs no privilege.
    """
    with contextlib.suppress(OSError, ValueError):  # no Linux, or a sandbox without it
        with open(_OOM_SCORE_FILE) as file:
            score = int(file.read())
        with open(_OOM_SCORE_FILE, "w") as file:
            file.write(str(min(score + _OOM_SCORE_ABOVE_HOST, _MAX_OOM_SCORE)))
