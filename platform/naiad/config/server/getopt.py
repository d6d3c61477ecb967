"""The rules of getopt_long_flag(3) as a pure function: `--k=v`, `--k v`, unique prefixes of names.

Start scripts written for the reference rely on its error texts and on which prefixes are ambiguous. The standard
library's `getopt` and `argparse` differ in both.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from naiad.config.server.flag import Flag, UsageError, is_truth_value

_MOST_ALTERNATIVES = 5

HELP = "help"  # name of the flag that `-h` abbreviates


def split_arguments(
    arguments: Sequence[str], flags: Iterable[Flag], program: str
) -> tuple[list[tuple[Flag, str]], list[str]]:
    """Split a command line into flags with their texts and positional arguments, both in order."""
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
            found.append((_short_flag(argument, by_name, program), ""))
        else:
            found.append(_long_flag(argument[2:], rest, by_name, program))
    return found, others


def _short_flag(argument: str, by_name: Mapping[str, Flag], program: str) -> Flag:
    if argument == "-h":
        return by_name[HELP]
    hint = f"did you mean -{argument}?" if _candidates(argument[1:].split("=", maxsplit=1)[0], by_name) else ""
    detail = "flags are written with two dashes"
    raise UsageError(
        f'Bad option: "{argument}".\n{detail}{_continued(hint)}',
        preface=f"{program}: invalid option -- '{argument[1]}'",
        hint=hint or detail,
    )


def _long_flag(text: str, rest: list[str], by_name: Mapping[str, Flag], program: str) -> tuple[Flag, str]:
    """One long flag with its text, which may be the next argument; that is then removed from `rest`."""
    name, has_value, value = text.partition("=")
    candidates = _candidates(name, by_name)
    if not candidates:
        raise _unknown_flag(name, text, by_name, program)
    if len(candidates) > 1:
        possible = " ".join(f"'--{flag.name}'" for flag in candidates)
        raise _misused(name, f"option '--{text}' is ambiguous; possibilities: {possible}", program)
    flag = candidates[0]
    if has_value and not flag.takes_value:
        raise _misused(flag.name, f"option '--{flag.name}' doesn't allow an argument", program)
    if flag.takes_value and not has_value:
        if flag.is_switch and not (rest and is_truth_value(rest[0])):
            return flag, "true"
        if not rest:
            raise _misused(flag.name, f"option '--{flag.name}' requires an argument", program)
        value = rest.pop(0)
    return flag, value


def _candidates(name: str, by_name: Mapping[str, Flag]) -> list[Flag]:
    """The flag of that name, else all flags whose name begins with it."""
    if name in by_name:
        return [by_name[name]]
    candidates = [flag for flag in by_name.values() if flag.name.startswith(name)]
    # A prefix that is unique among the reference's flags stays unique, even if naiad adds flags.
    candidates = [flag for flag in candidates if not flag.own] or candidates
    # Two names of the same flag are not ambiguous.
    return candidates[:1] if len({flag.same_as or flag.name for flag in candidates}) == 1 else candidates


def _unknown_flag(name: str, text: str, by_name: Mapping[str, Flag], program: str) -> UsageError:
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.7) or _ending_with(name, by_name)
    hint = f"did you mean {_alternatives(near)}?" if near else ""
    message = f'Bad option: "--{name}".\nunknown flag{_continued(hint)}'
    return UsageError(message, preface=f"{program}: unrecognized option '--{text}'", hint=hint)


def _ending_with(name: str, by_name: Mapping[str, Flag]) -> list[str]:
    """The flags whose first word is missing from a name: `http-port` and others for `port`; none if there are many."""
    flags = (flag for flag in by_name.values() if flag.support is None and not flag.same_as)
    found = [flag.name for flag in flags if flag.name.partition("-")[2] == name]
    return found if len(found) <= _MOST_ALTERNATIVES else []


def _alternatives(names: Iterable[str]) -> str:
    *others, last = (f"--{name}" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _continued(hint: str) -> str:
    return f"; {hint}" if hint else ""


def _misused(name: str, detail: str, program: str) -> UsageError:
    return UsageError(f'Bad option: "--{name}".\n{detail}', preface=f"{program}: {detail}")
