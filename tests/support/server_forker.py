"""A process that has imported the server, and forks: each fork is a server as the command `tritonserver` starts it.

The tests start seven hundred servers, and each would spend half a second of CPU on imports. Messages are lines of JSON
on the socket whose descriptor is the only argument: see `forked_servers`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from typing import Any

_MODULES = (
    "naiad.cli.main",
    "naiad.cli.serve",
    "naiad.server.app",
    "naiad.server.listeners",
    "naiad.server.coordinator",
    "uvloop",
)


def main() -> None:
    """Fork servers until the tests close the socket."""
    messages = socket.socket(fileno=int(sys.argv[1]))
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection would touch, and so copy, the pages of all objects
    wakeup, woken = socket.socketpair()
    for each in (wakeup, woken):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno())
    selector = selectors.DefaultSelector()
    selector.register(messages, selectors.EVENT_READ)
    selector.register(wakeup, selectors.EVENT_READ)
    received = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj is wakeup:
                wakeup.recv(4096)
                _report_ends(messages)
                continue
            data = messages.recv(1 << 16)
            if not data:
                return
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    for each in (messages, wakeup, woken):
                        each.close()
                    _become_server(order)
                _send(messages, {"started": order["number"], "pid": pid})


def _report_ends(messages: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _send(messages, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(messages: socket.socket, content: dict[str, Any]) -> None:
    messages.sendall(json.dumps(content).encode() + b"\n")


def _become_server(order: dict[str, Any]) -> None:
    from naiad.cli.main import main_tritonserver

    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    tempfile.tempdir = None  # it depends on the environment
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, standard)
    os.close(log)
    os.close(nothing)
    sys.argv = order["command"]
    sys.exit(main_tritonserver())


if __name__ == "__main__":
    main()
