"""The usage text of the server: every flag in one line, by group; and what is said of a wrong command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from naiad.config.server.flag import Flag, UsageError
from naiad.config.server.getopt import HELP
from naiad.config.server.options import SERVER_FLAGS
from naiad.errors import OptionError

__all__ = ["report", "usage", "with_help"]

_HELP_COLUMN = 52


def usage(program: str, flags: Iterable[Flag]) -> str:
    """The usage of a program with these flags, which stand in order of their groups."""
    lines = [f"Usage: {program} [options]"]
    for group, members in groupby(flags, key=lambda flag: flag.group):
        lines += ["", f"{group}:"]
        lines += [_line(flag) for flag in members]
    return "\n".join(lines) + "\n"


def with_help(flags: Iterable[Flag], group: str) -> tuple[Flag, ...]:
    """A command's own flags and `--help`, which all share with the server, in one group."""
    return (*flags, *(replace(flag, group=group) for flag in SERVER_FLAGS if flag.name == HELP))


def report(error: OptionError, program: str, flags: Iterable[Flag] = SERVER_FLAGS) -> int:
    """Print what is wrong with a command line, after the usage with these flags where that helps; the exit code."""
    if isinstance(error, UsageError):
        if error.preface:
            print(error.preface, file=sys.stderr)
        print(usage(program, flags), file=sys.stderr)
    print(error.message, file=sys.stderr)
    return 1


def _line(flag: Flag) -> str:
    value = f"<{'|'.join(flag.choices)}>" if flag.choices else flag.kind.value
    default = f" [{flag.default}]" if flag.default else ""
    # Two spaces also after the few that are longer than the column.
    return f"  --{flag.name} {value}".rstrip().ljust(_HELP_COLUMN) + f"  {flag.help}{default}"
