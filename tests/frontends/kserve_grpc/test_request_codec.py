"""Bytes of a ModelInferRequest to the engine's request: values, and the reference's texts for errors."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as wire

from naiad.core.errors import Code, NaiadError
from naiad.frontends.kserve_grpc import request_codec as codec
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START
from naiad.protocol.model_names import LATEST

P = wire.InferParameter
IN_REGION = {"shared_memory_region": P(string_param="r"), "shared_memory_byte_size": P(int64_param=16)}
RAW = [struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 5, 6, 7, 8)]


def message(raws=RAW, contents=None, datatype="FP32", parameters=None, input_parameters=None, outputs=None, **fields):
    request = wire.ModelInferRequest(model_name="m", **fields)
    for index, name in enumerate(("INPUT0", "INPUT1")):
        tensor = request.inputs.add(name=name, datatype=datatype, shape=[2, 2])
        if contents:
            tensor.contents.CopyFrom(contents)
        if not index:
            for key, value in (input_parameters or {}).items():
                tensor.parameters[key].CopyFrom(value)
    request.raw_input_contents.extend(raws)
    for key, value in (parameters or {}).items():
        request.parameters[key].CopyFrom(value)
    for name, given in (outputs or {}).items():
        output = request.outputs.add(name=name)
        for key, value in given.items():
            output.parameters[key].CopyFrom(value)
    return request.SerializeToString()


def typed(datatype="FP32", **contents):
    return message(raws=[], contents=wire.InferTensorContents(**contents), datatype=datatype)


def decode(data, version=LATEST):
    return codec.decode_request(codec.parse(data), version)[0]


def refusal(data) -> NaiadError:
    with pytest.raises(NaiadError) as caught:
        decode(data)
    return caught.value


def test_raw_inputs_are_taken_in_order():
    request = decode(message(id="seven"), version=3)

    assert (request.model_name, request.model_version, request.request_id) == ("m", 3, "seven")
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs] == [
        ("INPUT0", Datatype.FP32, (2, 2), RAW[0]),
        ("INPUT1", Datatype.FP32, (2, 2), RAW[1]),
    ]
    assert request.requested_outputs == ()
    assert not request.parameters


def test_large_raw_inputs_are_views_of_the_received_message():
    """Protobuf's copy of a large tensor is avoided."""
    raws = [bytes(100_000), b"\x01" * 50_000]
    data = message(raws=raws)

    request = decode(data)

    assert [bytes(tensor.data) for tensor in request.inputs] == raws
    assert all(isinstance(t.data, memoryview) and t.data.obj is data for t in request.inputs)


def test_requested_outputs_keep_their_order():
    assert decode(message(outputs={"B": {}, "A": {}})).requested_outputs == ["B", "A"]


@pytest.mark.parametrize(
    ("datatype", "field", "values", "expected"),
    [
        ("BOOL", "bool_contents", [True, False], np.array([1, 0], np.bool_)),
        ("INT8", "int_contents", [-1, 300], np.array([-1, 44], np.int8)),
        ("INT16", "int_contents", [-2, 70_000], np.array([-2, 4464], np.int16)),
        ("INT32", "int_contents", [-3, 2**31 - 1], np.array([-3, 2**31 - 1], np.int32)),
        ("INT64", "int64_contents", [-(2**63)], np.array([-(2**63)], np.int64)),
        ("UINT8", "uint_contents", [255, 257], np.array([255, 1], np.uint8)),
        ("UINT16", "uint_contents", [65_535], np.array([65_535], np.uint16)),
        ("UINT32", "uint_contents", [2**32 - 1], np.array([2**32 - 1], np.uint32)),
        ("UINT64", "uint64_contents", [2**64 - 1], np.array([2**64 - 1], np.uint64)),
        ("FP32", "fp32_contents", [1.5, -2], np.array([1.5, -2], np.float32)),
        ("FP64", "fp64_contents", [1e300], np.array([1e300], np.float64)),
    ],
)
def test_typed_contents_become_little_endian_bytes(datatype, field, values, expected):
    request = decode(typed(datatype, **{field: values}))
    assert request.inputs[0].datatype.name == datatype
    assert request.inputs[0].data == expected.tobytes()


