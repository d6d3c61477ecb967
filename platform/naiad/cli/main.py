"""The two programs: `naiad` with its sub-commands, and `tritonserver`, which is `naiad serve` under Triton's name.

Sub-commands that accept the server's flags are in `flag_commands`; click parses all others (`env`, `init`). Modules are
imported only when they are needed, because a server must start quickly.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

from naiad.cli.flag_commands import FLAG_COMMANDS
from naiad.standard_streams import open_standard_streams

__all__ = ["main", "main_tritonserver"]


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
    from naiad.cli.command_line import EXIT_FAILURE, EXIT_OUTPUT_CLOSED, output_failure

    try:
        code = command()
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


def _run(arguments: Sequence[str]) -> int:
    match list(arguments):
        case [name, *rest] if name in FLAG_COMMANDS:
            return FLAG_COMMANDS[name].run(rest)
        case [first, *_] if first.startswith("-") and first not in {"--help", "-h", "--version"}:
            from naiad.cli.serve import serve

            return serve(arguments, "naiad")
        case _:
            from naiad.cli.commands import run

            return run(arguments)
