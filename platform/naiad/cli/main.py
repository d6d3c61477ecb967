"""The two programs: `naiad` with its sub-commands, and `tritonserver`, which is `naiad serve` under Triton's name.

Sub-commands that accept the server's flags are in `flag_commands`; click parses all others (`env`, `init`). Modules are
imported only when they are needed, because a server must start quickly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from naiad.cli.flag_commands import FLAG_COMMANDS

__all__ = ["main", "main_tritonserver"]


def main_tritonserver(arguments: Sequence[str] | None = None) -> int:
    """Run the program `tritonserver`; returns the exit code."""
    from naiad.cli.serve import serve

    return _until_output_closes(lambda: serve(sys.argv[1:] if arguments is None else arguments, "tritonserver"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program `naiad`; returns the exit code. Flags without a sub-command are those of `naiad serve`."""
    given = sys.argv[1:] if arguments is None else arguments
    return _until_output_closes(lambda: _run(given))


def _until_output_closes(command: Callable[[], int]) -> int:
    """The exit code of a command, which ends without a traceback if the reader of its output, such as `head`, has."""
    try:
        code = command()
        if sys.stdout is not None:  # None: the program was started without one
            sys.stdout.flush()  # here, where it can be caught: Python would do it after this returns
    except BrokenPipeError:
        return _drop_output()
    except OSError as error:
        if error.filename is not None:  # of something that was opened, not of the output
            raise
        print(f"cannot write the output: {error.strerror or error}", file=sys.stderr)
        _drop_output()
        return 1
    return code


def _drop_output() -> int:
    """Have Python's own flush at exit succeed: what is still buffered goes nowhere. Returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    from naiad.cli.command_line import EXIT_OUTPUT_CLOSED

    return EXIT_OUTPUT_CLOSED


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
