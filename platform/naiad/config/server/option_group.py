"""How options are declared: each field of an option group says which flag it is read from.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class HttpOptions:
        port: int = option("http-port", "Port to listen on.", Kind.INTEGER, "8000", low=0, high=65535)

From that one line come the flag in the usage and the reference page (`flags_of`), its check, and the field's value
(`read_group`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from naiad.config.server.flag import Flag, Kind
from naiad.config.server.flag_values import FlagValues

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FLAGS, _READ = "flags", "read"
_READERS = {Kind.NOTHING: FlagValues.switch, Kind.STRING: FlagValues.text}
Group = TypeVar("Group", bound="DataclassInstance")


# `Any` as for `dataclasses.field`: the value is a field specifier, the annotation beside it gives the type.
def option(
    name: str,
    help: str,  # noqa: A002 - named as the attribute of Flag
    kind: Kind = Kind.STRING,
    default: str = "",
    *,
    read: Callable[[FlagValues, str], object] | None = None,
    **more: Any,
) -> Any:
    """A field of an option group that one flag sets.

    Args:
        read: Returns the field's value from the values of all flags and this flag's name; by default the flag's value.
    """
    flag = Flag(name, help, kind, default, **more)
    reader = read or (FlagValues.texts if flag.repeatable else _READERS.get(kind, FlagValues.last))
    return field(metadata={_FLAGS: (flag,), _READ: lambda values: reader(values, name)})


# Fields that flags set which Triton does not have: of any kind, of flags without a value, and of names of files.
own_option = partial(option, own=True)
own_switch = partial(option, kind=Kind.NOTHING, own=True)
own_path = partial(option, read=FlagValues.path, own=True)


def combined(read: Callable[[FlagValues], object], *flags: Flag) -> Any:
    """A field of an option group whose value depends on several flags, which it declares in the order of the usage."""
    return field(metadata={_FLAGS: flags, _READ: read})


def flags_of(heading: str, *sources: type[DataclassInstance] | Sequence[Flag]) -> tuple[Flag, ...]:
    """The flags of option groups, and plain flags, under one heading of the usage.

    A group's flags keep the order of its class body. A flag that sets no field, as it has no effect, is declared there
    as a class variable, so that it keeps its place in the usage.
    """
    flags: list[Flag] = []
    for source in sources:
        flags += _flags_of_group(source) if isinstance(source, type) else source
    return tuple(replace(flag, group=heading) for flag in flags)


def read_group(group: type[Group], values: FlagValues) -> Group:
    """The group with all its fields read from the values of flags."""
    return group(**{each.name: each.metadata[_READ](values) for each in fields(group)})


def _flags_of_group(group: type[DataclassInstance]) -> list[Flag]:
    declared = {each.name: each.metadata[_FLAGS] for each in fields(group)}
    flags: list[Flag] = []
    for name in group.__annotations__:  # in the order of the class body, fields and class variables alike
        flags += declared[name] if name in declared else (getattr(group, name),)
    return flags
