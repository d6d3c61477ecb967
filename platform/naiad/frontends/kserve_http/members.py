"""Members of JSON objects with the types they must have; errors in the words of the reference's JSON library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naiad.errors import MalformedRequestError


def string(entry: Mapping[str, Any], member: str) -> str:
    """A member that must be there and be a string.

    Raises:
        MalformedRequestError: If it is not.
    """
    value = entry.get(member)
    if isinstance(value, str):
        return value
    if value is None:
        raise MalformedRequestError(
            f"Unable to parse '{member}': attempt to access non-existing object member '{member}'"
        )
    raise MalformedRequestError(f"Unable to parse '{member}': attempt to access JSON non-string as string")


def json_object(value: object, member: str) -> Mapping[str, Any]:
    """The value of a member that must be an object.

    Raises:
        MalformedRequestError: If it is none.
    """
    if not isinstance(value, dict):
        raise MalformedRequestError(f"Unable to parse '{member}': attempt to access JSON non-object as object")
    return value


def unsigned(value: object, doing: str) -> int:
    """The value of a member that must be an unsigned integer.

    Args:
        value: The value.
        doing: What could not be done with it, as `Unable to parse 'timeout': `.

    Raises:
        MalformedRequestError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value >> 64:
        raise MalformedRequestError(f"{doing}attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def boolean(value: object, doing: str) -> bool:
    """The value of a member that must be true or false.

    Raises:
        MalformedRequestError: If it is neither.
    """
    if not isinstance(value, bool):
        raise MalformedRequestError(f"{doing}attempt to access JSON non-boolean as boolean")
    return value


def text(value: object, doing: str) -> str:
    """The value of a member that must be a string.

    Raises:
        MalformedRequestError: If it is none.
    """
    if not isinstance(value, str):
        raise MalformedRequestError(f"{doing}attempt to access JSON non-string as string")
    return value
