"""Elements of BYTES tensors, counted by guesses that are verified, compared with a plain loop over the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.core.errors import InvalidRequestError
from naiad.protocol import strings
from naiad.protocol.inference import StringScan
from naiad.protocol.request_plan import check_strings
from naiad.protocol.strings import pack_chunk, scan_steps, scan_strings

WHERE = "for inference input 'A' for model 'm'"


def walk(data: bytes, expected: int) -> str:
    """The error that a plain loop finds; empty for a valid tensor."""
    position, count, size = 0, 0, len(data)
    while position < size:
        if count >= expected:
            return f"unexpected number of string elements {count + 1} {WHERE}, expecting {expected}"
        if position + 4 > size:
            return (
                f"incomplete string length indicator {WHERE}, expecting 4 bytes but only {size - position} bytes "
                "available. Please make sure the string length indicator is in one buffer."
            )
        length = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if position + length > size:
            return (
                f"incomplete string data {WHERE}, expecting string of length {length} but only {size - position} "
                "bytes available"
            )
        position += length
        count += 1
    return f"expected {expected} string elements {WHERE}, got {count}" if count != expected else ""


def packed(elements: list[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in elements)


def found(data: bytes | bytearray | memoryview, expected: int, scan: StringScan | None = None) -> str:
    try:
        check_strings("A", "m", data, expected, "", scan)
    except InvalidRequestError as error:
        return error.message
    return ""


def steps_of(data: bytes, limit: int) -> tuple[StringScan, int]:
    steps, count = scan_steps(data, limit), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


LENGTHS = st.one_of(st.just(0), st.just(1), st.integers(0, 9), st.integers(250, 260))
RUNS = st.lists(
    st.tuples(
        st.lists(LENGTHS, min_size=1, max_size=6), st.integers(1, 40), st.sampled_from([b"a", b"\0", b"\1\0\0\0"])
    ),
    max_size=6,
)
"""Groups of lengths, how often each group is repeated, and what the elements are filled with."""


@st.composite
def tensors(draw: st.DrawFn) -> tuple[bytes, int]:
    """The bytes of a tensor, whole, cut off or with a changed byte, and the number of its elements."""
    elements = [
        (fill * length)[:length] for lengths, times, fill in draw(RUNS) for _ in range(times) for length in lengths
    ]
    data = bytearray(packed(elements))
    change = draw(st.sampled_from(["none", "none", "cut", "byte", "more"]))
    if data and change == "cut":
        del data[draw(st.integers(0, len(data) - 1)) :]
    elif data and change == "byte":
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    elif change == "more":
        data += draw(st.binary(max_size=20))
    return bytes(data), len(elements)


@pytest.fixture(params=[False, True], ids=["as it is", "small windows"])
def windows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small windows, few bytes go through many guesses, and through all of their ends."""
    if request.param:
        for name, value in {
            "_VECTOR_FROM": 1,
            "_EQUAL_PER_STEP": 7,
            "_WINDOW": 61,
            "_WALKED_PER_STEP": 3,
            "_MIN_RUN": 2,
        }.items():
            monkeypatch.setattr(strings, name, value)


@pytest.mark.usefixtures("windows")
def test_any_bytes_are_judged_as_by_a_plain_loop() -> None:
    @settings(max_examples=400, deadline=None)
    @given(tensors(), st.integers(-3, 3))
    def check(tensor: tuple[bytes, int], more: int) -> None:
        data, count = tensor
        expected = max(count + more, 0)
        assert found(data, expected) == walk(data, expected)
        assert steps_of(data, expected)[0] == scan_strings(data, expected)

    check()


@pytest.mark.usefixtures("windows")
def test_bytes_without_any_structure_are_judged_as_by_a_plain_loop() -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.binary(max_size=400).map(lambda data: data * 3), st.integers(0, 100))
    def check(data: bytes, expected: int) -> None:
        assert found(memoryview(data), expected) == walk(data, expected)

    check()


@pytest.mark.parametrize(
    ("elements", "at_least", "at_most"),
    [
        ([b"a"] * 1_000_000, 30, 40),
        ([b""] * 1_000_000, 30, 40),
        ([b"a" * (index * 7 % 30 + 1) for index in range(200_000)], 29, 40),
        ([b"a" * (index % 20 != 0) for index in range(200_000)], 7, 40),
        ([b"\0" * (index * 7 % 5) for index in range(100_000)], 12, 40),
        ([bytes(1000)] * 20_000, 1, 4),
    ],
    ids=["equal", "empty", "short texts", "some empty", "zero bytes", "long"],
)
def test_long_tensors_take_few_short_steps(elements: list[bytes], at_least: int, at_most: int) -> None:
    """A step is about a millisecond, so the number of steps stands for the time, whatever else the machine does."""
    data = packed(elements)
    scan, steps = steps_of(data, len(elements))
    assert scan == (len(elements), len(data))
    assert at_least <= steps <= at_most


def test_an_element_that_is_cut_off_far_behind_the_beginning_is_found() -> None:
    elements = [b"a" * (index * 7 % 30 + 1) for index in range(20_000)]
    data = packed(elements)
    assert len(data) > 2 << 17  # more than one search
    cut = data[: len(data) - 1]
    assert scan_strings(cut, len(elements)) == (len(elements) - 1, len(data) - 4 - len(elements[-1]))


def test_counted_elements_are_not_counted_again() -> None:
    assert found(b"nonsense", 3, StringScan(3, 8)) == ""
    assert found(b"nonsense", 4, StringScan(3, 8)).endswith("got 3")


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 300])
@pytest.mark.parametrize("fill", [lambda i: b"x" * (i % 5), lambda i: bytes([i % 256]) * (i * 7 % 300), lambda _: b""])
def test_elements_are_packed_with_their_lengths(count: int, fill: Callable[[int], bytes]) -> None:
    elements = [fill(index) for index in range(count)]
    assert pack_chunk(elements) == packed(elements)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 300])
@pytest.mark.parametrize("alphabet", ["abc", "aé€𝄞"])
def test_texts_are_packed_as_utf_8(count: int, alphabet: str) -> None:
    texts = [alphabet[: index % 5] for index in range(count)]
    assert pack_chunk(texts) == packed([text.encode() for text in texts])


@pytest.mark.parametrize(
    "elements", [["a", b"b"], [b"a", "b"], ["a", 1], ["a"] * 64 + [b"b"], [b"a"] * 64 + ["b"], [1]]
)
def test_elements_of_several_types_are_not_packed(elements: list[object]) -> None:
    with pytest.raises(TypeError):
        pack_chunk(elements)


def test_surrogates_are_not_packed() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack_chunk(["a", "\ud800"])
