"""The rules of getopt_long(3), as a pure function: `--k=v`, `--k v`, unique prefixes, values before the rest.

The standard library's `getopt` and `argparse` differ in texts and in what they take for ambiguous, and start scripts
written for the reference rely on both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from naiad.config.server.flag import Flag, UsageError

__all__ = ["HELP", "split"]

HELP = "help"
"""Name of the flag that `-h` stands for."""


def split(arguments: Sequence[str], flags: Iterable[Flag], program: str) -> tuple[list[tuple[Flag, str]], list[str]]:
    """Take a command line apart into flags with their texts, in order, and everything else, in order.

    Raises:
        UsageError: If a flag is unknown or ambiguous, or lacks a value, or has one it does not take.
    """
    by_name = {flag.name: flag for flag in flags}
    found: list[tuple[Flag, str]] = []
    others: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return found, others + rest
        if not argument.startswith("-") or argument == "-":
            others.append(argument)
        elif not argument.startswith("--"):
            found.append((_short(argument, by_name, program), ""))
        else:
            found.append(_long(argument[2:], rest, by_name, program))
    return found, others


def _short(argument: str, by_name: Mapping[str, Flag], program: str) -> Flag:
    if argument == "-h":
        return by_name[HELP]
    long = f"; did you mean -{argument}?" if _match(argument[1:].split("=", maxsplit=1)[0], by_name) else ""
    raise UsageError(
        f'Bad option: "{argument}".\nflags are written with two dashes{long}',
        preface=f"{program}: invalid option -- '{argument[1]}'",
    )


def _long(text: str, rest: list[str], by_name: Mapping[str, Flag], program: str) -> tuple[Flag, str]:
    """One long flag; its value may be the next argument, which is then taken from `rest`."""
    name, has_value, value = text.partition("=")
    candidates = _match(name, by_name)
    if not candidates:
        raise _unknown(name, text, by_name, program)
    if len(candidates) > 1:
        possible = " ".join(f"'--{flag.name}'" for flag in candidates)
        raise _wrong(name, f"option '--{text}' is ambiguous; possibilities: {possible}", program)
    flag = candidates[0]
    if has_value and not flag.takes_value:
        raise _wrong(flag.name, f"option '--{flag.name}' doesn't allow an argument", program)
    if flag.takes_value and not has_value:
        if not rest:
            raise _wrong(flag.name, f"option '--{flag.name}' requires an argument", program)
        value = rest.pop(0)
    return flag, value


def _match(name: str, by_name: Mapping[str, Flag]) -> list[Flag]:
    """The flags a name may stand for: itself, else all it is a prefix of."""
    if name in by_name:
        return [by_name[name]]
    candidates = [flag for flag in by_name.values() if flag.name.startswith(name)]
    # What is a unique prefix for the reference stays one, whatever flags of our own we add.
    candidates = [flag for flag in candidates if not flag.own] or candidates
    # Two names of one flag are no ambiguity.
    return candidates[:1] if len({flag.same_as or flag.name for flag in candidates}) == 1 else candidates


def _unknown(name: str, text: str, by_name: Mapping[str, Flag], program: str) -> UsageError:
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.7)
    hint = f"\nunknown flag; did you mean --{near[0]}?" if near else "\nunknown flag"
    return UsageError(f'Bad option: "--{name}".{hint}', preface=f"{program}: unrecognized option '--{text}'")


def _wrong(name: str, detail: str, program: str) -> UsageError:
    return UsageError(f'Bad option: "--{name}".\n{detail}', preface=f"{program}: {detail}")
