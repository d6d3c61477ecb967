"""What a command-line flag is: its kind of value, its bounds, and whether this server supports it.

Texts of value errors are the reference's (SRV src/command_line_parser.cc).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from naiad.errors import OptionError

__all__ = [
    "Flag",
    "Kind",
    "NoEffect",
    "Support",
    "Supported",
    "Unsupported",
    "UsageError",
    "Value",
    "format_flag",
    "invalid_value",
    "parse_value",
]

Value = str | int | float | bool

_TRUE = frozenset({"true", "on", "1"})
_FALSE = frozenset({"false", "off", "0"})
_WORDS = (_TRUE | _FALSE) - {"0", "1"}
_INT32 = 1 << 31
_INT64 = 1 << 63


class UsageError(OptionError):
    """The command line is malformed; `tritonserver` prints its usage with the error.

    The message is the reference's, which `tritonserver` prints. Commands of naiad print the cause and the hint instead.

    Attributes:
        preface: Line that getopt prints before the usage, or empty.
        cause: What is wrong, as one line after the command's name; empty where the preface or the message says it.
        hint: What to do, or what was probably meant, as one line; empty for the list of flags.
        is_of_form: Whether the reference prints its usage with this error.
    """

    def __init__(
        self, message: str, *, preface: str = "", cause: str = "", hint: str = "", is_of_form: bool = True
    ) -> None:
        super().__init__(message)
        self.preface = preface
        self.cause = cause
        self.hint = hint
        self.is_of_form = is_of_form


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


@dataclass(frozen=True, slots=True)
class Supported:
    """The server does what the flag asks for."""


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The flag is accepted and changes nothing; `reason` says why and is logged when the flag is given."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The flag asks for a feature that this version lacks: the server rejects all values but harmless ones.

    Attributes:
        reason: Why, as the end of the sentence "--flag=value is refused: ...".
        is_harmless: Whether a value asks for nothing, such as `false` or the default.
    """

    reason: str
    is_harmless: Callable[[str], bool] = field(default=lambda _: False)


Support = Supported | NoEffect | Unsupported


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name: Name without the dashes.
        kind: Type of its value.
        default: Default as written on a command line; empty for no default.
        help: One line for the usage.
        low: Lowest allowed number.
        high: Highest allowed number.
        choices: Allowed values; empty for any.
        support: Whether the server does what the flag asks for.
        repeatable: Every use adds a value; otherwise the last use counts.
        same_as: Name of the flag that this is an alias of, or empty.
        own: Triton has no such flag. A prefix that is unique among Triton's flags stays unique despite it.
        deprecated: What to use instead, or empty.
        group: Heading in the usage.
        bad_choice: Text of the error about a value outside `choices`, where it is not the usual one.
    """

    name: str
    kind: Kind
    default: str
    help: str
    _: KW_ONLY
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    support: Support = field(default_factory=Supported)
    repeatable: bool = False
    same_as: str = ""
    own: bool = False
    deprecated: str = ""
    group: str = ""
    bad_choice: str = ""

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the flag."""
        return self.kind is not Kind.NOTHING


def parse_value(flag: Flag, text: str) -> Value:
    """Return the typed value of a flag.

    Raises:
        UsageError: If the text is not a value of that flag.
    """
    return _PARSERS[flag.kind](flag, text)


def format_flag(flag: Flag, text: str) -> str:
    """Return a flag and its text as one argument, the spelling that every command line accepts."""
    return f"--{flag.name}={text}" if flag.takes_value else f"--{flag.name}"


def invalid_value(flag: Flag, detail: str, *, cause: str = "", hint: str = "") -> UsageError:
    """Return the error about a flag's value, for the caller to raise.

    Args:
        flag: The flag.
        detail: What is wrong, in the reference's words.
        cause: The same for naiad's commands, after the flag's name; default: the detail.
        hint: What to do, for naiad's commands.
    """
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
    # The reference parses with std::stoi, which reads "8000x" as 8000. A mistyped port is an error here instead.
    try:
        number = int(text)
    except ValueError:
        raise _not_a_number(flag, text, "an integer") from None
    if not -limit <= number < limit:
        detail = f"Provided option value is out of bound. Got {text}"
        raise invalid_value(flag, detail, cause=f"={text}: out of range", hint=f"give {_allowed(flag, 'an integer')}")
    _check_bounds(flag, number)
    return number


def _number(flag: Flag, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _not_a_number(flag, text, "a number") from None
    _check_bounds(flag, number)
    return number


def _not_a_number(flag: Flag, text: str, wanted: str) -> UsageError:
    hint = f"give {_allowed(flag, wanted)}"
    return invalid_value(flag, f"Invalid option value. Got {text}", cause=f"={text}: not {wanted}", hint=hint)


def _allowed(flag: Flag, wanted: str) -> str:
    """*wanted* with the bounds of the flag."""
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
            f"{detail}: {text!r} is none of {choices}",
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
}
