"""Command lines that accept the server's flags: parsing, the usage text, and the report of a wrong command line.

`naiad run`, `explain`, `doctor` and others have their own flags, the fields of an option group, and accept all flags of
the server too. `run_command` separates the two: a command gets its own values, and hands the others on.

All commands of `naiad` exit with 2 for a wrong command line and with 1 for a failure. `tritonserver` keeps the form and
the exit code of Triton, which start scripts rely on; `naiad doctor` exits with 1 for findings, as linters do. A mistake
is two lines, what is wrong and one hint: a usage of 150 lines would push both out of sight.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TextIO

from naiad.cli.examples import examples_text
from naiad.config.model.environment_source import redact
from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.flag_values import FlagValues
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.option_group import Group, read_group
from naiad.config.server.options import SERVER_FLAGS
from naiad.core.errors import NaiadError, OptionError
from naiad.core.standard_streams import output_failure
from naiad.environments.store.opening import open_store_of

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as shells report a writer whose reader, such as `head`, has ended
_TRITONSERVER = "tritonserver"
_HELP_COLUMN = 52
_WIDE = 132  # columns that hold each flag in one line; also what programs such as `grep` get
_NARROW_HELP_COLUMN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What a command line has besides the values of the command's own flags."""

    given: frozenset[str]  # names of the command's own flags that were given
    server: Sequence[tuple[Flag, str]]  # the server's flags with their texts, in the order given
    positional: Sequence[str]

    def has_server_flag(self, name: str) -> bool:
        """Whether a flag of the server was given, under this name or under another name of the same flag."""
        return any((flag.same_as or flag.name) == name for flag, _ in self.server)


def run_command(
    arguments: Sequence[str],
    group: type[Group],
    flags: Sequence[Flag],
    program: str,
    purpose: str,
    run: Callable[[CommandLine, Group], int],
    *,
    listed: Sequence[str] = (),
    usage_for: Callable[[Sequence[str]], str] | None = None,
    failure: int = EXIT_FAILURE,
) -> int:
    """Parse a command line and run the command, or print its usage; errors go to stderr. Returns the exit code.

    Args:
        group: The option group that gets the values of the command's own *flags*.
        listed: Names of the server's flags that the usage lists with the command's own; `--help` is always there.
        usage_for: Returns the usage by the positional arguments, where it depends on them.
        failure: The exit code of a command that fails for another reason than a wrong command line.
    """
    try:
        found, positional = split_arguments(arguments, (*flags, *SERVER_FLAGS), _command_name(program))
        if any(flag.name == HELP for flag, _ in found):
            print(usage_for(positional) if usage_for else usage(program, with_server_flags(flags, *listed)), end="")
            return 0
        values = FlagValues([(flag, text) for flag, text in found if flag in flags], flags, os.environ)
        line = CommandLine(
            given=frozenset(flag.name for flag, _ in found if flag in flags),
            server=[(flag, text) for flag, text in found if flag not in flags],
            positional=positional,
        )
        return run(line, read_group(group, values))
    except NaiadError as error:
        return max(report_error(error, program), failure)
    except OSError as error:
        if _is_of_output(error):
            raise  # `main` ends the program
        print(f"cannot {purpose}: {error}", file=sys.stderr)
        return failure
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _is_of_output(error: OSError) -> bool:
    """Whether an error is that of writing to this program's output."""
    failure = output_failure()
    if failure is not None:
        return failure.errno == error.errno
    # An unbuffered output (PYTHONUNBUFFERED) has nothing left to flush. Sockets fail with the same error.
    return isinstance(error, BrokenPipeError) and _has_lost_its_reader(sys.stdout)


def _has_lost_its_reader(output: TextIO) -> bool:
    poll = select.poll()
    poll.register(output, 0)
    return bool(poll.poll(0))  # POLLERR or POLLHUP, which are reported unasked


def is_directory(name: str | Path) -> bool:
    """Whether a directory has this name; False where that cannot be examined, for which `Path.is_dir` raises."""
    try:
        return Path(name).is_dir()
    except OSError:
        return False


def exit_code_of(error: NaiadError) -> int:
    """The exit code of a command that failed with this error: 2 for a wrong command line, else 1."""
    return EXIT_USAGE if isinstance(error, OptionError) else EXIT_FAILURE


def report_error(error: NaiadError, program: str) -> int:
    """Print the error of a command to stderr; returns the exit code."""
    if isinstance(error, OptionError):
        return report_option_error(error, program)
    print(error.message, file=sys.stderr)
    return EXIT_FAILURE


