"""The fields of a request's JSON: which there are, of which type, and in which range."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from naiad.frontends.openai.errors import TOO_LARGE, ApiError
from naiad.protocol.inference import Buffer

logger = logging.getLogger("naiad.openai")

_MISSPELT = 0.88
"""How alike an unknown name and a known one must be for a misspelling: `top_a` and `top_p`, which are not, have 0.8."""
_FOREIGN = frozenset({"models"})
"""Names that look misspelt and are not: other servers know them."""
_MOST_NAMED = 100
_named: set[str] = set()
"""Unknown fields that the log has told of."""


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
NONE: Mapping[str, str] = {}


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


def as_json(value: object) -> str:
    """JSON for a model, of what a request holds.

    Raises:
        ApiError: If it is nested more deeply than JSON can be written here, which is less than can be read.
    """
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as problem:
        raise ApiError(f"We could not pass the JSON body of your request on: {problem}") from None


def checked(
    document: Mapping[str, Any], rules: Rules, required: tuple[str, ...], unsupported: Mapping[str, str] = NONE
) -> dict[str, Any]:
    """The known fields of *document* that are given, null counting as not given.

    Clients send to everybody what some servers know, so that unknown fields are ignored, and the log tells of them.

    Args:
        document: The request.
        rules: What known fields may hold.
        required: Those that must be given.
        unsupported: Fields that would make the answer another one, and what to do instead.

    Raises:
        ApiError: If one is unsupported, probably misspelt, missing, of the wrong type or out of range.
    """
    given = {name: value for name, value in document.items() if value is not None}
    for name in [name for name in given if name not in rules]:
        if given.pop(name) and name in unsupported:
            raise ApiError(f"`{name}` is not supported: {unsupported[name]}", param=name, code="unsupported_parameter")
        _ignore(name, rules)
    for name in required:
        if name not in given:
            raise ApiError(f"you must provide a `{name}` parameter", param=name, code="missing_required_parameter")
    for name, value in given.items():
        _check(name, value, rules[name])
    return given


def _ignore(name: str, rules: Rules) -> None:
    close = difflib.get_close_matches(name[:100], rules, 1, _MISSPELT)
    if close and name not in _FOREIGN:
        advice = f"did you mean `{close[0]}`?"
        raise ApiError(f"Unrecognized request argument supplied: {name}; {advice}", param=name)
    if name not in _named and len(_named) < _MOST_NAMED:
        _named.add(name)
        logger.info("requests have a field %.100r, which is unknown here and ignored", name)


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
