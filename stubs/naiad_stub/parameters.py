"""Parameters of requests and responses: checked as a dict, carried as JSON text."""

from __future__ import annotations

from typing import Any

from naiad_stub.exceptions import TritonModelException

EMPTY = "{}"
"""The parameters that a model reads if the request has none. The stub and the messages use an empty string instead."""


def parameters_json(parameters: Any) -> str:
    """The JSON text of *parameters*, a dict of str to bool, int or str; an empty string for None and {}."""
    if parameters is None:
        return ""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:  # JSON's readers make a double of it
            raise TritonModelException(
                f"Expect parameters values of type int to fit into 64 bits, found {value.bit_length()} bits for '{key}'"
            )
    if not parameters:
        return ""
    # Few models use parameters; the others need not pay for the import.
    import json

    try:
        json.dumps(parameters, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TritonModelException(f"Parameters hold text that cannot be sent: {error}") from None
    return json.dumps(parameters)
