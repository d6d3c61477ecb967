"""The reader of TOML, and its errors with the line that is malformed and a caret, as compilers print them."""

from __future__ import annotations

import re
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["explain_toml_error", "tomllib"]  # others import the reader from here

_PLACE = re.compile(r"\s*\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_WIDEST = 160


def explain_toml_error(error: ValueError, text: str) -> str:
    """What is wrong in a TOML text, with its place and the line; the parser's own text where it names no place."""
    message = str(error)
    place = _PLACE.search(message)
    if place is None:
        return message
    lines = text.splitlines()
    what = message[: place.start()]
    what = what[:1].lower() + what[1:]
    if place["line"] is None:
        return f"{what} at the end of the file" if not lines else _shown(what, lines, len(lines), len(lines[-1]) + 1)
    return _shown(what, lines, int(place["line"]), int(place["column"]))


def _shown(what: str, lines: list[str], line: int, column: int) -> str:
    source = lines[line - 1] if 0 < line <= len(lines) else ""
    # Tabs are kept before the caret, so that it is below its place however wide they are shown.
    before = "".join("\t" if each == "\t" else " " for each in source[: column - 1])
    number = str(line)
    edge = " " * len(number)
    shown = f"{what} at line {line}, column {column}"
    if len(source) > _WIDEST:
        return shown
    return f"{shown}\n {edge} |\n {number} | {source}\n {edge} | {before}^"
