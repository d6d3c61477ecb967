"""Threads, locks and waits of Python itself, bound before a model can replace them.

`gevent.monkey.patch_all()` and `eventlet.monkey_patch()` in a model replace the contents of `threading`, `_thread`,
`select`, `socket` and `time`: threads become greenlets of the thread that runs the model. The guest's own threads must
run while `execute` computes, and its locks must hold between threads. So modules that a guest uses after the model's
import take these names from here, and not from the standard library. `start_thread` needs no `threading.Thread`, whose
state is replaced too.
"""

from __future__ import annotations

import time
from _socket import socket as Socket  # noqa: N812 - a class
from _socket import socketpair as socket_pair
from _thread import LockType as Lock
from _thread import allocate_lock, get_ident, start_new_thread
from select import poll
from typing import Callable

__all__ = ["Lock", "Socket", "allocate_lock", "get_ident", "poll", "sleep", "socket_pair", "start_thread"]

sleep = time.sleep


def start_thread(function: Callable[[], None]) -> None:
    """Run *function* on a new thread, which does not keep the process from exiting."""
    start_new_thread(function, ())
