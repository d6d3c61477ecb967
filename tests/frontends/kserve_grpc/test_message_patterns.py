"""Repeated messages are recognised by their bytes, and mean what protobuf would parse."""

from __future__ import annotations

import pytest

from naiad.frontends.kserve_grpc import request_codec as codec
from naiad.frontends.kserve_grpc import response_codec
from naiad.frontends.kserve_grpc.patterns import MessagePatterns
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor


def message(*raw, inputs=("A", "B"), model="m", **fields):
    built = ModelInferRequest(model_name=model, **fields)
    for name, data in zip(inputs, raw, strict=False):
        built.inputs.add(name=name, datatype="UINT8", shape=[len(data)])
    built.raw_input_contents.extend(raw)
    return built


def read(data):
    parsed = codec.parse(data)
    request, _, _ = codec.decode_request(parsed, codec.parse_version(parsed.body.model_version))
    return parsed, request


def added(patterns, data):
    return patterns.add(data, *read(data))


def values(request):
    return [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]


@pytest.mark.parametrize("size", [1, 130, 5000, 100_000])
def test_a_message_with_other_bytes_in_its_tensors_is_recognised(size):
    patterns = MessagePatterns()
    first = message(b"a" * size, b"b", model_version="3", outputs=[{"name": "O"}]).SerializeToString()
    again = message(b"c" * size, b"d", model_version="3", outputs=[{"name": "O"}]).SerializeToString()
    assert patterns.match(first) is None
    _, request = read(first)
    pattern = patterns.add(first, codec.parse(first), request)
    match = patterns.match(again)
    assert match is not None
    assert match.pattern is pattern is not None
    _, expected = read(again)
    made = match.request
    assert values(made) == values(expected)
    assert (made.model_name, made.model_version, list(made.requested_outputs)) == ("m", 3, ["O"])
    assert made.layout_key is request.layout_key is not None


@pytest.mark.parametrize("size", [1, 5000, 100_000])
@pytest.mark.parametrize("request_id", ["", "seven"])
def test_a_message_in_memory_of_an_instance_has_the_same_patterns(size, request_id):
    patterns = MessagePatterns()
    first = message(b"a" * size, b"b" * size, model_version="3", id=request_id).SerializeToString()
    again = message(b"c" * size, b"d" * size, model_version="3", id="eight").SerializeToString()
    other = message(b"c" * size, b"d" * size, model_version="4", id="eight").SerializeToString()
    wider = message(b"c" * (size - 1), b"d" * (size + 1), model_version="3", id="eight").SerializeToString()
    place = memoryview(bytearray(first))
    assert patterns.match(place) is None
    assert added(patterns, place) is not None
    for data in (again, memoryview(bytearray(again))):
        match = patterns.match(data)
        assert match is not None
        assert values(match.request) == values(read(again)[1])
        assert match.request.request_id == "eight"
    for data in (other, wider):
        assert patterns.match(memoryview(bytearray(data))) is None


@pytest.mark.parametrize(
    "other",
    [
        message(b"aa", b"b", model="n"),
        message(b"aa", b"b", inputs=("A", "C")),
        message(b"a", b"bb"),
        message(b"aa", b"b", model_version="1"),
        message(b"aa", b"b", outputs=[{"name": "O"}]),
    ],
)
def test_a_message_that_differs_elsewhere_is_not(other):
    patterns = MessagePatterns()
    assert added(patterns, message(b"aa", b"b").SerializeToString()) is not None
    assert patterns.match(other.SerializeToString()) is None


@pytest.mark.parametrize("first_id", ["", "1"])
@pytest.mark.parametrize("given", ["", "7", "request 4711", "\u00fc\N{SNOWMAN}", "x" * 127])
@pytest.mark.parametrize("size", [1, 5000])
def test_messages_that_differ_in_their_id_have_one_pattern(first_id, given, size):
    patterns = MessagePatterns()
    first = message(b"a" * size, b"b", model_version="3", id=first_id, outputs=[{"name": "O"}]).SerializeToString()
    again = message(b"c" * size, b"d", model_version="3", id=given, outputs=[{"name": "O"}]).SerializeToString()
    pattern = added(patterns, first)
    match = patterns.match(bytearray(again))
    assert match is not None
    assert match.pattern is pattern is not None
    _, expected = read(again)
    assert values(match.request) == values(expected)
    assert match.request.request_id == given
    assert patterns.match(message(b"a" * size, b"b", model_version="4", id=given).SerializeToString()) is None


