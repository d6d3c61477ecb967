"""The JSON of requests that differ in nothing but their data: its skeleton, and the lists that were cut out of it.

Programs send the same JSON again and again around other numbers. `split` cuts a text at each `"data":`, without parsing
it. The skeleton is the text without the lists. Where one text was a valid request, and its lists were the data of its
inputs (`is_certain`), the same holds for each text with this skeleton whose lists are valid: in JSON, a value may take
the place of another. A text that `split` cuts in a wrong place has another skeleton, or a list that is not valid JSON.
"""

from __future__ import annotations

import re

_DATA = b'"data":'
_MAX_LISTS = 256
"""Lists that are cut out. Each may take a search through the rest of the text."""
_STRINGS = re.compile(rb'\s*\[\s*(?:"[^"\\]*(?:\\.[^"\\]*)*"\s*(?:,\s*|(?=\])))*\]', re.DOTALL)
"""A flat list of strings. No part of it can match in two ways, so that a search takes linear time."""
_DATA_MEMBER = re.compile(rb'"data"\s*:')
_OTHER_MEANINGS = (b"\\", b'"id"', b"binary_data_size", b"shared_memory_region")


def split(text: bytes, start: int = 0) -> tuple[bytes, list[bytes]]:
    """The skeleton of *text* from *start* on, and its lists of data in order; no lists for JSON without any."""
    parts: list[bytes] = []
    lists: list[bytes] = []
    mark = text.find(_DATA, start)
    while mark >= 0 and len(lists) < _MAX_LISTS:
        first = mark + len(_DATA)
        # Most lists have numbers, and are the last member of their input.
        end = text.find(b"}", first)
        quote = text.find(b'"', first, end)
        if quote >= 0:
            end = _end_of_list(text, first, quote)
        if end < 0:
            break
        parts.append(text[start:first])
        lists.append(text[first:end])
        start = end
        mark = text.find(_DATA, end)
    parts.append(text[start:])
    return b"".join(parts), lists


def _end_of_list(text: bytes, first: int, quote: int) -> int:
    """Where the list at *first* ends: a list of strings, or one that another member follows. *quote* is in either."""
    strings = _STRINGS.match(text, first)
    return strings.end() if strings is not None else text.rfind(b",", first, quote)


def is_certain(skeleton: bytes, count: int) -> bool:
    """Whether *count* lists that were cut out of a valid request with *count* inputs are the data of these inputs.

    Every input has one source of its data. If none of them is another one than `data`, and there are as many members
    `data` as inputs, each input has exactly one, in order, and nothing else has any. A backslash may spell a name in
    another way; of two members `id` the last one counts.
    """
    return len(_DATA_MEMBER.findall(skeleton)) == count and not any(each in skeleton for each in _OTHER_MEANINGS)