def test_typed_strings_get_their_lengths_in_front():
    request = decode(typed("BYTES", bytes_contents=[b"", b"abc", "ü".encode()]))
    assert request.inputs[0].data == b"\0\0\0\0" + b"\3\0\0\0abc" + b"\2\0\0\0" + "ü".encode()


def test_empty_contents_are_an_empty_tensor():
    assert decode(typed()).inputs[1].data == b""


def test_an_unknown_datatype_is_left_to_the_engine():
    assert decode(message(datatype="FP31")).inputs[0].datatype is Datatype.INVALID


def test_raw_contents_without_an_input_are_ignored():
    assert len(decode(message(raws=[*RAW, b"more"])).inputs) == 2


def of_input(**parameters):
    return message(input_parameters={f"shared_memory_{name}": value for name, value in parameters.items()})


def of_output(**parameters):
    return message(outputs={"O": parameters})


OF_TENSOR = "for input tensor 'INPUT0' for model 'm'"
UNEXPECTED = f"unexpected explicit tensor data {OF_TENSOR}"
RAW_AND_TYPED = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'm'"
NO_SIZE = "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'"
NO_REGION = "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'O'"
TYPED_IN_REGION = f"unexpected 'content' provided when using shared memory {OF_TENSOR}"
REGION_AND_CLASSES = "output can't set both 'shared_memory_region' and 'classification'"


def wrong_kind(name, kinds, tensor=""):
    return f"invalid value type for '{name}' parameter{tensor}, expected {kinds}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (message(contents=wire.InferTensorContents(fp32_contents=[1])), RAW_AND_TYPED),
        (message(raws=[]), f"unable to find data {OF_TENSOR} in request."),
        (message(raws=RAW[:1]), "unable to find data for input tensor 'INPUT1' for model 'm' in request."),
        (typed(int_contents=[1]), f"{UNEXPECTED} of type 'INT32', expected datatype 'FP32'"),
        (typed("FP16", fp32_contents=[1]), f"{UNEXPECTED} of type 'FP32', expected datatype 'FP16'"),
        (typed("FP31", fp32_contents=[1]), f"{UNEXPECTED} of type 'FP32', expected datatype '<invalid>'"),
        (typed("BOOL", bool_contents=[1], bytes_contents=[b"x"]), f"{UNEXPECTED}, binary data was already supplied."),
        *(
            (of_input(**{name: value}), wrong_kind(f"shared_memory_{name}", f"{kind}.", " for tensor 'INPUT0'"))
            for name, value, kind in (
                ("region", P(int64_param=1), "string_param"),
                ("offset", P(string_param="1"), "int64_param"),
                ("byte_size", P(bool_param=True), "int64_param"),
            )
        ),
        (of_input(region=P(string_param="r")), NO_SIZE),
        (of_output(shared_memory_offset=P(int64_param=4)), NO_REGION),
        (
            message(contents=wire.InferTensorContents(fp32_contents=[1]), raws=[], input_parameters=IN_REGION),
            TYPED_IN_REGION,
        ),
        (of_output(classification=P(int64_param=1), **IN_REGION), REGION_AND_CLASSES),
        (of_output(classification=P(bool_param=True)), wrong_kind("classification", "int64_param")),
        (of_output(classification=P(int64_param=0)), "invalid value for 'classification' parameter, expected >= 0"),
    ],
)
def test_wrong_tensors_are_refused_with_the_references_text(data, text):
    error = refusal(data)
    assert (error.message, error.code) == (text, Code.INVALID_ARG)


DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.mark.parametrize("data", [message(raws=[], input_parameters=IN_REGION), message(outputs={"O": IN_REGION})])
def test_regions_are_refused_where_clients_may_have_none(data):
    error = refusal(data)
    assert (error.message, error.code) == (DISABLED, Code.UNSUPPORTED)


def test_an_output_requested_twice_is_refused():
    request = wire.ModelInferRequest(model_name="m", outputs=[{"name": "A"}, {"name": "B"}, {"name": "A"}])
    error = refusal(request.SerializeToString())
    assert (error.message, error.code) == ("output 'A' already exists in request", Code.INVALID_ARG)


