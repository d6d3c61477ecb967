"""The JSON of requests that differ in nothing but their data: its skeleton, and the lists that were cut out of it.

Programs send the same JSON again and again around other numbers. `split` cuts a text at each `"data":`, without parsing
it. The skeleton is the text without the lists. Where one text was a valid request, and its lists were the data of its
inputs (`is_certain`), the same holds for each text with this skeleton whose lists are valid: in JSON, a value may take
the place of another. A text that `split` cuts in a wrong place has another skeleton, or a list that is not valid JSON.
"""

from __future__ import annotations

import re

_DATA = b'"data":'
_STRINGS = re.compile(rb'\s*\[\s*(?:"[^"\\]*(?:\\.[^"\\]*)*"\s*(?:,\s*|(?=\])))*\]', re.DOTALL)
"""A flat list of strings. No part of it can match in two ways, so that a search takes linear time."""
_DATA_MEMBER = re.compile(rb'"data"\s*:')
_OTHER_MEANINGS = (b"\\", b"binary_data_size", b"shared_memory_region")


def split(text: bytes) -> tuple[bytes, list[bytes]]:
    """The skeleton of *text*, and its lists of data in order; no lists for JSON without any."""
    first, *rest = text.split(_DATA)
    outside = [first]
    lists = []
    for part in rest:
        # Most lists have numbers, and are the last member of their input.
        end = part.find(b"}")
        data = part[:end]
        if b'"' in data:
            end = _end_of_list(part)
            data = part[:end]
        lists.append(data)
        outside.append(part[end:])
    return _DATA.join(outside), lists


def pieces_of(skeleton: bytes) -> tuple[bytes, ...]:
    """What is before, between and behind the lists of a text with this skeleton."""
    *pieces, last = skeleton.split(_DATA)
    return (*[piece + _DATA for piece in pieces], last)


def cut(text: bytes, pieces: tuple[bytes, ...]) -> list[bytes] | None:
    """The lists of a text with these pieces around them; None if it has others. In less time than `split` takes."""
    first, last = pieces[0], pieces[-1]
    if not (text.startswith(first) and text.endswith(last)):
        return None
    lists = []
    start = len(first)
    for piece in pieces[1:-1]:
        end = text.find(piece, start)
        if end < 0:
            return None
        lists.append(text[start:end])
        start = end + len(piece)
    lists.append(text[start : len(text) - len(last)])
    return lists if start + len(last) <= len(text) else None


def _end_of_list(part: bytes) -> int:
    """Where the list at the beginning of *part* ends: a list of strings, or one that another member follows."""
    strings = _STRINGS.match(part)
    return strings.end() if strings is not None else part.rfind(b",", 0, part.find(b'"'))


def is_certain(skeleton: bytes, count: int) -> bool:
    """Whether *count* lists that were cut out of a valid request with *count* inputs are the data of these inputs.

    Every input has one source of its data. If none of them is another one than `data`, and there are as many members
    `data` as inputs, each input has exactly one, in order, and nothing else has any. A backslash may spell a name in
    another way.
    """
    return len(_DATA_MEMBER.findall(skeleton)) == count and not any(each in skeleton for each in _OTHER_MEANINGS)
