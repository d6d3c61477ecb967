"""The two programs: `naiad` with its sub-commands, and `tritonserver`, which is `naiad serve` under Triton's name.

Sub-commands that accept the server's flags are in `flag_commands`; click parses all others (`env`, `init`). Modules are
imported only when they are needed: a server must start quickly, and an interrupted import must be caught here, as it
prints a traceback otherwise.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

_SIGNALLED = 128  # a shell adds the signal's number to this for the status of a program that a signal ended


def main_tritonserver(arguments: Sequence[str] | None = None) -> int:
    """Run the program `tritonserver`; returns the exit code."""
    return _until_interrupted(lambda: _serve(sys.argv[1:] if arguments is None else arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program `naiad`; returns the exit code. Flags without a sub-command are those of `naiad serve`."""
    return _until_interrupted(lambda: _run(sys.argv[1:] if arguments is None else arguments))


def _until_interrupted(command: Callable[[], int]) -> int:
    """The exit code of a command, which ends without a traceback if it is interrupted, also while it is imported."""
    try:
        from naiad.core.standard_streams import open_standard_streams

        open_standard_streams()
        return _until_output_closes(command)
    except KeyboardInterrupt:
        return _interrupted()


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return _SIGNALLED + signal.SIGINT


_ERRORS_OF_OUTPUTS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _until_output_closes(command: Callable[[], int]) -> int:
    """The exit code of a command, which ends without a traceback if its output cannot be written.

    Usually the reader of the output, such as `head`, has exited. This is not reported as a failure.
    """
    from naiad.core.standard_streams import output_failure

    try:
        try:
            code = command()
        except KeyboardInterrupt:  # here, so that what was printed before is written
            code = _interrupted()
        failure = output_failure()  # looked for here, where it can be caught: Python would do it after this returns
    except OSError as error:
        # An unbuffered output (PYTHONUNBUFFERED) has nothing left to flush; a command names other files that it writes.
        failure = error if error.errno in _ERRORS_OF_OUTPUTS and error.filename is None else output_failure()
        if failure is None:
            raise
    if failure is None:
        return code
    from naiad.cli.command_line import EXIT_FAILURE, EXIT_OUTPUT_CLOSED

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


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have Ctrl-C wait until a command is imported, which takes up to a second.

    numpy's modules in C lose a KeyboardInterrupt, and numpy raises an ImportError about a broken installation instead.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(arguments: Sequence[str]) -> int:
    if "_TRITONSERVER_COMPLETE" in os.environ:  # a shell asks what may follow
        from naiad.cli.commands import complete_tritonserver

        sys.exit(complete_tritonserver())
    with _uninterrupted():
        from naiad.cli.serve import serve

    return serve(arguments, "tritonserver")


def _run(arguments: Sequence[str]) -> int:
    with _uninterrupted():
        is_server, command = _find(list(arguments))
    if is_server:  # it ends by its own rules: requests in flight are finished first
        return command()
    with _unwound_by_termination():
        return command()


def _find(arguments: list[str]) -> tuple[bool, Callable[[], int]]:
    """Import what runs a command line; whether that is the server, and the function."""
    arguments = _as_flag(arguments)
    if arguments in (["--version"], ["-V"]):  # scripts ask for it; the commands would take half a second to import
        return False, _print_version
    from naiad.cli.flag_commands import find_flag_command
    from naiad.core.errors import MissingPackageError

    try:
        found = find_flag_command(arguments[0]) if arguments else None
        if found is not None:
            return arguments[0] == "serve", partial(found.load(arguments[0]), arguments[1:])
    except MissingPackageError as error:
        return False, partial(_fail, error.message)
    match arguments:
        case [first, *_] if first.startswith("-") and first not in {"--help", "-h", "--version", "-V"}:
            from naiad.cli.serve import serve

            return True, partial(serve, arguments, "naiad")
        case _:
            from naiad.cli.commands import run

            return False, partial(run, arguments)


def _print_version() -> int:
    from naiad import __version__

    print(f"naiad {__version__}")
    return 0


def _as_flag(arguments: list[str]) -> list[str]:
    """`help`, `help COMMAND` and `version`, which other programs have, as the flags that do the same."""
    match arguments:
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
        case _:
            return arguments


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1
