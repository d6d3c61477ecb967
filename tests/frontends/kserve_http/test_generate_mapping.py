"""A generate request's JSON to tensors and parameters, and a response's to JSON: every row compared with Triton 2.51."""

from __future__ import annotations

import json

import numpy as np
import pytest

from naiad.core.errors import Code, ModelError, NaiadError
from naiad.frontends.kserve_http.generate_request import deduce_shape, may_repeat_keys, parse_generate
from naiad.frontends.kserve_http.generate_response import generate_response
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import ModelMetadata, TensorMetadata
from naiad.protocol.numpy_types import NUMPY_TYPES

LIMIT = 1 << 20
INPUTS = {
    "LONG": ("INT64", (-1, -1)),
    "SQUARE": ("FP32", (2, 2)),
    "PAIRS": ("BYTES", (-1, 2)),
    "FLAG": ("BOOL", (1,)),
    "TINY": ("INT8", (2, -1)),
    "HALF": ("FP16", (-1,)),
    "BRAIN": ("BF16", (-1,)),
    "WHOLE": ("UINT64", (-1,)),
    "DEEP": ("FP64", (-1, -1, -1)),
    "BYTE": ("UINT8", (-1,)),
    "TEXT": ("BYTES", (-1,)),
}


def metadata(inputs=INPUTS) -> ModelMetadata:
    tensors = tuple(TensorMetadata(name=name, datatype=kind, shape=shape) for name, (kind, shape) in inputs.items())
    return ModelMetadata(name="m", versions=("1",), platform="python", inputs=tensors, outputs=())


def parse(document, inputs=INPUTS, limit=LIMIT):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_generate(body, metadata(inputs), -1, limit)


def parsed_tensor(document):
    (tensor,) = parse(document).inputs
    if tensor.datatype is Datatype.BYTES:
        return tensor.shape, bytes(tensor.data)
    return tensor.shape, np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).tolist()


def sized(*elements: bytes) -> bytes:
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


@pytest.mark.parametrize(
    ("document", "shape", "data"),
    [
        ({"LONG": 1}, (1, 1), [1]),
        ({"LONG": [1, 2, 3]}, (1, 3), [1, 2, 3]),
        ({"LONG": []}, (1, 0), []),
        ({"LONG": -(2**63)}, (1, 1), [-(2**63)]),
        ({"SQUARE": [1, 2, 3.5, 4]}, (2, 2), [1.0, 2.0, 3.5, 4.0]),
        ({"PAIRS": ["a", "b"]}, (1, 2), sized(b"a", b"b")),
        ({"PAIRS": ["a", "b", "c", "\u00fc"]}, (2, 2), sized(b"a", b"b", b"c", "\u00fc".encode())),
        ({"PAIRS": []}, (0, 2), b""),
        ({"PAIRS": [[], ["a", "b"]]}, (1, 2), sized(b"a", b"b")),
        ({"TEXT": "hello"}, (1,), sized(b"hello")),
        ({"TEXT": ""}, (1,), sized(b"")),
        ({"TEXT": [["a"]]}, (1,), sized(b"a")),
        ({"FLAG": True}, (1,), [True]),
        ({"FLAG": [False]}, (1,), [False]),
        ({"TINY": [1, 2, 300, -200]}, (2, 2), [1, 2, 44, 56]),
        ({"WHOLE": 2**64 - 1}, (1,), [2**64 - 1]),
        ({"DEEP": [1, 2.5]}, (1, 1, 2), [1.0, 2.5]),
        ({"BYTE": [256, 1]}, (2,), [0, 1]),
        ({"BYTE": [[1], [2]]}, (2,), [1, 2]),
        ({"parameters": {"LONG": 7}}, (1, 1), [7]),
    ],
    ids=str,
)
def test_values_become_tensors_of_the_models_shape(document, shape, data):
    assert parsed_tensor(document) == (shape, data)


