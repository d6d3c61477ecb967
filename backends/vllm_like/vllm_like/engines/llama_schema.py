"""Validates JSON schemas for llama.cpp, which ignores a schema with an unsupported keyword instead of reporting it.

The generated text would then be unconstrained, so such schemas are rejected.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, Tuple

from vllm_like.engines.base import CallerError

_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_SCHEMA_KEYWORDS = frozenset(("items", "additionalProperties", "additionalItems"))
_LIST_KEYWORDS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAP_KEYWORDS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_CONSTRAINTS = frozenset((
    "type", "required", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "minItems", "maxItems", "pattern", "format", "$ref",
))  # fmt: skip
_ANNOTATIONS = frozenset((
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema", "$id",
    "$comment", "strict", "discriminator",
))  # fmt: skip
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
UNSUPPORTED_PATTERN = re.compile(r"\(\?[=!<]|\\[1-9]|\\b")
_MAX_PARTS = 10000


def check(schema: Any) -> None:
    """`CallerError` with the keyword and its path, unless llama.cpp supports a schema."""
    pending = [("#", schema)]
    count = 0
    while pending:
        path, part = pending.pop()
        count += 1
        if count > _MAX_PARTS:
            raise CallerError(f"the JSON schema has more than {_MAX_PARTS} parts")
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise CallerError(f"cannot use the JSON schema: {path} is not an object")
        _check_part(path, part, schema)
        pending += _parts(path, part)


def _parts(path: str, part: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
    for key, value in part.items():
        here = f"{path}/{key}"
        if key in _SCHEMA_KEYWORDS:
            yield here, value
        elif key in _LIST_KEYWORDS and isinstance(value, list):
            yield from ((f"{here}/{number}", item) for number, item in enumerate(value))
        elif key in _MAP_KEYWORDS and isinstance(value, dict):
            yield from ((f"{here}/{name}", item) for name, item in value.items())


def _check_part(path: str, part: Dict[str, Any], root: Any) -> None:
    for key, value in part.items():
        if key in _CONSTRAINTS:
            problem = _problem(key, value, root)
        elif key in _ANNOTATIONS or key in _SCHEMA_KEYWORDS:
            problem = ""
        elif key in _LIST_KEYWORDS or key in _MAP_KEYWORDS:
            problem = "" if isinstance(value, list if key in _LIST_KEYWORDS else dict) else "has the wrong type"
        else:
            problem = "is not supported by the engine xllamacpp"
        if problem:
            raise CallerError(f"cannot use the JSON schema: '{key}' at {path} {problem}")


def _problem(key: str, value: Any, root: Any) -> str:
    if key == "type":
        names = value if isinstance(value, list) else [value]
        wrong = [name for name in names if not isinstance(name, str) or name not in _TYPES]
        return f"has the unknown type {wrong[0]!r}" if wrong else ""
    if key == "format":
        return "" if value in _FORMATS else f"is {value!r}, which the engine xllamacpp does not support"
    if key == "pattern":
        return "is not supported by the engine xllamacpp" if UNSUPPORTED_PATTERN.search(str(value)) else ""
    if key == "$ref":
        return "" if _can_resolve(str(value), root) else f"does not resolve: {value!r}"
    return ""


def _can_resolve(reference: str, root: Any) -> bool:
    """Whether a reference resolves to a part of the schema itself."""
    if not reference.startswith("#"):
        return False
    part = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(part, dict) or name not in part:
            return False
        part = part[name]
    return True
