"""The usage text of the server: every flag in one line, by group."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from naiad.config.flag import Flag

__all__ = ["usage"]

_HELP_COLUMN = 52


def usage(program: str, flags: Iterable[Flag]) -> str:
    """The usage of a program with these flags, which stand in order of their groups."""
    lines = [f"Usage: {program} [options]"]
    for group, members in groupby(flags, key=lambda flag: flag.group):
        lines += ["", f"{group}:"]
        lines += [_line(flag) for flag in members]
    return "\n".join(lines) + "\n"


def _line(flag: Flag) -> str:
    value = f"<{'|'.join(flag.choices)}>" if flag.choices else flag.kind.value
    default = f" [{flag.default}]" if flag.default else ""
    # Two spaces also after the few that are longer than the column.
    return f"  --{flag.name} {value}".rstrip().ljust(_HELP_COLUMN) + f"  {flag.help}{default}"