@pytest.mark.parametrize(
    ("configured", "count", "shape"),
    [
        ((-1,), 0, (0,)),
        ((-1, 4), 4, (1, 4)),
        ((-1, 4), 8, (2, 4)),
        ((-1, 4), 6, None),
        ((-1, -1), 6, (1, 6)),
        ((-1, 3, -1), 6, (1, 3, 2)),
        ((2, 2), 4, (2, 2)),
        ((2, 2), 8, None),
        ((2, 2), 0, None),
        ((), 1, ()),
        ((), 2, None),
        ((0,), 0, (0,)),
        ((0,), 1, None),
    ],
)
def test_innermost_variable_dimension_takes_what_the_fixed_ones_leave(configured, count, shape):
    assert deduce_shape(configured, count) == shape


_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
_UNSIGNED = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"
_DOUBLE = "Unable to parse 'data': attempt to access JSON non-number as double"
_BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"
_TEXT = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
_COUNT = "Unable to parse 'data': Shape does not match true shape of 'data' field"
_OBJECT = "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
_ID = "Unable to parse 'id': attempt to access JSON non-string as string"
_KIND = "has invalid type. It should be either 'int', 'bool', or 'string'."
_NESTED = "Converting keyword: 'parameters':"
_TWICE = "input 'LONG' already exists in request"
_FP16 = "data via JSON is not supported. Please use the binary data format for input"


def _unfit(name: str) -> str:
    return f"The schema can not convert input '{name}' to tensor with proper shape"


@pytest.mark.parametrize(
    ("document", "code", "message"),
    [
        *(({"LONG": bad}, Code.INTERNAL, _SIGNED) for bad in ("1", 1.5, True, None, {"x": 1}, 2**63, 2**64, [1, "a"])),
        *(({"WHOLE": bad}, Code.INTERNAL, _UNSIGNED) for bad in (-1, 1.0, [1, "a"], [1, True], [-1, 2**63])),
        *(({"SQUARE": [1, 2, 3, bad]}, Code.INTERNAL, _DOUBLE) for bad in ("x", True, None)),
        *(({"FLAG": bad}, Code.INTERNAL, _BOOLEAN) for bad in (1, "true", None)),
        *(({"PAIRS": bad}, Code.INTERNAL, _TEXT) for bad in (1, [1, 2], ["a", 1], None)),
        ({"LONG": [[1, 2], [3, 4]]}, Code.INTERNAL, _COUNT),
        *(({"SQUARE": bad}, Code.INVALID_ARG, _unfit("SQUARE")) for bad in ([1, 2, 3], 1, [], [[1, 2], [3, 4]])),
        *(({"PAIRS": bad}, Code.INVALID_ARG, _unfit("PAIRS")) for bad in ("a", ["a", "b", "c"], [["a", "b"]])),
        ({"FLAG": [True, False]}, Code.INVALID_ARG, _unfit("FLAG")),
        ({"TINY": [1, 2, 3]}, Code.INVALID_ARG, _unfit("TINY")),
        ({"HALF": [1.0]}, Code.INVALID_ARG, f"receiving FP16 {_FP16} HALF"),
        ({"BRAIN": 1}, Code.INVALID_ARG, f"receiving BF16 {_FP16} BRAIN"),
        *(({"id": bad, "LONG": 1}, Code.INTERNAL, _ID) for bad in (5, None, ["a"])),
        *(({"x": bad}, Code.INVALID_ARG, f"parameter 'x' {_KIND}") for bad in (None, [1], {"y": 1})),
        *(({"parameters": bad}, Code.INTERNAL, _OBJECT) for bad in (5, [1], None, "x")),
        ({"parameters": {"x": [1]}}, Code.INVALID_ARG, f"{_NESTED} parameter 'x' {_KIND}"),
        ({"parameters": {"parameters": {}}}, Code.INVALID_ARG, f"{_NESTED} parameter 'parameters' {_KIND}"),
        ({"parameters": {"LONG": "x"}}, Code.INTERNAL, f"{_NESTED} {_SIGNED}"),
        ({"LONG": 1, "parameters": {"LONG": 2}}, Code.INVALID_ARG, f"{_NESTED} [request id: <id_unknown>] {_TWICE}"),
        ({"parameters": {"LONG": 2}, "LONG": 1, "id": "seven"}, Code.INVALID_ARG, f"[request id: seven] {_TWICE}"),
        *((bad, Code.INTERNAL, "attempt to get members for non-object") for bad in (b"[1]", b'"x"', b"5", b"null")),
    ],
    ids=str,
)
def test_a_value_that_fits_no_tensor_or_parameter_is_refused(document, code, message):
    with pytest.raises(NaiadError) as caught:
        parse(document)
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize("body", [b"", b"garbage", b'{"LONG":1} x', b'{"LONG":1,}', b'{"TEXT":"\\ud800"}'])
def test_a_body_that_is_not_json_is_refused(body):
    with pytest.raises(NaiadError, match=r"^failed to parse the request JSON buffer: ") as caught:
        parse(body)
    assert caught.value.code is Code.INTERNAL


