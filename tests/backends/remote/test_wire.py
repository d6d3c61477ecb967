"""Messages of both protocols, and the rows of batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naiad_remote import batches, kserve_grpc, kserve_json
from naiad_remote.wire import Description, TensorDescription, WireRequest, WireResponse, WireTensor
from tritonclient.grpc import model_config_pb2 as config_pb
from tritonclient.grpc import service_pb2 as pb

TEXTS = st.text(max_size=8)
PARAMETERS = st.dictionaries(TEXTS, st.one_of(st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), TEXTS), max_size=3)


def int32(name: str, *values: int) -> WireTensor:
    return WireTensor(name, "INT32", (len(values),), [np.array(values, "<i4").tobytes()])


def strings(name: str, *values: bytes) -> WireTensor:
    return WireTensor(name, "BYTES", (len(values),), [b"".join(len(v).to_bytes(4, "little") + v for v in values)])


@given(
    TEXTS, st.lists(st.lists(st.integers(0, 1 << 40), max_size=3), max_size=3), st.lists(TEXTS, max_size=3), PARAMETERS
)
def test_requests_are_those_of_the_protocol(request_id, shapes, outputs, parameters):
    inputs = [WireTensor(f"I{n}", "FP32", tuple(shape), [b"ab", b"cd"]) for n, shape in enumerate(shapes)]
    written = kserve_grpc.encode_request(WireRequest(request_id, inputs, outputs, parameters, []), "m", "3")

    read = pb.ModelInferRequest.FromString(written)
    assert (read.model_name, read.model_version, read.id) == ("m", "3", request_id)
    assert [(each.name, each.datatype, list(each.shape)) for each in read.inputs] == [
        (f"I{n}", "FP32", shape) for n, shape in enumerate(shapes)
    ]
    assert list(read.raw_input_contents) == [b"abcd"] * len(shapes)
    assert [each.name for each in read.outputs] == outputs
    found = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in read.parameters.items()}
    assert found == parameters


@given(PARAMETERS, st.lists(st.binary(max_size=8), max_size=4))
def test_responses_are_read_as_the_protocol_has_them(parameters, values):
    message = pb.ModelInferResponse(model_name="m", model_version="1", id="7")
    tensor = strings("OUT", *values)
    message.outputs.add(name="OUT", datatype="BYTES", shape=[len(values)])
    message.raw_output_contents.append(b"".join(tensor.parts))
    for name, value in parameters.items():
        kind = {bool: "bool_param", str: "string_param"}.get(type(value)) or (
            "uint64_param" if value >= 1 << 63 else "int64_param"
        )
        setattr(message.parameters[name], kind, value)

    read = kserve_grpc.decode_response(message)
    assert [(each.name, each.datatype, each.shape, bytes(each.parts[0])) for each in read.outputs] == [
        ("OUT", "BYTES", (len(values),), tensor.parts[0])
    ]
    assert read.parameters == parameters


def test_a_response_without_the_bytes_of_each_output_is_a_value_error():
    message = pb.ModelInferResponse(model_name="m")
    message.outputs.add(name="OUT", datatype="FP32", shape=[1])

    with pytest.raises(ValueError, match="it has 1 outputs and the raw contents of 0"):
        kserve_grpc.decode_response(message)
    message.raw_output_contents.append(b"ab")
    with pytest.raises(ValueError, match=r"output 'OUT' with datatype FP32 and shape \[1\] has 2 bytes"):
        kserve_grpc.decode_response(message)


def test_streams_have_responses_and_errors():
    failed = pb.ModelStreamInferResponse(error_message="no")
    end = pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(model_name="m"))

    assert kserve_grpc.decode_stream_response(failed) == "no"
    assert kserve_grpc.decode_stream_response(end) == WireResponse([], {})


EXPECTED = Description(
    8,
    (TensorDescription("A", "TYPE_FP32", (-1, 3)), TensorDescription("T", "TYPE_STRING", (1,), is_optional=True)),
    (TensorDescription("B", "TYPE_BF16", ()),),
    is_decoupled=True,
)


def test_configurations_are_read_alike_from_both_protocols():
    config = config_pb.ModelConfig(name="m", max_batch_size=8)
    config.input.add(name="A", data_type=config_pb.TYPE_FP32, dims=[-1, 3])
    config.input.add(name="T", data_type=config_pb.TYPE_STRING, dims=[1], optional=True)
    config.output.add(name="B", data_type=config_pb.TYPE_BF16, dims=[])
    config.model_transaction_policy.decoupled = True
    document = {
        "max_batch_size": 8,
        "input": [
            {"name": "A", "data_type": "TYPE_FP32", "dims": ["-1", 3]},
            {"name": "T", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
        ],
        "output": [{"name": "B", "data_type": "TYPE_BF16"}],
        "model_transaction_policy": {"decoupled": True},
    }

    assert kserve_grpc.decode_config(pb.ModelConfigResponse(config=config)) == EXPECTED
    assert kserve_json.describe_config(document) == EXPECTED


def test_metadata_is_read_alike_from_both_protocols():
    message = pb.ModelMetadataResponse(name="m")
    message.inputs.add(name="A", datatype="BYTES", shape=[-1, 3])
    message.outputs.add(name="B", datatype="FP16", shape=[2])
    document = {
        "inputs": [{"name": "A", "datatype": "BYTES", "shape": [-1, 3]}],
        "outputs": [{"name": "B", "datatype": "FP16", "shape": [2]}],
    }

    found = kserve_grpc.decode_metadata(message)
    assert found == kserve_json.describe_metadata(document)
    assert found.inputs == (TensorDescription("A", "TYPE_STRING", (-1, 3)),)


def test_responses_of_servers_without_binary_tensors_are_read():
    body = json.dumps(
        {
            "outputs": [
                {"name": "N", "datatype": "FP32", "shape": [1, 2], "data": [[1.5, 2]]},
                {"name": "T", "datatype": "BYTES", "shape": [2], "data": ["ä", "b"]},
            ],
            "parameters": {"a": 1, "b": {"not": "one"}},
        }
    ).encode()

    found = kserve_json.decode_response(body, len(body))
    assert found.outputs[0].parts == [np.array([1.5, 2], "<f4").tobytes()]
    assert found.outputs[1].parts == strings("T", "ä".encode(), b"b").parts
    assert found.parameters == {"a": 1}


@pytest.mark.parametrize(
    ("document", "rest"),
    [
        ([], b""),
        ({"outputs": [{"name": "A"}]}, b""),
        (
            {"outputs": [{"name": "A", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}]},
            b"1234",
        ),
        (
            {"outputs": [{"name": "A", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 4}}]},
            b"1234",
        ),
        ({"outputs": [{"name": "A", "datatype": "FP99", "shape": [1], "data": [1]}]}, b""),
        ({"outputs": []}, b"more"),
        *[
            ({"outputs": [{"name": "A", "datatype": datatype, "shape": [1], "data": [value]}]}, b"")
            for datatype, value in [
                ("INT32", 1.5),
                ("INT32", 2147483653),
                ("INT8", -129),
                ("UINT64", -1),
                ("INT64", 1e300),
                ("BOOL", "False"),
                ("BOOL", 2),
                ("FP32", 1e300),
                ("FP64", "1.5"),
                ("FP64", None),
                ("BYTES", 1.5),
                ("BYTES", None),
            ]
        ],
    ],
)
def test_malformed_responses_are_value_errors(document, rest):
    head = json.dumps(document).encode()

    with pytest.raises(ValueError):
        kserve_json.decode_response(head + rest, len(head))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": "no such model"}', "no such model"),
        (b'{"detail": "not found"}', "not found"),
        (b"<html>Bad Gateway</html>\n", "<html>Bad Gateway</html>"),
        (b"\xff", "�"),
    ],
)
def test_texts_of_errors_are_found(body, text):
    assert kserve_json.error_text(body) == text


# -- batches ----------------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.lists(st.tuples(st.integers(-5, 5), st.binary(max_size=5)), min_size=1, max_size=4), min_size=1, max_size=5
)


@given(ROWS)
def test_rows_that_are_joined_are_split_again(requests):
    given_requests = [
        WireRequest("", [int32("N", *(n for n, _ in rows)), strings("T", *(t for _, t in rows))], ["N"], {}, [])
        for rows in requests
    ]
    joined = batches.join(given_requests)
    total = sum(map(len, requests))
    assert [tensor.shape for tensor in joined.inputs] == [(total,), (total,)]

    whole = WireResponse([tensor.copy() for tensor in joined.inputs], {"a": 1})
    pieces = batches.split(whole, [batches.rows_of(each) for each in given_requests])
    assert [[(t.name, t.shape, b"".join(t.parts)) for t in piece.outputs] for piece in pieces] == [
        [(t.name, t.shape, b"".join(t.parts)) for t in each.inputs] for each in given_requests
    ]


def test_only_requests_that_differ_in_rows_alone_have_one_layout():
    one = WireRequest("a", [int32("N", 1, 2)], ["N"], {}, [])

    assert batches.layout_of(one) == batches.layout_of(WireRequest("b", [int32("N", 3)], ["N"], {}, []))
    for other in (
        WireRequest("a", [int32("M", 1, 2)], ["N"], {}, []),
        WireRequest("a", [int32("N", 1, 2)], [], {}, []),
        WireRequest("a", [int32("N", 1, 2)], ["N"], {"a": 1}, []),
        WireRequest("a", [int32("N", 1, 2)], ["N"], {}, [("naiad-call-chain", "x")]),
    ):
        assert batches.layout_of(one) != batches.layout_of(other)
    assert batches.rows_of(WireRequest("", [int32("N", 1), int32("M", 1, 2)], [], {}, [])) == 0


def test_a_response_with_other_rows_than_its_batch_is_rejected():
    with pytest.raises(ValueError, match=r"output 'N' has shape \[3\] for a batch of 4"):
        batches.split(WireResponse([int32("N", 1, 2, 3)], {}), [2, 2])
    broken = WireTensor("T", "BYTES", (2,), [b"\x01\x00\x00\x00a"])
    with pytest.raises(ValueError, match="output 'T' has 5 bytes, of which its elements take 9"):
        batches.split(WireResponse([broken], {}), [1, 1])
