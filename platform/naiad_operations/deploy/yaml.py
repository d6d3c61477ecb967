"""Writes YAML: maps, lists and scalars.

Text is quoted as in JSON, since YAML is a superset of JSON. Several lines of plain text become a block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["documents"]

# Text that every version of YAML reads as text without quotes. `_WORDS` match, and YAML 1.1 reads them as booleans.
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
# Lines that a block has as they are: no control characters, no spaces at the ends of a line, and the first line is not
# indented, since the indentation of a block is that of its first line.
_BLOCK = re.compile(r"[!-~]([ -~]*[!-~])?(\n( *[!-~]([ -~]*[!-~])?)?)*\n")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def documents(values: Iterable[Mapping[str, Any]]) -> str:
    """The text of several documents, separated by `---`."""
    return "---\n".join("\n".join(_lines(value, 0)) + "\n" for value in values)


def _lines(value: Any, depth: int) -> Iterator[str]:
    indent = "  " * depth
    if isinstance(value, Mapping):
        for key, one in value.items():
            if _is_nested(one):
                yield f"{indent}{_scalar(key)}:"
                yield from _lines(one, depth + 1)
            elif _is_block(one):
                yield f"{indent}{_scalar(key)}: |"
                yield from (f"{indent}  {line}".rstrip() for line in one.splitlines())
            else:
                yield f"{indent}{_scalar(key)}: {_scalar(one)}"
        return
    for one in value:
        if _is_nested(one):
            first, *others = _lines(one, depth + 1)
            yield f"{indent}- {first.lstrip()}"
            yield from others
        else:
            yield f"{indent}- {_scalar(one)}"


def _is_nested(value: Any) -> bool:
    return bool(value) and (isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str)))


def _is_block(value: Any) -> bool:
    """Whether a value is text of several lines that ends with exactly one line break."""
    return isinstance(value, str) and _BLOCK.fullmatch(value) is not None and not value.endswith("\n\n")


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
