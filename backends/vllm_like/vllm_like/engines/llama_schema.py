"""Which JSON schemas llama.cpp follows. Others it drops without a word and writes what it likes: they are refused."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Tuple

from vllm_like.engines.base import CallerError

_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_ONE = frozenset(("items", "additionalProperties", "additionalItems"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_LIMITS = frozenset((
    "type", "required", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "minItems", "maxItems", "pattern", "format", "$ref",
))  # fmt: skip
_NOTES = frozenset((
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
    "$comment", "strict", "discriminator",
))  # fmt: skip
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
_UNFOLLOWED_PATTERN = re.compile(r"\(\?[=!<]|\\[1-9]|\\b")
_MOST_PARTS = 10000


def check(schema: Any) -> None:
    """Raise where a schema would not be followed.

    Raises:
        CallerError: It says what and where.
    """
    pending = [("#", schema)]
    count = 0
    while pending:
        path, part = pending.pop()
        count += 1
        if count > _MOST_PARTS:
            raise CallerError(f"the JSON schema has more than {_MOST_PARTS} parts")
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise CallerError(f"the JSON schema cannot be followed: {path} is no object")
        _check_part(path, part, schema)
        pending += _parts(path, part)


def _parts(path: str, part: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
    for key, value in part.items():
        here = f"{path}/{key}"
        if key in _ONE:
            yield here, value
        elif key in _LISTS and isinstance(value, list):
            yield from ((f"{here}/{number}", item) for number, item in enumerate(value))
        elif key in _MAPS and isinstance(value, dict):
            yield from ((f"{here}/{name}", item) for name, item in value.items())


def _check_part(path: str, part: Dict[str, Any], root: Any) -> None:
    for key, value in part.items():
        if key in _LIMITS:
            problem = _problem(key, value, root)
        elif key in _NOTES or key in _ONE:
            problem = ""
        elif key in _LISTS or key in _MAPS:
            problem = "" if isinstance(value, list if key in _LISTS else dict) else "is of the wrong type"
        else:
            problem = "is not supported by the engine xllamacpp"
        if problem:
            raise CallerError(f"the JSON schema cannot be followed: '{key}' at {path} {problem}")


def _problem(key: str, value: Any, root: Any) -> str:
    if key == "type":
        names = value if isinstance(value, list) else [value]
        wrong = [name for name in names if not isinstance(name, str) or name not in _TYPES]
        return f"names no type: {wrong[0]!r}" if wrong else ""
    if key == "format":
        return "" if value in _FORMATS else f"is {value!r}, which the engine xllamacpp does not know"
    if key == "pattern":
        return "is not supported by the engine xllamacpp" if _UNFOLLOWED_PATTERN.search(str(value)) else ""
    if key == "$ref":
        return "" if _is_there(str(value), root) else f"leads nowhere: {value!r}"
    return ""


def _is_there(reference: str, root: Any) -> bool:
    """Whether a reference names a part of the schema itself."""
    if not reference.startswith("#"):
        return False
    part = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(part, dict) or name not in part:
            return False
        part = part[name]
    return True


def written(schema: Any) -> Dict[str, Any]:
    """*schema* with the one way to put blanks that `json.dumps` has: weak models would go on with blanks for ever."""
    rules = schema if isinstance(schema, dict) else {}  # True: whatever is JSON
    return {**rules, "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
