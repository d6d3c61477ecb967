"""What a command-line flag is: its kind of value, its bounds and whether this server does what it asks for.

Texts of value errors are the reference's (SRV src/command_line_parser.cc).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from naiad.errors import OptionError

__all__ = [
    "Accepted",
    "Flag",
    "Kind",
    "Refused",
    "Status",
    "UsageError",
    "Used",
    "Value",
    "as_written",
    "bad_value",
    "convert",
]

Value = str | int | float | bool

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_WORDS = (_TRUE | _FALSE) - {"0", "1"}
_INT32 = 1 << 31
_INT64 = 1 << 63


class UsageError(OptionError):
    """The command line cannot be understood; the usage is worth showing with it.

    Attributes:
        preface: What getopt says before the usage, or empty.
    """

    def __init__(self, message: str, *, preface: str = "") -> None:
        super().__init__(message)
        self.preface = preface


class Kind(enum.Enum):
    """What follows a flag; the value is what the usage prints for it."""

    NOTHING = ""
    STRING = "<string>"
    INTEGER = "<integer>"
    SIZE = "<bytes>"
    NUMBER = "<float>"
    BOOLEAN = "<boolean>"
    VERBOSITY = "<level>"
    SETTING = "<string>=<string>"
    NAMED_SETTING = "<string>,<string>=<string>"


@dataclass(frozen=True, slots=True)
class Used:
    """The server does what the flag says."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The flag has no effect here; `reason` says why and is logged when the flag is given."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """What the flag asks for is missing here and would be missed: only harmless values pass.

    Attributes:
        reason: Why, as the end of the sentence "--flag=value is refused: ...".
        harmless: Whether a value asks for nothing that is missing.
    """

    reason: str
    harmless: Callable[[str], bool] = field(default=lambda _: False)


Status = Used | Accepted | Refused


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: Without the dashes.
        kind: What follows it.
        default: Its value when it is not given, as written on a command line; empty if there is none.
        help: One line for the usage.
        low: Lowest value of a number.
        high: Highest value of a number.
        choices: All values of a choice; empty if it is none.
        status: Whether the server does what it says.
        repeatable: Several uses add up; otherwise the last one counts.
        same_as: The flag it is another name of, or empty.
        own: The reference has no such flag; prefixes the reference understands are never ambiguous because of it.
        deprecated: What to use instead, or empty.
        group: Heading of the usage under which it stands.
        bad_choice: Text of the error about a value that is no choice, where it is not the usual one.
    """

    name: str
    kind: Kind
    default: str
    help: str
    _: KW_ONLY
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    status: Status = field(default_factory=Used)
    repeatable: bool = False
    same_as: str = ""
    own: bool = False
    deprecated: str = ""
    group: str = ""
    bad_choice: str = ""

    @property
    def takes_value(self) -> bool:
        """Whether something follows the flag."""
        return self.kind is not Kind.NOTHING


def convert(flag: Flag, text: str) -> Value:
    """The value of a flag from its text.

    Raises:
        UsageError: If the text is not a value of that flag.
    """
    return _CONVERTERS[flag.kind](flag, text)


def as_written(flag: Flag, text: str) -> str:
    """A flag with its text in the one spelling that every command line takes."""
    return f"--{flag.name}={text}" if flag.takes_value else f"--{flag.name}"


def bad_value(flag: Flag, detail: str) -> UsageError:
    """The error about a flag's value, to be raised."""
    return UsageError(f'Bad option: "--{flag.name}".\n{detail}')


def _nothing(_flag: Flag, _text: str) -> bool:
    return True


def _boolean(flag: Flag, text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE | _FALSE:
        raise bad_value(flag, f"invalid value for bool option: {text}")
    return lowered in _TRUE


def _verbosity(flag: Flag, text: str) -> int:
    return int(_boolean(flag, text)) if text.lower() in _WORDS else _integer(flag, text)


def _size(flag: Flag, text: str) -> int:
    return _integer(flag, text, _INT64)


def _integer(flag: Flag, text: str, limit: int = _INT32) -> int:
    # The reference takes "8000x" for 8000; a typing error in a port had better be found.
    try:
        number = int(text)
    except ValueError:
        raise bad_value(flag, f"Invalid option value. Got {text}") from None
    if not -limit <= number < limit:
        raise bad_value(flag, f"Provided option value is out of bound. Got {text}")
    _check_bounds(flag, number)
    return number


def _number(flag: Flag, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise bad_value(flag, f"Invalid option value. Got {text}") from None
    _check_bounds(flag, number)
    return number


def _check_bounds(flag: Flag, number: float) -> None:
    if flag.low is not None and number < flag.low:
        raise bad_value(flag, f"--{flag.name} must be at least {flag.low:g}. Got {number:g}")
    if flag.high is not None and number > flag.high:
        raise bad_value(flag, f"--{flag.name} must be at most {flag.high:g}. Got {number:g}")


def _text(flag: Flag, text: str) -> str:
    if flag.choices and text not in flag.choices:
        detail = flag.bad_choice or f"invalid argument for --{flag.name}"
        raise bad_value(flag, f"{detail}: {text!r} is none of {', '.join(flag.choices)}")
    return text


_CONVERTERS: dict[Kind, Callable[[Flag, str], Value]] = {
    Kind.NOTHING: _nothing,
    Kind.STRING: _text,
    Kind.INTEGER: _integer,
    Kind.SIZE: _size,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.VERBOSITY: _verbosity,
    Kind.SETTING: _text,
    Kind.NAMED_SETTING: _text,
}
