"""What a command-line flag is: its kind of value, its bounds, and whether this server supports it.

Texts of value errors are the reference's (SRV src/command_line_parser.cc).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from naiad.core.errors import OptionError

Value = str | int | float | bool

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_WORDS = (_TRUE | _FALSE) - {"0", "1"}
_LEADING_INTEGER = re.compile(r"\s*([+-]?[0-9]+)", re.ASCII)
_LEADING_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)", re.ASCII | re.IGNORECASE)
_WHOLE_INTEGER = re.compile(_LEADING_INTEGER.pattern + r"\s*", re.ASCII)
_INT32 = 1 << 31
_INT64 = 1 << 63


class UsageError(OptionError):
    """The command line is malformed; `tritonserver` prints its usage with the error.

    The message is the reference's, which `tritonserver` prints. Commands of naiad print the cause and the hint instead.
    """

    def __init__(
        self, message: str, *, preface: str = "", cause: str = "", hint: str = "", is_of_form: bool = True
    ) -> None:
        super().__init__(message)
        self.preface = preface  # line that getopt prints before the usage, or empty
        # What is wrong, as one line after the command's name; empty where the preface or the message says it.
        self.cause = cause
        self.hint = hint  # what to do, or what was probably meant, as one line; empty for the list of flags
        self.is_of_form = is_of_form  # whether the reference prints its usage with this error


class Kind(enum.Enum):
    """Type of a flag's value. The enum's value is the placeholder that the usage prints."""

    NOTHING = ""
    STRING = "<string>"
    INTEGER = "<integer>"
    SIZE = "<bytes>"
    NUMBER = "<float>"
    BOOLEAN = "<boolean>"
    VERBOSITY = "<level>"
    SETTING = "<string>=<string>"
    NAMED_SETTING = "<string>,<string>=<string>"
    RESTRICTION = "<api>,<api>:<header>=<value>"


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The flag is accepted and changes nothing; `reason` says why and is logged when the flag is given."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The flag asks for a feature that this version lacks: the server rejects all values but harmless ones."""

    reason: str  # why, as the end of the sentence "--flag=value is refused: ..."
    # Whether a value asks for nothing, such as `false` or the default.
    is_harmless: Callable[[str], bool] = field(default=lambda _: False)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    name: str
    help: str
    kind: Kind = Kind.STRING
    default: str = ""
    _: KW_ONLY
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    support: NoEffect | Unsupported | None = None  # None: the server does what the flag asks for
    repeatable: bool = False  # every use adds a value; otherwise the last use counts
    same_as: str = ""
    own: bool = False  # Triton has no such flag. A prefix that is unique among Triton's flags stays unique despite it.
    deprecated: str = ""
    group: str = ""
    bad_choice: str = ""  # text of the error about a value outside `choices`, where it is not the usual one

    @property
    def takes_value(self) -> bool:
        return self.kind is not Kind.NOTHING

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone means `true`: getopt wants a value for each of Triton's boolean flags."""
        return self.own and self.kind is Kind.BOOLEAN


def is_truth_value(text: str) -> bool:
    """Whether a text is a value of boolean flags."""
    return text.lower() in _TRUE | _FALSE


def parse_value(flag: Flag, text: str) -> Value:
    """Return the typed value of a flag."""
    return _PARSERS[flag.kind](flag, text)


def leading_integer(text: str) -> int | None:
    """The integer that a text begins with, as the reference's parser reads it (std::stoi); None without one.

    `10.0`, `10s` and `10` are 10, and `1e1` is 1.
    """
    match = _LEADING_INTEGER.match(text)
    return None if match is None else int(match[1])


def unread_rest(flag: Flag, text: str) -> str:
    """What follows the number in the value of a flag, and has no effect; empty for other flags."""
    if flag.own:
        return ""
    pattern = {Kind.INTEGER: _LEADING_INTEGER, Kind.SIZE: _LEADING_INTEGER, Kind.NUMBER: _LEADING_NUMBER}.get(flag.kind)
    if flag.kind is Kind.VERBOSITY and text.lower() not in _WORDS:
        pattern = _LEADING_INTEGER
    match = None if pattern is None else pattern.match(text)
    return "" if match is None else text[match.end() :].strip()


