"""Typed messages: each kind comes back as it was packed, and anything else is a WireError."""

from __future__ import annotations

import contextlib
import inspect

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naiad_stub import messages
from naiad_stub.messages import (
    FROM_FORK_SERVER,
    FROM_GUEST,
    READINESS_QUERIES,
    READINESS_REPLIES,
    TO_ANY_THREAD,
    TO_FORK_SERVER,
    TO_MAIN_THREAD,
    Completed,
    Log,
    Message,
    ReadinessQuery,
    Ready,
    Trim,
    WantRelease,
    pack,
    unpack,
)
from naiad_stub.wire import FRAME, FrameReader, Kind, WireError

TABLES = (
    FROM_GUEST,
    READINESS_REPLIES,
    TO_MAIN_THREAD,
    TO_ANY_THREAD,
    READINESS_QUERIES,
    FROM_FORK_SERVER,
    TO_FORK_SERVER,
)
ALL = {kind: message for table in TABLES for kind, message in table.items()}
HAND_PACKED = {Kind.EXECUTE, Kind.REPORTS, Kind.RESPONSES, Kind.CALL, Kind.RESULT}

NUMBERS = st.integers(0, 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = {
    "u": NUMBERS,
    "b": st.booleans(),
    "s": TEXTS,
    "q": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    "m": st.dictionaries(TEXTS, TEXTS, max_size=5),
}
ANNOTATIONS = {"u": "int", "b": "bool", "s": "str", "q": "List[int]", "m": "Dict[str, str]"}
CLASSES = [ALL[kind] for kind in sorted(ALL)]
BY_CLASS = pytest.mark.parametrize("message_class", CLASSES, ids=[message.__name__ for message in CLASSES])


def messages_of(message_class):
    return st.tuples(*[VALUES[code] for code in message_class.format]).map(lambda values: message_class(*values))


FEW = settings(max_examples=settings().max_examples // 4)  # of each of sixty classes
MESSAGES = st.sampled_from(CLASSES).flatmap(messages_of)


def payload_of(data: bytes) -> bytes:
    return data[FRAME.size :]


def test_every_kind_has_one_class_in_one_table_or_is_packed_by_hand():
    kinds = {value for name, value in vars(Kind).items() if not name.startswith("_")}
    assert sum(len(table) for table in TABLES) == len(ALL)
    assert set(ALL) == kinds - HAND_PACKED
    defined = {each for each in vars(messages).values() if isinstance(each, type) and issubclass(each, Message)}
    assert set(CLASSES) == defined - {Message}


@BY_CLASS
def test_the_format_of_a_message_is_that_of_its_fields(message_class):
    parameters = inspect.signature(message_class).parameters
    assert tuple(parameters) == message_class.__slots__
    assert [each.annotation for each in parameters.values()] == [ANNOTATIONS[code] for code in message_class.format]


@BY_CLASS
@FEW
@given(data=st.data())
def test_message_comes_back_as_it_was_packed(message_class, data):
    message = data.draw(messages_of(message_class))
    [(kind, payload)] = FrameReader().feed(pack(message))
    assert kind == message_class.kind
    assert unpack(ALL, kind, payload) == message


@BY_CLASS
@FEW
@given(data=st.data())
def test_message_cut_short_or_too_long_is_rejected(message_class, data):
    payload = payload_of(pack(data.draw(messages_of(message_class))))
    with pytest.raises(WireError, match="bytes too many"):
        unpack(ALL, message_class.kind, payload + b"\0")
    if payload:
        with pytest.raises(WireError):
            unpack(ALL, message_class.kind, payload[: data.draw(st.integers(0, len(payload) - 1))])


@given(st.sampled_from([*ALL, Kind.EXECUTE, Kind.RESPONSES, 0, 999]), st.binary(max_size=80))
@example(Kind.RELEASE_OUTPUTS, b"\xff\xff\xff\xff")
@example(Kind.LOAD, b"\xff\xff\xff\xff")
@example(Kind.COMPLETED, b"\xff\xff\xff\xff")
@example(Kind.READY, b"\xff" * 16)
def test_random_bytes_are_a_wire_error_and_no_other_exception(kind, payload):
    with contextlib.suppress(WireError):
        unpack(ALL, kind, payload)


def test_message_of_another_direction_is_rejected():
    with pytest.raises(WireError, match=f"a message of kind {Kind.TRIM} is not allowed here"):
        unpack(FROM_GUEST, Kind.TRIM, b"")


def test_bool_other_than_0_and_1_is_rejected():
    payload = payload_of(pack(Ready(True, False)))
    with pytest.raises(WireError, match="a bool is 2"):
        unpack(FROM_GUEST, Kind.READY, payload.replace(b"\x01", b"\x02"))


def test_messages_are_compared_and_printed_by_kind_and_fields():
    assert Trim() == Trim()
    assert Trim() != WantRelease()
    assert ReadinessQuery(1) != ReadinessQuery(2)
    assert ReadinessQuery(1) != 1
    assert repr(Log(2, "model.py", 7, "a line")) == "Log(level=2, file='model.py', line=7, text='a line')"


@pytest.mark.parametrize(
    ("text", "arrives"),
    [("a\udcffb", "a\udcffb"), ("half \ud800 a pair", "half \\ud800 a pair"), ("nul \0", "nul \0")],
    ids=["bytes of a path", "lone surrogate", "nul"],
)
def test_text_that_is_not_utf8_can_be_sent(text, arrives):
    """A model may log anything; an error here would end its process."""
    assert unpack(FROM_GUEST, Kind.COMPLETED, payload_of(pack(Completed(text)))) == Completed(arrives)