def test_an_invalid_or_misplaced_id_is_left_to_protobuf():
    patterns = MessagePatterns()
    plain = message(b"aa", b"b").SerializeToString()
    assert added(patterns, plain) is not None
    name = plain[:3]
    for broken in (b"\x1a\x01\xff", b"\x1a\x02\xed\xa0", b"\x1a\x7f", b"\x1a"):
        assert patterns.match(name + broken + plain[3:]) is None
    for elsewhere in (b"\x1a\x01i" + plain, plain + b"\x1a\x01i", name + b"\x1a\x01i" + plain[3:] + b"\x1a\x01j"):
        assert patterns.match(elsewhere) is None
        assert added(patterns, elsewhere) is None


def with_parameter(built, name="p", value=1):
    built.parameters[name].int64_param = value
    return built


def with_empty_final(built):
    """As clients in C++ write each request, perf_analyzer among them."""
    built.parameters["triton_enable_empty_final_response"].bool_param = True
    return built


@pytest.mark.parametrize("given", ["", "7"])
def test_messages_with_the_parameter_of_every_client_in_cpp_have_a_pattern(given):
    patterns = MessagePatterns()
    pattern = added(patterns, with_empty_final(message(b"aa", b"b", id="1")).SerializeToString())
    match = patterns.match(with_empty_final(message(b"cc", b"d", id=given)).SerializeToString())
    assert match is not None
    assert match.pattern is pattern is not None
    expected = read(message(b"cc", b"d", id=given).SerializeToString())[1]
    assert values(match.request) == values(expected)
    assert (match.request.request_id, match.request.parameters) == (given, expected.parameters)
    for other in (message(b"cc", b"d", id=given), with_parameter(with_empty_final(message(b"cc", b"d")))):
        assert patterns.match(other.SerializeToString()) is None
        assert added(MessagePatterns(), with_parameter(with_empty_final(other)).SerializeToString()) is None


@pytest.mark.parametrize(
    "particular", [with_parameter(message(b"aa", b"b")), message(b"a", inputs=()), message(b"aa", b"b", id="x" * 128)]
)
def test_messages_with_parameters_have_no_pattern(particular):
    patterns = MessagePatterns()
    assert added(patterns, particular.SerializeToString()) is None


def test_fields_in_another_order_are_left_to_protobuf():
    patterns = MessagePatterns()
    tensors = ModelInferRequest(raw_input_contents=[b"aa", b"b"]).SerializeToString()
    rest = message(b"aa", b"b")
    del rest.raw_input_contents[:]
    assert added(patterns, tensors + rest.SerializeToString()) is None
    # An unknown field that looks like the tensors, which are elsewhere.
    disguise = bytes((15 << 3 | 2, len(tensors))) + tensors
    assert added(patterns, tensors + rest.SerializeToString() + disguise) is None


def test_responses_of_one_layout_are_those_of_protobuf():
    patterns = MessagePatterns()
    pattern = added(patterns, message(b"aa", b"b").SerializeToString())
    layout = object()
    for fill in (1, 2, 3):
        outputs = [
            OutputTensor("O", Datatype.UINT8, (200,), bytes([fill]) * 200),
            OutputTensor("P", Datatype.FP32, (0, 2), memoryview(b"")),
            OutputTensor("Q", Datatype.FP32, (1,), memoryview(bytes([fill]) * 4)),
        ]
        response = InferResponse("m", 7, outputs=outputs, layout=layout)
        read_back = ModelInferResponse.FromString(b"".join(pattern.encode_response(response)))
        assert read_back == ModelInferResponse.FromString(b"".join(response_codec.encode_response(response)))
        named = InferResponse("m", 7, f"{fill}" * fill, outputs=outputs, layout=layout)
        assert b"".join(pattern.encode_response(named)) == b"".join(response_codec.encode_response(named))
    long_name = InferResponse("m" * 200, 7, "i", outputs=outputs, layout=object())
    for _ in range(2):
        assert b"".join(pattern.encode_response(long_name)) == b"".join(response_codec.encode_response(long_name))
    nothing = InferResponse("m", 7, layout=object())
    assert (
        pattern.encode_response(nothing) == pattern.encode_response(nothing) == response_codec.encode_response(nothing)
    )
    told = InferResponse("m", 7, outputs=outputs, layout=layout, parameters={"p": 1})
    assert ModelInferResponse.FromString(b"".join(pattern.encode_response(told))).parameters["p"].int64_param == 1
