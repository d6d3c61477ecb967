"""The two programs: `naiad` with its sub-commands, and `tritonserver`, which is `naiad serve` under Triton's name.

Sub-commands that accept the server's flags are in `flag_commands`; click parses all others (`env`, `init`). Modules are
imported only when they are needed, because a server must start quickly.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from naiad.cli.flag_commands import FLAG_COMMANDS
from naiad.standard_streams import open_standard_streams

__all__ = ["main", "main_tritonserver"]


_SIGNALLED = 128
"""A shell adds the signal's number to this for the status of a program that a signal ended."""


def main_tritonserver(arguments: Sequence[str] | None = None) -> int:
    """Run the program `tritonserver`; returns the exit code."""
    open_standard_streams()
    from naiad.cli.serve import serve

    return _until_output_closes(lambda: serve(sys.argv[1:] if arguments is None else arguments, "tritonserver"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program `naiad`; returns the exit code. Flags without a sub-command are those of `naiad serve`."""
    open_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    return _until_output_closes(lambda: _run(given))


_ERRORS_OF_OUTPUTS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _until_output_closes(command: Callable[[], int]) -> int:
    """The exit code of a command, which ends without a traceback if its output cannot be written.

    Usually the reader of the output, such as `head`, has exited. This is not reported as a failure.
    """
    from naiad.cli.command_line import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, output_failure

    try:
        try:
            code = command()
        except KeyboardInterrupt:  # also while the modules of a command are imported
            print("interrupted", file=sys.stderr)
            code = EXIT_INTERRUPTED
        failure = output_failure()  # looked for here, where it can be caught: Python would do it after this returns
    except OSError as error:
        # An unbuffered output (PYTHONUNBUFFERED) has nothing left to flush; a command names other files that it writes.
        failure = error if error.errno in _ERRORS_OF_OUTPUTS and error.filename is None else output_failure()
        if failure is None:
            raise
    if failure is None:
        return code
    # What is still buffered goes nowhere, so that Python's own flush at exit succeeds.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(failure, BrokenPipeError):
        return EXIT_OUTPUT_CLOSED
    print(f"cannot write the output: {failure.strerror or failure}", file=sys.stderr)
    return EXIT_FAILURE


@contextmanager
def _unwound_by_termination() -> Iterator[None]:
    """Let SIGTERM end a command as an exception does, so that it removes what it has half written.

    Without effect where SIGTERM has another handler, or outside of the main thread.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, _on_termination)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_termination(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not end the cleanup
    raise SystemExit(_SIGNALLED + number)


def _run(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["serve", *rest]:  # it ends by its own rules: requests in flight are finished first
            return FLAG_COMMANDS["serve"].run(rest)
        case [name, *rest] if name in FLAG_COMMANDS:
            with _unwound_by_termination():
                return FLAG_COMMANDS[name].run(rest)
        case [first, *_] if first.startswith("-") and first not in {"--help", "-h", "--version"}:
            from naiad.cli.serve import serve

            return serve(arguments, "naiad")
        case _:
            from naiad.cli.commands import run

            with _unwound_by_termination():
                return run(arguments)
