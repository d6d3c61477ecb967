"""Command lines that accept the server's flags: parsing, the usage text, and the report of a wrong command line.

`naiad run`, `explain`, `doctor`, `bundle` and `deploy` have flags of their own and accept all flags of the server too.
`parse_command_line` separates the two, so that a command reads its own values and hands the others to `options_from`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.getopt import HELP, split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.errors import OptionError

__all__ = ["CommandLine", "own_flags", "parse_command_line", "report_option_error", "server_flag", "usage", "with_help"]

_HELP_COLUMN = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """A parsed command line.

    Attributes:
        own: Texts of the command's own flags, by flag name, in the order given.
        server: The server's flags with their texts, in the order given.
        positional: Arguments that are not flags.
        is_help_requested: Whether `--help` was given.
    """

    own: Mapping[str, Sequence[str]]
    server: Sequence[tuple[Flag, str]]
    positional: Sequence[str]
    is_help_requested: bool

    def has(self, flag: Flag) -> bool:
        """Whether the command's own flag was given."""
        return flag.name in self.own

    def last(self, flag: Flag) -> str:
        """The text of the last use of the command's own flag; the flag's default if it was not given."""
        return self.all(flag)[-1] if self.has(flag) else flag.default

    def all(self, flag: Flag) -> tuple[str, ...]:
        """The texts of all uses of the command's own flag."""
        return tuple(self.own.get(flag.name, ()))

    def has_server_flag(self, name: str) -> bool:
        """Whether a flag of the server was given, under this name or under another name of the same flag."""
        return any((flag.same_as or flag.name) == name for flag, _ in self.server)


def parse_command_line(arguments: Sequence[str], own: Sequence[Flag], program: str) -> CommandLine:
    """The parsed command line of a command whose own flags are *own*.

    Raises:
        UsageError: If a flag is unknown or ambiguous, lacks a value or has an unexpected one.
    """
    found, positional = split_arguments(arguments, (*own, *SERVER_FLAGS), program)
    names = {flag.name for flag in own}
    values: dict[str, list[str]] = {}
    for flag, text in found:
        if flag.name in names:
            values.setdefault(flag.name, []).append(text)
    return CommandLine(
        own=values,
        server=[(flag, text) for flag, text in found if flag.name not in names],
        positional=positional,
        is_help_requested=any(flag.name == HELP for flag, _ in found),
    )


def own_flags(group: str, *flags: Flag) -> tuple[Flag, ...]:
    """The flags of a command, marked as unknown to Triton and listed under *group* in the usage."""
    return tuple(replace(flag, group=group, own=True) for flag in flags)


def server_flag(name: str) -> Flag:
    """The flag of the server with this name."""
    return next(flag for flag in SERVER_FLAGS if flag.name == name)


def usage(program: str, flags: Iterable[Flag]) -> str:
    """The usage text of a program: one line for each flag, under the heading of its group.

    Args:
        program: The program's name, with its positional arguments.
        flags: The flags; those of one group must follow each other.
    """
    lines = [f"Usage: {program} [options]"]
    for group, members in groupby(flags, key=lambda flag: flag.group):
        lines += ["", f"{group}:"]
        lines += [_usage_line(flag) for flag in members]
    return "\n".join(lines) + "\n"


def with_help(flags: Iterable[Flag], group: str) -> tuple[Flag, ...]:
    """A command's own flags and the server's `--help`, in one group of the usage."""
    return (*flags, replace(server_flag(HELP), group=group))


def report_option_error(error: OptionError, program: str, flags: Iterable[Flag] = SERVER_FLAGS) -> int:
    """Print the error of a command line to stderr; returns the exit code.

    An error of the command line's form is preceded by the usage with *flags*, as Triton does; a wrong value is not.
    """
    if isinstance(error, UsageError):
        if error.preface:
            print(error.preface, file=sys.stderr)
        print(usage(program, flags), file=sys.stderr)
    print(error.message, file=sys.stderr)
    return 1


def _usage_line(flag: Flag) -> str:
    value = f"<{'|'.join(flag.choices)}>" if flag.choices else flag.kind.value
    default = f" [{flag.default}]" if flag.default else ""
    # Flags longer than the column are followed by two spaces as well.
    return f"  --{flag.name} {value}".rstrip().ljust(_HELP_COLUMN) + f"  {flag.help}{default}"