def store_of(line: CommandLine) -> Path:
    """The store of environments that a command line names, or the default one."""
    return open_store_of(
        next((text for flag, text in reversed(line.server) if flag.name == "env-store"), ""), os.environ
    )


def server_flag(name: str) -> Flag:
    """The flag of the server with this name."""
    return next(flag for flag in SERVER_FLAGS if flag.name == name)


def usage(program: str, flags: Iterable[Flag]) -> str:
    """The usage text of a program: one line for each flag under its group's heading, or two in a narrower terminal."""
    columns = shutil.get_terminal_size((_WIDE, 0)).columns
    line_of = _usage_line if columns >= _WIDE else partial(_usage_lines, columns=columns)
    lines = [f"Usage: {program} [options]"]
    for group, members in groupby(flags, key=lambda flag: flag.group):
        lines += ["", *textwrap.wrap(f"{group}:", columns)]
        lines += [line_of(flag) for flag in members]
    examples = examples_text(_command_name(program).removeprefix("naiad "))
    return "\n".join([*lines, "", examples] if examples else [*lines, ""])


def with_server_flags(own: Sequence[Flag], *names: str) -> tuple[Flag, ...]:
    """A command's own flags, these of the server and `--help`, in one group of the usage."""
    return (*own, *(replace(server_flag(name), group=own[0].group) for name in (*names, HELP)))


def report_option_error(error: OptionError, program: str) -> int:
    """Print the error of a command line to stderr; returns the exit code.

    `tritonserver` prints its usage before an error of form, as Triton does. All others print what is wrong, and as the
    last line what to do.
    """
    if program == _TRITONSERVER:
        if isinstance(error, UsageError) and error.is_of_form:
            if error.preface:
                print(error.preface, file=sys.stderr)
            print(usage(program, SERVER_FLAGS), file=sys.stderr)
        print(error.message, file=sys.stderr)
        return EXIT_FAILURE
    if not isinstance(error, UsageError):
        print(error.message, file=sys.stderr)
        return EXIT_USAGE
    command = _command_name(program)
    cause = f"{program if program == 'naiad' else command}: {error.cause}" if error.cause else ""
    # Without both, the message says what to do as well.
    print(error.preface or cause or error.message, file=sys.stderr)
    if error.preface or cause:
        print(error.hint or f"`{command} --help` lists the flags", file=sys.stderr)
    return EXIT_USAGE


def stray_argument(argument: str, *, is_repository: bool = False) -> UsageError:
    """The error about a positional argument of a command that takes none, for the caller to raise."""
    shown = redact(argument)
    hint = f"did you mean --model-repository={shown}?" if is_repository else ""
    return UsageError(f"Unexpected argument: {shown}", cause=f"unexpected argument '{shown}'", hint=hint)


def wrong_arguments(program: str, wanted: str, given: Sequence[str]) -> UsageError:
    """The error about too few or too many positional arguments, for the caller to raise."""
    text = f"expected {wanted}, got {', '.join(given) or 'none'}"
    inputs = [argument for argument in given[1:] if "=" in argument] if program.startswith("naiad run") else []
    hint = f"did you mean --input '{inputs[0]}'?" if inputs else ""
    return UsageError(f"{program}: {text}", preface=f"{program}: {text}", hint=hint)


def repeated_address(program: str, argument: str, flag: str) -> UsageError:
    """The error about a server that is named by an argument and by `--url`, for the caller to raise."""
    text = f"the server is named twice, {argument} and {flag}"
    return UsageError(f"{program}: {text}", preface=f"{program}: {text}")


def _command_name(program: str) -> str:
    """The program's name without its positional arguments: `naiad explain` of `naiad explain MODEL`."""
    return "naiad serve" if program == "naiad" else " ".join(program.split(" ")[:2])


def _usage_lines(flag: Flag, columns: int) -> str:
    head, _, text = _usage_line(flag).strip().partition("  ")
    indent = " " * _NARROW_HELP_COLUMN
    below = textwrap.wrap(text.strip(), columns, initial_indent=indent, subsequent_indent=indent)
    return "\n".join((f"  {head}", *below))


def _usage_line(flag: Flag) -> str:
    value = f"<{'|'.join(flag.choices)}>" if flag.choices else flag.kind.value
    default = f" [{flag.default}]" if flag.default else ""
    # Flags longer than the column are followed by two spaces as well.
    return f"  --{flag.name} {value}".rstrip().ljust(_HELP_COLUMN) + f"  {flag.help}{default}"
