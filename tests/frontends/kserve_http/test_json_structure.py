"""Depth and objects of JSON, compared with a scan byte by byte."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import InvalidRequestError
from naiad.frontends.kserve_http import json_structure
from naiad.frontends.kserve_http.json_structure import MAX_DEPTH, check_structure

TOO_DEEP = r"JSON nesting depth exceeds maximum allowed limit \(100\)"


def scan(text: bytes) -> tuple[int, int]:
    """The greatest depth and the number of objects."""
    depth = deepest = objects = 0
    is_in_string = is_escaped = False
    for byte in text:
        if is_in_string:
            if is_escaped:
                is_escaped = False
            elif byte == ord("\\"):
                is_escaped = True
            elif byte == ord('"'):
                is_in_string = False
        elif byte == ord('"'):
            is_in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            objects += byte == ord("{")
        elif byte in b"]}":
            depth -= 1
    return deepest, objects


def refused(text: bytes, max_objects: int | None = None) -> str:
    try:
        check_structure(text, max_objects=max_objects)
    except InvalidRequestError as error:
        return error.message.split("(")[0]
    return ""


DOCUMENTS = st.recursive(
    st.text(alphabet='ab[]{}"\\', max_size=8) | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('x"\\{', max_size=3), inner, max_size=3),
    max_leaves=30,
)


@pytest.mark.parametrize("chunk", [1 << 20, 7, 1])
def test_any_json_is_judged_as_by_a_scan(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(json_structure, "_CHUNK", chunk)
    monkeypatch.setattr(json_structure, "MAX_DEPTH", 3)

    @settings(max_examples=150, deadline=None)
    @given(DOCUMENTS, st.integers(0, 6))
    def check(document: object, max_objects: int) -> None:
        text = orjson.dumps(document)
        deepest, objects = scan(text)
        assert bool(refused(text)) == (deepest > 3)
        assert bool(refused(text, max_objects)) == (deepest > 3 or objects > max_objects)

    check()


def test_depth_is_limited() -> None:
    assert not refused(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    with pytest.raises(InvalidRequestError, match=TOO_DEEP):
        check_structure(b"[" * (MAX_DEPTH + 1))
    with pytest.raises(InvalidRequestError, match=TOO_DEEP):
        check_structure(b'[" ]]]] \\" ]]]]]", ' * (MAX_DEPTH + 1))


def test_brackets_in_strings_do_not_nest() -> None:
    assert not refused(b'["' + b"[" * 5_000_000 + b'"]')
    assert not refused(b'["' + b'\\"[{' * 100_000 + b'"]', 10)


@pytest.mark.parametrize("end", [b"", b"\\", b'\\"'])
def test_a_string_without_end_reaches_to_the_end(end: bytes) -> None:
    assert not refused(b'["' + b"[" * 1000 + end)
    assert refused(b"[" * 101 + b'"[' + end)


def test_many_objects_are_refused_with_their_limit() -> None:
    text = b"[" + b"{}," * 20_000 + b"{}]"
    assert not refused(text)
    with pytest.raises(InvalidRequestError, match="it has more than 10000 objects; an inference request has two"):
        check_structure(text, max_objects=10_000)
