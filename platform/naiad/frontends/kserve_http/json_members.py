"""Values of JSON members with the types they must have. The error texts are those of the reference's JSON library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naiad.core.errors import MalformedRequestError


def string_member(entry: Mapping[str, Any], member: str) -> str:
    """The value of a required member that must be a string; else MalformedRequestError, as for all functions here."""
    value = entry.get(member)
    if isinstance(value, str):
        return value
    if value is None:
        raise MalformedRequestError(
            f"Unable to parse '{member}': attempt to access non-existing object member '{member}'"
        )
    raise MalformedRequestError(f"Unable to parse '{member}': attempt to access JSON non-string as string")


def as_object(value: object, member: str) -> Mapping[str, Any]:
    """The value of *member* as an object."""
    if not isinstance(value, dict):
        raise MalformedRequestError(f"Unable to parse '{member}': attempt to access JSON non-object as object")
    return value


def as_unsigned(value: object, prefix: str) -> int:
    """*value* as an unsigned integer of 64 bits; *prefix* begins the error, such as `Unable to parse 'timeout': `."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value >> 64:
        raise MalformedRequestError(f"{prefix}attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_boolean(value: object, prefix: str) -> bool:
    """*value* as a boolean; *prefix* as in `as_unsigned`."""
    if not isinstance(value, bool):
        raise MalformedRequestError(f"{prefix}attempt to access JSON non-boolean as boolean")
    return value


def as_string(value: object, prefix: str) -> str:
    """*value* as a string; *prefix* as in `as_unsigned`."""
    if not isinstance(value, str):
        raise MalformedRequestError(f"{prefix}attempt to access JSON non-string as string")
    return value
