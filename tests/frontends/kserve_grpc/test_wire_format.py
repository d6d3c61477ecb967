"""Raw tensors cut out of messages and appended to them, compared with protobuf."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from naiad.frontends.kserve_grpc import wire_format

RAW = service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER


def cut_out(message: bytes | bytearray, field: int) -> tuple[bytes, list[memoryview]]:
    """A message without a field, and the field's values."""
    found = wire_format.outline(message, field)
    assert found.is_complete
    return b"".join(found.kept), found.values


def _request(name, identity, raws, shape, number, real):
    request = service_pb2.ModelInferRequest(model_name=name, id=identity, raw_input_contents=raws)
    tensor = request.inputs.add(name=name, datatype="FP32", shape=shape)
    tensor.contents.fp64_contents.append(real)
    request.parameters["priority"].uint64_param = number
    return request


requests = st.builds(
    _request,
    st.text(max_size=200),
    st.text(max_size=5),
    st.lists(st.binary(max_size=300), max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.integers(0, 2**64 - 1),
    st.floats(allow_nan=False),
)


@given(requests)
def test_cutting_out_returns_the_rest_and_the_values_in_order(request_):
    rest, values = cut_out(request_.SerializeToString(), RAW)

    assert [bytes(value) for value in values] == list(request_.raw_input_contents)
    request_.ClearField("raw_input_contents")
    assert service_pb2.ModelInferRequest.FromString(rest) == request_


@given(requests, st.integers(0, 400))
def test_the_last_value_is_found_in_a_beginning_that_reaches_it_and_in_no_other(request_, cut):
    message = request_.SerializeToString()
    found = wire_format.find_last(memoryview(message)[:cut], len(message), RAW, (1, 3), 64)
    raws = list(request_.raw_input_contents)
    start = len(message) - len(raws[0]) if len(raws) == 1 else None
    if start is None or cut < start:
        assert found is None
        return
    assert found is not None
    position, texts = found
    assert position == start
    assert bytes(texts.get(1, b"")).decode() == request_.model_name
    assert bytes(texts.get(3, b"")).decode() == request_.id


@given(st.binary(max_size=60), st.integers(0, 1 << 40))
def test_bytes_that_are_no_message_have_no_last_value_or_one_that_ends_with_them(data, size):
    found = wire_format.find_last(memoryview(data), size, RAW, (1,), 8)
    assert found is None or 0 <= found[0] <= size


@given(requests)
def test_appended_fields_are_those_that_protobuf_writes(request_):
    expected = request_.SerializeToString(deterministic=True)
    raws = list(request_.raw_input_contents)
    request_.ClearField("raw_input_contents")

    made = wire_format.with_field(request_.SerializeToString(deterministic=True), RAW, raws)
    assert b"".join(made) == expected


def test_values_between_other_fields_are_found():
    first = service_pb2.ModelInferRequest(raw_input_contents=[b"a"]).SerializeToString()
    middle = service_pb2.ModelInferRequest(model_name="m").SerializeToString()
    second = service_pb2.ModelInferRequest(raw_input_contents=[b"", b"b"]).SerializeToString()

    rest, values = cut_out(first + middle + second, RAW)

    assert [bytes(v) for v in values] == [b"a", b"", b"b"]
    assert rest == middle


def test_views_point_into_the_message_and_are_no_copies():
    message = service_pb2.ModelInferRequest(raw_input_contents=[b"x" * 1000]).SerializeToString()
    _, (view,) = cut_out(message, RAW)
    assert view.obj is message


def test_fixed_size_fields_are_skipped():
    message = b"\x09" + b"8 bytes!" + b"\x15" + b"4byt" + b"\x3a\x01z"  # fields 1 and 2, then 7
    rest, values = cut_out(message, RAW)
    assert [bytes(v) for v in values] == [b"z"]
    assert rest == message[:14]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x3a\x05abc", "a field at byte 0 reaches beyond the message's 5 bytes"),
        (b"\x3a", "the message ends within a number at byte 1"),
        (b"\x08\xff", "the message ends within a number at byte 2"),
        (b"\x08" + b"\xff" * 10 + b"\x01", "longer than ten bytes"),
        (b"\x0b", "wire type 3 before byte 1"),
        (b"\x09short", "a field at byte 0 reaches beyond the message's 6 bytes"),
    ],
)
def test_malformed_messages_are_refused(message, reason):
    with pytest.raises(wire_format.WireFormatError, match=reason):
        cut_out(message, RAW)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_cut_or_refused_but_never_lost(data):
    try:
        rest, values = cut_out(data, RAW)
    except wire_format.WireFormatError:
        return
    assert len(rest) + sum(map(len, values)) <= len(data)


def test_views_of_other_element_types_are_appended_by_their_bytes():
    view = memoryview(bytearray(8)).cast("f")
    empty = np.empty((0, 3), np.float32).data
    message = b"".join(wire_format.with_field(b"", RAW, [view, empty, bytearray(b"q")]))
    assert list(service_pb2.ModelInferRequest.FromString(message).raw_input_contents) == [bytes(8), b"", b"q"]


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**31 - 1, 2**63])
def test_varints_are_those_of_protobuf(value):
    message = service_pb2.StatisticDuration(ns=value).SerializeToString()
    assert message == (b"\x10" + wire_format.encode_varint(value) if value else b"")
