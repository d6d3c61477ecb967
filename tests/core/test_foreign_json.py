"""JSON of other programs: everything that is wrong with it is one kind of error."""

from __future__ import annotations

import pytest

from naiad.core.foreign_json import read_json


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[" * 3_000_000, "it is nested too deeply"),
        ('{"a":' * 300_000, "it is nested too deeply"),
        ("1" * 5000, "a number has thousands of digits"),
        ("{", "Expecting property name"),
        (b"\xff", "codec can't decode"),
    ],
)
def test_whatever_is_wrong_is_a_value_error(text: bytes | str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_json(text)


def test_what_is_right_is_read() -> None:
    assert read_json(b'{"a": [1, "\xc3\xa9"]}') == {"a": [1, "\u00e9"]}
