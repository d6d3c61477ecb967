"""Runs a model under a debugger, for `naiad run --debug`: pdb at the terminal, debugpy for an editor, gdb for C++."""
# ruff: noqa: T100 - debuggers are what this is for

from __future__ import annotations

import functools
import inspect
import sys
from importlib import import_module
from typing import Any, Callable

_METHODS = ("initialize", "execute")
_HOST = "127.0.0.1"
_PORT = 5678
_LOOK_SECONDS = 0.2
_ENTRY_POINT = "TRITONBACKEND_ModelInstanceExecute"


def attach(model_class: Any, debugger: str) -> None:
    """Have the model's methods stop in *debugger*: `pdb`, `debugpy` or `debugpy:PORT`.

    Raises:
        RuntimeError: If the debugger is not in the model's environment.
    """
    name, _, port = debugger.partition(":")
    if name == "debugpy":
        _listen(int(port or _PORT))
        return
    for method_name in _METHODS:
        method = getattr(model_class, method_name, None)
        if method is not None:
            setattr(model_class, method_name, _stopping(method))


def wait_for_gdb(library: str) -> None:
    """Print how to attach gdb to this process, and wait until it is attached or Enter is pressed."""
    import os
    import select

    pid = os.getpid()
    command = f"gdb -p {pid} -ex 'set breakpoint pending on' -ex 'break {_ENTRY_POINT}' -ex continue"
    sys.stderr.write(
        f"'{library}' is loaded into this process, pid {pid}, as soon as a debugger is attached:\n  {command}\n"
        "Press Enter to load it without one.\n"
    )
    sys.stderr.flush()
    while not _is_traced():
        if select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
            sys.stdin.readline()
            return


def _is_traced() -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in file)


def _listen(port: int) -> None:
    try:
        debugpy = import_module("debugpy")
    except ImportError as error:
        raise RuntimeError(
            f"debugpy is not in the environment of this model ({sys.executable}): install it there, or use --debug=pdb"
        ) from error
    debugpy.listen((_HOST, port))
    sys.stderr.write(f"waiting for a debugger on {_HOST}:{port}\n")
    sys.stderr.flush()
    debugpy.wait_for_client()


def _stopping(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, stopping at its first line each time, and where it raises."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def stop_later(*arguments: Any) -> Any:
            _stop_in_next_frame()
            try:
                return await method(*arguments)
            except BaseException:
                _look_at_failure()
                raise

        return stop_later

    @functools.wraps(method)
    def stop(*arguments: Any) -> Any:
        _stop_in_next_frame()
        try:
            return method(*arguments)
        except BaseException:
            _look_at_failure()
            raise

    return stop


def _stop_in_next_frame() -> None:
    """Have pdb stop at the first line of the next function that this thread calls."""
    import pdb

    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)


def _look_at_failure() -> None:
    """Show the model's exception in pdb, unless it is from quitting pdb."""
    import bdb
    import pdb

    kind, error, traceback = sys.exc_info()
    sys.settrace(None)
    if kind is None or issubclass(kind, bdb.BdbQuit) or traceback is None or traceback.tb_next is None:
        return
    sys.stderr.write(f"{kind.__name__}: {error}\n")
    sys.stderr.flush()
    pdb.post_mortem(traceback.tb_next)