def format_flag(flag: Flag, text: str) -> str:
    """Return a flag and its text as one argument, the spelling that every command line accepts."""
    return f"--{flag.name}={text}" if flag.takes_value else f"--{flag.name}"


def invalid_value(flag: Flag, detail: str, *, cause: str = "", hint: str = "") -> UsageError:
    """The error about a flag's value: *cause* and *hint* for naiad's commands, *detail* in the reference's words."""
    message = f'Bad option: "--{flag.name}".\n{detail}'
    return UsageError(message, cause=f"--{flag.name}{cause}" if cause else detail, hint=hint)


def _nothing(_flag: Flag, _text: str) -> bool:
    return True


def _boolean(flag: Flag, text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE | _FALSE:
        detail = f"invalid value for bool option: {text}"
        raise invalid_value(flag, detail, cause=f"={text}: not a boolean", hint="give true or false")
    return lowered in _TRUE


def _verbosity(flag: Flag, text: str) -> int:
    return int(_boolean(flag, text)) if text.lower() in _WORDS else _integer(flag, text)


def _size(flag: Flag, text: str) -> int:
    return _integer(flag, text, _INT64)


def _integer(flag: Flag, text: str, limit: int = _INT32) -> int:
    # What follows the digits is a mistake in a flag of ours. For the reference's flags, a warning says what was read.
    number = None if flag.own and not _WHOLE_INTEGER.fullmatch(text) else leading_integer(text)
    if number is None:
        raise _not_a_number(flag, text, "an integer")
    if not -limit <= number < limit:
        detail = f"Provided option value is out of bound. Got {text}"
        raise invalid_value(flag, detail, cause=f"={text}: out of range", hint=f"give {_allowed(flag, 'an integer')}")
    _check_bounds(flag, number)
    return number


def _number(flag: Flag, text: str) -> float:
    match = None if flag.own else _LEADING_NUMBER.match(text)
    try:
        number = float(text if match is None else match[1])
    except ValueError:
        raise _not_a_number(flag, text, "a number") from None
    _check_bounds(flag, number)
    return number


def _not_a_number(flag: Flag, text: str, wanted: str) -> UsageError:
    hint = f"give {_allowed(flag, wanted)}"
    return invalid_value(flag, f"Invalid option value. Got {text}", cause=f"={text}: not {wanted}", hint=hint)


def _allowed(flag: Flag, wanted: str) -> str:
    if flag.low is None:
        return wanted if flag.high is None else f"{wanted} of at most {flag.high:.15g}"
    if flag.high is None:
        return f"{wanted} of at least {flag.low:g}"
    return f"{wanted} from {flag.low:g} to {flag.high:.15g}"


def _check_bounds(flag: Flag, number: float) -> None:
    if flag.low is not None and number < flag.low:
        bound = f"at least {flag.low:g}"
    elif flag.high is not None and number > flag.high:
        bound = f"at most {flag.high:g}"
    else:
        return
    raise invalid_value(
        flag,
        f"--{flag.name} must be {bound}. Got {number:g}",
        cause=f"={number:g}: out of range",
        hint=f"give {_allowed(flag, 'a number')}",
    )


def _text(flag: Flag, text: str) -> str:
    if flag.choices and text not in flag.choices:
        detail = flag.bad_choice or f"invalid argument for --{flag.name}"
        choices = ", ".join(flag.choices)
        raise invalid_value(
            flag,
            f"{detail}: unknown value {text!r}; give one of {choices}",
            cause=f"={text}: unknown value",
            hint=f"give one of {choices}",
        )
    return text


_PARSERS: dict[Kind, Callable[[Flag, str], Value]] = {
    Kind.NOTHING: _nothing,
    Kind.STRING: _text,
    Kind.INTEGER: _integer,
    Kind.SIZE: _size,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.VERBOSITY: _verbosity,
    Kind.SETTING: _text,
    Kind.NAMED_SETTING: _text,
    Kind.RESTRICTION: _text,
}