def test_json_that_is_too_long_or_too_deep_is_refused():
    with pytest.raises(NaiadError, match="request JSON size of 10 bytes exceeds the maximum allowed input size of 9"):
        parse(b'{"LONG":1}', limit=9)
    with pytest.raises(NaiadError, match=r"JSON nesting depth exceeds maximum allowed limit \(100\)"):
        parse(b'{"LONG":' + b"[" * 200 + b"]" * 200 + b"}")


def test_a_model_with_an_input_called_parameters_is_refused():
    with pytest.raises(NaiadError, match="Keyword 'parameters' for nested schema also given as input tensor name"):
        parse({"parameters": {}}, {"parameters": ("INT32", (1,))})


def test_unknown_keys_are_parameters_wherever_they_are():
    document = {"an_int": 1, "text": "s", "flag": True, "real": 1.5, "both": 3, "parameters": {"inner": -2, "both": 4}}
    expected = {"an_int": 1, "text": "s", "flag": True, "real": 1.5, "both": 4, "inner": -2}
    assert parse(document).parameters == expected
    assert type(parse(document).parameters["flag"]) is bool


def test_no_parameter_is_reserved():
    """Unlike `infer`, which reads some of them itself and rejects others."""
    document = {"timeout": 5, "sequence_id": "a", "priority": "x", "triton_x": 5, "binary_data_output": True}
    request = parse(document)
    assert request.parameters == document
    assert (request.timeout_us, request.correlation_id, request.priority) == (0, 0, 0)


def test_integers_beyond_64_bits_become_floats():
    assert parse({"x": 2**64 - 1, "y": 2**63 - 1}).parameters == {"x": float(2**64 - 1), "y": 2**63 - 1}


def test_id_is_the_requests_and_a_parameter():
    request = parse({"id": "seven"})
    assert (request.request_id, request.parameters) == ("seven", {"id": "seven"})
    assert parse({"parameters": {"id": "inner"}}).request_id == ""


def test_id_is_an_input_where_the_model_has_one():
    request = parse({"id": "seven"}, {"id": ("BYTES", (1,))})
    assert (request.request_id, request.parameters, bytes(request.inputs[0].data)) == ("seven", {}, sized(b"seven"))


