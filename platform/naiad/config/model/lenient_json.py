"""Rewrites the lenient JSON that protobuf's parser in C++ accepts as JSON."""

from __future__ import annotations

import json
import re

__all__ = ["make_strict"]

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<double>"(?:[^"\\]|\\.)*")
    |'(?P<single>(?:[^'\\]|\\.)*)'
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<number>-?[0-9][0-9.eE+-]*)
    |(?P<mark>[{}\[\]:,])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED_QUOTE = re.compile(r"\\(.)", re.DOTALL)


def make_strict(text: str) -> str | None:
    """The same values as JSON; None if *text* has a character that begins no token.

    Strings in single quotes and keys without quotes get double quotes; a comma after a value and before a closing
    bracket is left out. Whether the result is JSON is for its parser to say.
    """
    words: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        if match.lastgroup != "space":
            _add(words, match)
    return "".join(words)


def _add(words: list[str], match: re.Match[str]) -> None:
    word = match.group()
    if match.lastgroup == "single":
        word = _double_quoted(match["single"])
    elif word in {"}", "]"} and len(words) > 1 and words[-1] == "," and words[-2] not in {"{", "[", ",", ":"}:
        words.pop()
    elif word == ":" and words and (words[-1][0].isalpha() or words[-1][0] in "_$"):
        words[-1] = json.dumps(words[-1])
    words.append(word)


def _double_quoted(content: str) -> str:
    """The content of a string in single quotes, in double quotes; its escapes stay, except that of a single quote."""

    def escape(match: re.Match[str]) -> str:
        return "'" if match[1] == "'" else match[0]

    # First the escapes, so that the quotes that are added below are not taken for escaped ones.
    parts = re.split(r"(\\.)", content, flags=re.DOTALL)
    return (
        '"'
        + "".join(
            _ESCAPED_QUOTE.sub(escape, part) if index % 2 else part.replace('"', '\\"')
            for index, part in enumerate(parts)
        )
        + '"'
    )
