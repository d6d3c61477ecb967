"""Child processes: starting one that runs code of this installation, and ending one with all that it has started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.core.blocking import on_cancel

_KEEPER = Path(__file__).with_name("_process_keeper.py")

_READ_BYTES = 1 << 16
_KEPT_BYTES = 4 << 20

_END_SECONDS = 5.0  # how long ending what a program has started may take: a process that the kernel holds does not end

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Threads of numpy would only reserve memory."""


def start_own_code(
    function: str, descriptor: int, environ: Mapping[str, str], *, title: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """A process of this Python that calls a function with the number of a descriptor, which it inherits."""
    module, _, name = function.partition(":")
    words = [*title, str(descriptor)]
    # Isolated (-I), with this process's own search path: it must import the same code, and nothing of a working folder.
    start = f"import sys; sys.path[:] = sys.argv[{len(words) + 1}:]; from {module} import {name}; {name}({descriptor})"
    # In a separate session: Ctrl-C is for this process, which ends that one.
    return subprocess.Popen(
        [sys.executable, "-I", "-c", start, *words, *filter(None, sys.path)],
        pass_fds=(descriptor,),
        env={**environ, **_ONE_THREAD},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def start_kept(
    command: Sequence[str], environ: Mapping[str, str], *, folder: Path | str = "/", stderr: int = subprocess.STDOUT
) -> subprocess.Popen[bytes]:
    """A program that ends with this process, with all that it has started, or when its `stdin` is closed here.

    `stdout` has what it prints, also to stderr unless *stderr* says otherwise; it reads nothing. A process between the
    two ends it, also when this one is killed, and has its exit code.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", _KEEPER, *command],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        cwd=folder,
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(dict(environ)).encode() + b"\n")
    return process


def end_kept(process: subprocess.Popen[bytes]) -> None:
    """End a program of `start_kept` with all that it has started, unless it has ended; its exit code is known then."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    process.kill()
    process.wait()


def kill_group(pid: int) -> None:
    """Kill a process that leads a session, with all that it has started, unless they have ended.

    Only before the process is waited for: its id may be another's afterwards.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def read_output(process: subprocess.Popen[bytes], *, time_limit: float, errors: str = "replace") -> tuple[str, str]:
    """The last 4 MiB that a process prints to its stdout, and to its stderr, until both are closed and it has ended.

    *errors* is that of `bytes.decode`. subprocess.TimeoutExpired has what was read as `output` and `stderr`.
    """
    deadline = time.monotonic() + time_limit
    printed, said = bytearray(), bytearray()

    def texts() -> tuple[str, str]:
        return printed.decode("utf-8", errors), said.decode("utf-8", errors)

    with selectors.DefaultSelector() as selector:
        for pipe, kept in ((process.stdout, printed), (process.stderr, said)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, kept)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise subprocess.TimeoutExpired(process.args, time_limit, *texts())
            for key, _ in selector.select(remaining):
                data = os.read(key.fd, _READ_BYTES)
                key.data.extend(data)
                del key.data[:-_KEPT_BYTES]
                if not data:
                    selector.unregister(key.fileobj)
    process.wait(max(deadline - time.monotonic(), 0))
    return texts()


@contextlib.contextmanager
def ended_with_group(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A context at whose end a process that leads a session is waited for.

    An error in it kills all of the session, as the end of the call does that needs the process (see `blocking`).
    """

    def kill() -> None:
        if process.returncode is None:
            kill_group(process.pid)

    with process:
        try:
            with on_cancel(kill):
                yield
        except BaseException:
            kill()
            raise
