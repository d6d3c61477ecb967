"""Converts arguments of the API: like the reference it accepts more types than its signatures name.

Models pass on what they find in tensors, where names are bytes and numbers are numpy's, in arrays of one element.
"""

from __future__ import annotations

from operator import index
from typing import Any, Sequence


def text(rule: str, value: Any) -> str:
    """*value* as a str: bytes are UTF-8. *rule* is the beginning of the error."""
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)  # a subclass, such as numpy's, may have another `__str__`
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    raise TypeError(f"{rule}, got {type(value).__name__}")


def integer(name: str, value: Any, low: int, bits: int) -> int:
    """*value* as an int of *bits* bits from *low* on; accepts arrays of one number, but not floats and strings."""
    try:
        number = index(value)
    except TypeError:
        number = _converted(name, value)
    if not low <= number < low + (1 << bits):
        raise TypeError(f"{name} must be from {low} to {low + (1 << bits) - 1}, got {number}")
    return number


def _converted(name: str, value: Any) -> int:
    """*value*, which has no `__index__`, converted to int."""
    # `int` uses `__trunc__` too, and before Python 3.11 it is all that a Fraction has.
    if (hasattr(value, "__int__") or hasattr(value, "__trunc__")) and not isinstance(value, float):
        try:
            # Numpy warns of `int(array)`, unless the array has no dimensions.
            return int(value.item() if hasattr(value, "item") else value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise TypeError(f"{name} must be an int, got {type(value).__name__}")


def sequence(name: str, value: Any) -> Sequence[Any]:
    """*value* as a list or tuple; accepts other sequences such as numpy's arrays, but not strings and sets."""
    if isinstance(value, (list, tuple)):
        return value
    no_list = isinstance(value, (str, bytes, bytearray, memoryview)) or hasattr(value, "keys")
    if no_list or not hasattr(value, "__getitem__"):
        raise TypeError(f"{name} must be a list, got {type(value).__name__}")
    return list(value)