def output(name: str, values, datatype: Datatype = Datatype.INT32, shape=None) -> OutputTensor:
    data = sized(*values) if datatype is Datatype.BYTES else np.array(values, NUMPY_TYPES[datatype]).tobytes()
    return OutputTensor(name, datatype, shape or (len(values),), data)


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ([output("B", [5]), output("A", [1, 2])], '{"A":[1,2],"B":5,"model_name":"m","model_version":"3"}'),
        ([output("z", [b"x", b"y"], Datatype.BYTES)], '{"model_name":"m","model_version":"3","z":["x","y"]}'),
        ([output("z", [b"x"], Datatype.BYTES, (1, 1))], '{"model_name":"m","model_version":"3","z":"x"}'),
        ([output("a", [7], shape=())], '{"a":7,"model_name":"m","model_version":"3"}'),
        ([output("a", [1, 2, 3, 4], shape=(2, 2))], '{"a":[1,2,3,4],"model_name":"m","model_version":"3"}'),
        ([output("a", [])], '{"a":[],"model_name":"m","model_version":"3"}'),
        ([output("a", [True], Datatype.BOOL)], '{"a":true,"model_name":"m","model_version":"3"}'),
        ([output("a", [0.5], Datatype.FP32)], '{"a":0.5,"model_name":"m","model_version":"3"}'),
        ([output("a", [1]), output("a", [2])], '{"a":1,"model_name":"m","model_version":"3"}'),
        ([output("model_name", [1])], '{"model_name":"m","model_version":"3"}'),
        ([output("id", [1])], '{"id":1,"model_name":"m","model_version":"3"}'),
        ([], '{"model_name":"m","model_version":"3"}'),
    ],
)
def test_response_is_one_flat_object_in_the_order_of_names(outputs, text):
    assert generate_response(InferResponse("m", 3, outputs=outputs)) == (200, text.encode())


def test_id_and_parameters_stand_before_outputs_of_the_same_name():
    answer = InferResponse(
        "m", 3, "seven", [output("id", [1]), output("p", [1])], {"p": "s", "model_name": "x", "q": 2}
    )
    expected = b'{"id":"seven","model_name":"m","model_version":"3","p":"s","q":2}'
    assert generate_response(answer) == (200, expected)


def test_error_is_status_400_whatever_its_code():
    problem = ModelError("no \ud800 luck", code=Code.UNAVAILABLE)
    assert generate_response(InferResponse("m", 3, error=problem)) == (400, b'{"error":"no ? luck"}')


def test_output_that_has_no_json_is_an_error():
    status, body = generate_response(InferResponse("m", 3, outputs=[output("h", [1.0], Datatype.FP16)]))
    assert status == 400
    assert json.loads(body)["error"].startswith("sending FP16 data via JSON is not supported.")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"LONG": 1, "LONG": 2}', "input 'LONG' already exists in request"),
        (b'{"LONG": 1, "L\\u004fNG": 2}', "input 'LONG' already exists in request"),
        (b'{"parameters": {"LONG": 1, "LONG": 2}}', "input 'LONG' already exists in request"),
        (b'{"LONG": 1, "extra": 1, "extra": 2}', "key 'extra' occurs twice in one object"),
        (b'{"LONG": 1, "parameters": {"extra": 1, "extra": 2}}', "key 'extra' occurs twice in one object"),
        (b'{"id": "7", "LONG": 1, "LONG": 2}', "input 'LONG' already exists in request"),
        (b'{"id": "6", "id": "7", "LONG": 1}', "key 'id' occurs twice in one object"),
        (b'{"LONG": 1, "parameters": {"a": 1}, "parameters": {"b": 2}}', "key 'parameters' occurs twice in one object"),
    ],
)
def test_a_key_that_occurs_twice_is_an_error(body, text):
    request_id = "7" if b'"id"' in body else "<id_unknown>"
    with pytest.raises(NaiadError) as raised:
        parse(body)
    assert raised.value.message == f"[request id: {request_id}] {text}"


@pytest.mark.parametrize(
    "body", [b'{"TEXT": "TEXT"}', b'{"TEXT": "\\u0041", "extra": 1}', b'{"TEXT": "\\"TEXT\\": 1"}']
)
def test_a_key_that_occurs_in_a_string_is_no_second_one(body):
    assert len(parse(body).inputs) == 1


def test_many_keys_are_not_searched_one_by_one():
    """Each search reads the whole text: of 11,000 keys, they took a second."""
    searched = []

    class Text(bytes):
        def count(self, *arguments):
            searched.append(arguments)
            return super().count(*arguments)

    document = {f"key{n}": n for n in range(1000)}

    assert may_repeat_keys(Text(json.dumps(document).encode()), document)
    assert len(searched) <= 32
    with pytest.raises(NaiadError, match="key 'key7' occurs twice in one object"):
        parse(json.dumps(document)[:-1].encode() + b', "key7": 1}')
