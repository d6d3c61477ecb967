"""A server in which no cycle is ever collected, and which says what its cycles hold.

    python uncollected.py SOCKET [OPTION ...]

It is `tritonserver OPTION ...` without Python's cyclic garbage collector, so that memory which only the collector would
free stays. Who connects to SOCKET gets a report as JSON: what a collection would have freed. With `--processes`, each
frontend process does the same, at a socket of its own beside SOCKET, named by its process id.
"""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_LONG = 64 << 10
"""Bytes from which a buffer counts as the data of a request."""
_collect = gc.collect

_FRONTEND = """
import os, runpy, sys
sys.path[:] = sys.argv[3:]
runpy.run_path({script!r})["never_collect"]({path!r} + "." + str(os.getpid()))
from naiad.server.further_process import main
main(int(sys.argv[2]))
"""


def never_collect(path: str) -> None:
    """Turn the collector off for good, and report at a socket what it would have freed."""
    stop_collecting()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_serve, args=[listener], daemon=True).start()


def stop_collecting() -> None:
    """Turn the collector off for good: the server turns it on when its modules are imported."""
    gc.disable()
    gc.enable = _nothing
    gc.collect = _nothing


def _nothing(*_: object, **__: object) -> int:
    return 0


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(garbage_report()).encode())


def garbage_report() -> dict[str, Any]:
    """What a collection frees: `bytes` in long buffers, `holders` of these, `frames` and `types` of the objects."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        _collect()
        garbage = gc.garbage[:]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    report = _described(garbage)
    garbage.clear()
    _collect()  # frees what was found
    return report


def _described(garbage: list[Any]) -> dict[str, Any]:
    buffers: dict[int, int] = {}
    holders: Counter[str] = Counter()
    frames: Counter[str] = Counter()
    types = Counter(type(each).__name__ for each in garbage)
    for each in garbage:
        if isinstance(each, TracebackType):
            code = each.tb_frame.f_code
            frames[f"{Path(code.co_filename).name}:{each.tb_lineno} {code.co_name}"] += 1
        elif isinstance(each, FrameType):
            frames[f"{Path(each.f_code.co_filename).name} {each.f_code.co_name}"] += 1
        for other in (each, *gc.get_referents(each)):
            size = _size_of(other)
            if size >= _LONG:
                buffers[id(other)] = size
                holders[type(each).__name__] += 1
    return {
        "objects": len(garbage),
        "bytes": sum(buffers.values()),
        "holders": holders.most_common(10),
        "frames": frames.most_common(20),
        "types": types.most_common(10),
    }


def _size_of(thing: object) -> int:
    """Bytes of a text, a buffer or an array."""
    if isinstance(thing, (bytes, bytearray, str)):
        return len(thing)
    size = getattr(thing, "nbytes", 0)
    return size if isinstance(size, int) else 0  # the class of arrays has a descriptor


def main() -> int:
    """Run `tritonserver` without a collector, and its frontend processes too."""
    del sys.path[0]  # this folder: its modules are not the server's
    path = sys.argv.pop(1)
    never_collect(path)
    from naiad.cli.main import main_tritonserver
    from naiad.server.processes import spawned

    code = _FRONTEND.format(script=__file__, path=path)

    def start(_function: str, descriptor: int, environ: Mapping[str, str], *, title: Sequence[str]) -> Any:
        """As `core.child_processes.start_own_code`."""
        command = [sys.executable, "-I", "-c", code, *title, str(descriptor), *filter(None, sys.path)]
        return subprocess.Popen(
            command, pass_fds=(descriptor,), env=dict(environ), stdin=subprocess.DEVNULL, start_new_session=True
        )

    spawned.start_own_code = start
    sys.argv[0] = "tritonserver"
    return main_tritonserver()


if __name__ == "__main__":
    sys.exit(main())
