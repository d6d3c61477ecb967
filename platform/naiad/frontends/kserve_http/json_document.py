"""The JSON object of a request, with what the reference's parser accepts beyond standard JSON.

That parser reads numbers that are not finite (`NaN`, `Inf` and `Infinity`, each with an optional sign), takes the bytes
of strings as they are, and finds the first of two members with one name. orjson reads almost all requests, and says
where others are malformed. A text that it cannot read, or in which a name may occur twice, is read more slowly.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Container
from typing import Any

import orjson

from naiad.core.errors import InvalidRequestError, MalformedRequestError
from naiad.frontends.kserve_http.json_structure import check_structure
from naiad.protocol.inference import Buffer

_DATA = frozenset({"data"})
_NOT_FINITE = re.compile(rb"(?<![\w.+-])(-?)(NaN|Inf(?:inity)?)(?![\w.+-])")
_KEY = re.compile(rb'"[ \t\r\n]*:')
_MAX_DIGITS = 20  # digits and sign of the longest integer of 64 bits


def parse_json(
    text: Buffer,
    *,
    not_an_object: str = "failed to parse the request JSON buffer: it must be an object",
    max_objects: int | None = None,  # how many objects it may contain; None for any number
    # The members whose values are elements of tensors. Their strings may have bytes that are not UTF-8, which are the
    # surrogates U+DC80 to U+DCFF of `surrogateescape`.
    data: Container[str] = _DATA,
    has_unique_names: bool = False,  # whether the caller rejects equal names; else the first counts
) -> dict[str, Any]:
    """The JSON object of a request.

    Raises:
        InvalidRequestError: If it is not a JSON object, is nested deeper than 100 levels, or has too many objects; and
            if a string outside of *data* is not UTF-8.
    """
    raw = bytes(text).removeprefix(codecs.BOM_UTF8)  # editors on Windows write it
    if raw.endswith(b"\0"):
        raw = raw.rstrip(b"\0")  # C programs send the terminator of their strings
    check_structure(raw, max_objects=max_objects)
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        document = _read_unusual(raw, problem, data)
    else:
        if not has_unique_names and may_repeat_names(raw, document):
            document = _read(raw.decode())
    if not isinstance(document, dict):
        raise MalformedRequestError(not_an_object)
    return document


def may_repeat_names(text: bytes, document: Any) -> bool:
    """Whether an object of a JSON text may have two members of one name: a quick check with false positives."""
    # Each member has a colon. So if there are as many colons as members, none is missing.
    members = _count_members(document) if type(document) is dict else 0
    return text.count(b":") != members and len(_KEY.findall(text)) != members


def _count_members(members: dict[str, Any]) -> int:
    """The members of an object and of those in it, but not of those in lists of other elements, such as tensors."""
    count = len(members)
    for value in members.values():
        kind = type(value)
        if kind is dict:
            count += _count_members(value)
        elif kind is list and value and type(value[0]) is dict:
            count += sum([_count_members(each) for each in value if type(each) is dict])
    return count


def _read_unusual(raw: bytes, problem: orjson.JSONDecodeError, data: Container[str]) -> Any:
    """A text that is not standard JSON."""
    has_numbers = b"NaN" in raw or b"Inf" in raw
    text = raw.decode("utf-8", "surrogateescape")
    is_utf8 = text.isascii() or not _has_surrogates(text)
    if is_utf8 and not has_numbers:
        raise _malformed(problem)
    usual = raw if is_utf8 else raw.decode("utf-8", "replace").encode()
    if has_numbers:
        usual = _replace_not_finite(usual, _finite)
        text = _replace_not_finite(raw, _known_to_python).decode("utf-8", "surrogateescape")
    try:
        orjson.loads(usual)  # which refuses what `json` alone would accept
    except orjson.JSONDecodeError as other:
        raise _malformed(other) from None
    document = _read(text)
    if not is_utf8:
        _check_text(document, data)
    return document


def _malformed(problem: orjson.JSONDecodeError) -> MalformedRequestError:
    return MalformedRequestError(f"failed to parse the request JSON buffer: {reason_of(problem)} at {problem.pos}")


def reason_of(problem: orjson.JSONDecodeError) -> str:
    """Why orjson refuses a text, in words for clients; MemoryError if it may be right, and memory is short."""
    if problem.msg.startswith("Not enough memory"):
        raise MemoryError from None
    if problem.msg.startswith("number is infinity"):
        return "a number is too large for a double"
    if "surrogates not allowed" in problem.msg:
        return "it is not UTF-8"
    return problem.msg


def _read(text: str) -> Any:
    """A text that is valid: of equal names the first member, and integers beyond 64 bits as orjson reads them."""
    return json.loads(text, parse_int=_integer, object_pairs_hook=_first_members)


def _first_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        members.setdefault(name, value)
    return members


def _integer(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        return float(text)
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 64 else float(value)


def _replace_not_finite(text: bytes, replacement: Callable[[re.Match[bytes]], bytes]) -> bytes:
    """The text with other words in place of the numbers that are not finite, which strings may have, too."""
    parts = text.replace(b"\\\\", b"__").replace(b'\\"', b"__").split(b'"')
    start = 0
    for index, part in enumerate(parts):
        end = start + len(part)
        parts[index] = text[start:end] if index % 2 else _NOT_FINITE.sub(replacement, part)
        start = end + 1
    return b'"'.join(parts)


def _finite(found: re.Match[bytes]) -> bytes:
    """Another number of as many characters, so that an error names the right place."""
    return found[1] + b"1." + b"0" * (len(found[2]) - 2)


def _known_to_python(found: re.Match[bytes]) -> bytes:
    return b"NaN" if found[2] == b"NaN" else found[1] + b"Infinity"  # the reference ignores the sign of NaN


def _check_text(document: Any, data: Container[str]) -> None:
    """Reject bytes that are not UTF-8 outside of the elements of tensors: all else becomes text on its way."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            waiting += value
            waiting += [each for name, each in value.items() if name not in data]
        elif type(value) is list:
            waiting += value
        elif type(value) is str and _has_surrogates(value):
            shown = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise InvalidRequestError(
                f"cannot read the request JSON buffer: '{shown[:100]}' is not UTF-8; only elements of BYTES tensors "
                "may have other bytes"
            )


def _has_surrogates(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
