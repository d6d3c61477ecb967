"""The fields of a request's JSON: which there are, of which type, and in which range."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from naiad.frontends.openai.errors import TOO_LARGE, ApiError
from naiad.protocol.inference import Buffer


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text_or_texts(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


_KINDS: Mapping[str, Callable[[object], bool]] = {
    "a boolean": lambda value: isinstance(value, bool),
    "an integer": _is_integer,
    "a number": _is_number,
    "a string": lambda value: isinstance(value, str),
    "an object": lambda value: isinstance(value, dict),
    "an array": lambda value: isinstance(value, list),
    "a string or an array of strings": _is_text_or_texts,
    "anything": lambda _: True,
}


class Rule(NamedTuple):
    """What a field may hold.

    Attributes:
        kind: Its type in words.
        low: The least it may be; None for no limit.
        high: The most.
    """

    kind: str
    low: float | None = None
    high: float | None = None


Rules = Mapping[str, Rule]

BOOLEAN = Rule("a boolean")
INTEGER = Rule("an integer")
NUMBER = Rule("a number")
TEXT = Rule("a string")
OBJECT = Rule("an object")
ARRAY = Rule("an array")
TEXTS = Rule("a string or an array of strings")
ANYTHING = Rule("anything")


def parse(body: Buffer, limit: int) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        ApiError: If it is none, or longer than *limit* bytes.
    """
    if len(body) > limit:
        raise ApiError(
            f"The request has {len(body)} bytes, more than the {limit} that --http-max-input-size allows",
            status=TOO_LARGE,
        )
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise ApiError(f"We could not parse the JSON body of your request: {problem}") from None
    if not isinstance(document, dict):
        raise ApiError("The body of the request must be a JSON object")
    return document


def checked(document: Mapping[str, Any], rules: Rules, required: tuple[str, ...]) -> dict[str, Any]:
    """The fields of *document* that are given, null counting as not given.

    Raises:
        ApiError: If one is unknown, missing, of the wrong type or out of range.
    """
    for name in document:
        if name not in rules:
            close = difflib.get_close_matches(name, rules, 1)
            advice = f"; did you mean `{close[0]}`?" if close else ""
            raise ApiError(f"Unrecognized request argument supplied: {name}{advice}", param=name)
    for name in required:
        if document.get(name) is None:
            raise ApiError(f"you must provide a `{name}` parameter", param=name, code="missing_required_parameter")
    given = {name: value for name, value in document.items() if value is not None}
    for name, value in given.items():
        _check(name, value, rules[name])
    return given


def _check(name: str, value: object, rule: Rule) -> None:
    if not _KINDS[rule.kind](value):
        raise ApiError(f"`{name}` must be {rule.kind}, not {_kind_of(value)}", param=name, code="invalid_type")
    if (rule.low is None and rule.high is None) or not isinstance(value, int | float):
        return
    if (rule.low is not None and value < rule.low) or (rule.high is not None and value > rule.high):
        limits = f"between {rule.low} and {rule.high}" if rule.high is not None else f"at least {rule.low}"
        raise ApiError(f"`{name}` must be {limits}, got {value}", param=name, code="invalid_value")


def _kind_of(value: object) -> str:
    return next(kind for kind, is_one in _KINDS.items() if is_one(value))