def test_reserved_parameters_become_fields_and_others_go_to_the_model():
    request = decode(
        message(
            parameters={
                "sequence_id": P(int64_param=7),
                "sequence_start": P(bool_param=True),
                "sequence_end": P(bool_param=True),
                "priority": P(uint64_param=2),
                "timeout": P(int64_param=1500),
                "text": P(string_param="x"),
                "count": P(int64_param=-1),
                "flag": P(bool_param=False),
                "real": P(double_param=0.5),
            }
        )
    )
    assert request.correlation_id == 7
    assert request.flags == SEQUENCE_START | SEQUENCE_END
    assert (request.priority, request.timeout_us) == (2, 1500)
    assert request.parameters == {"text": "x", "count": -1, "flag": False, "real": 0.5}


@pytest.mark.parametrize(
    ("parameters", "field", "expected"),
    [
        ({"sequence_id": P(string_param="abc")}, "correlation_id", "abc"),
        ({"sequence_id": P(int64_param=-1)}, "correlation_id", 2**64 - 1),
        ({"sequence_start": P(bool_param=False)}, "flags", 0),
        ({"sequence_end": P(bool_param=True)}, "flags", SEQUENCE_END),
        ({"priority": P(int64_param=3)}, "priority", 3),
        ({"timeout": P(int64_param=-5)}, "timeout_us", 0),
    ],
)
def test_reserved_parameter_has_its_forms(parameters, field, expected):
    assert getattr(decode(message(parameters=parameters)), field) == expected


@pytest.mark.parametrize("wanted", [True, False])
def test_an_empty_final_response_is_asked_for_by_parameter(wanted):
    data = message(parameters={"triton_enable_empty_final_response": P(bool_param=wanted)})
    request, enable_empty_final, _ = codec.decode_request(codec.parse(data), LATEST)
    assert enable_empty_final is wanted
    assert not request.parameters


RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' "
    "are allowed: triton_enable_empty_final_response"
)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        *(
            (key, value, wrong_kind(key, f"{kinds}."))
            for key, value, kinds in (
                ("sequence_id", P(bool_param=True), "int64_param or string_param"),
                ("sequence_id", P(), "int64_param or string_param"),
                ("sequence_start", P(int64_param=1), "bool_param"),
                ("sequence_end", P(string_param="x"), "bool_param"),
                ("priority", P(bool_param=True), "int64_param or uint64_param"),
                ("timeout", P(uint64_param=1), "int64_param"),
                ("triton_enable_empty_final_response", P(int64_param=1), "bool_param"),
                ("own", P(uint64_param=1), "int64_param, bool_param, or string_param"),
                ("own", P(), "int64_param, bool_param, or string_param"),
            )
        ),
        ("priority", P(int64_param=-1), "invalid value for 'priority', expected value >= 0."),
        ("triton_other", P(bool_param=True), RESERVED),
    ],
)
def test_wrong_parameters_are_refused_with_the_references_text(key, value, text):
    error = refusal(message(parameters={key: value}))
    assert (error.message, error.code) == (text, Code.INVALID_ARG)


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x3a\x05ab", b"\xff" * 20_000])
def test_bytes_that_are_no_message_are_an_internal_error_as_in_the_reference(data):
    error = refusal(data)
    assert (error.message, error.code) == ("Unable to parse request", Code.INTERNAL)


@pytest.mark.parametrize(("text", "version"), [("", LATEST), ("1", 1), ("0", 0), (" 2", 2), ("+3", 3), ("007", 7)])
def test_versions_are_numbers_and_nothing_means_the_policys_choice(text, version):
    assert codec.parse_version(text) == version


@pytest.mark.parametrize("text", ["x", "1x", "1.0", "1_0", "99999999999999999999", "٣", "1" * 5000])
def test_a_version_that_is_not_a_number_is_refused(text):
    with pytest.raises(NaiadError) as caught:
        codec.parse_version(text)
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("text", ["-1", "-2", "-99999999999999999999"])
def test_a_negative_version_is_refused(text):
    with pytest.raises(NaiadError) as caught:
        codec.parse_version(text)
    assert caught.value.message == (
        f"invalid model version specified '{text}' , version should be an integral value > 0"
    )
