"""A process that has imported the server, and forks: each fork is a server as the command `tritonserver` starts it.

The tests start seven hundred servers, and each would spend half a second of CPU on imports. Messages are lines of JSON
on the socket whose descriptor is the only argument: see `forked_servers`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULES = (
    "naiad.cli.main",
    "naiad.cli.serve",
    "naiad.server.app",
    "naiad.server.listeners",
    "naiad.server.coordinator",
    "naiad.core.standard_streams",
    "naiad.protocol.numpy_types",
    "encodings.idna",
    "encodings.utf_8_sig",
    "numpy",
    "uvloop",
)


def main() -> None:
    """Fork servers until the tests close the socket."""
    messages = socket.socket(fileno=int(sys.argv[1]))
    for name in _MODULES:
        importlib.import_module(name)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    idle = importlib.import_module("support.idle")
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
                    _become_server(order, idle)
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


def _become_server(order: dict[str, Any], idle: ModuleType) -> None:
    from naiad.cli.main import main_tritonserver

    idle.report_at_end(order["mark"])
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    _load_management(os.environ.get("LD_LIBRARY_PATH", ""))
    tempfile.tempdir = None  # it depends on the environment
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, standard)
    os.close(log)
    os.close(nothing)
    sys.argv = order["command"]
    code = main_tritonserver()
    # What an interpreter does at its end, without the release of all objects: that would copy the pages of this fork.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _load_management(places: str) -> None:
    """Load the one library that the server itself looks up by its name.

    The loader reads LD_LIBRARY_PATH when a process starts, so a fork finds by name only what is loaded already.
    """
    for folder in filter(None, places.split(os.pathsep)):
        library = Path(folder, "libnvidia-ml.so.1")
        if library.exists():
            ctypes.CDLL(str(library))
            return


if __name__ == "__main__":
    main()
