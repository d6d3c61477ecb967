"""`pb_utils.InferenceResponse` and `pb_utils.TritonError`."""

import weakref

import numpy as np
import pytest
from naiad_stub.calls import ResponseIterator
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.logger import Logger
from naiad_stub.metrics import Metric, MetricFamily
from naiad_stub.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import InferenceResponseSender
from naiad_stub.tensor import Tensor


def test_an_empty_response_is_a_response():
    response = InferenceResponse()

    assert (response.output_tensors(), response.has_error()) == ([], False)
    assert (response.error(), response.parameters()) == (None, "{}")


def test_outputs_error_and_parameters_come_back():
    tensor = Tensor("OUT", np.zeros(1))
    error = TritonError("bad", TritonError.INVALID_ARG)

    response = InferenceResponse((tensor,), error, {"a": "b", "c": 2})

    assert response.output_tensors() == [tensor]
    assert response.has_error() is True
    assert response.error() is error
    assert response.parameters() == '{"a": "b", "c": 2}'


def test_a_response_keeps_its_own_list_of_outputs():
    tensors = [Tensor("OUT", np.zeros(1))]
    response = InferenceResponse(output_tensors=tensors)
    tensors.clear()

    assert len(response.output_tensors()) == 1


KEYS, VALUES = "Expect parameters keys to have", "Expect parameters values to have"
BITS = "Expect parameters values of type int to fit into 64 bits, found"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"output_tensors": None}, TypeError, "output_tensors must be a list, got NoneType"),
        ({"output_tensors": [3]}, TypeError, "output_tensors must hold Tensor objects, got int"),
        ({"output_tensors": [None]}, TritonModelException, "Output tensor for inference response should not be empty."),
        ({"error": "text"}, TypeError, "error must be a TritonError, got str"),
        ({"error": ValueError()}, TypeError, "error must be a TritonError, got ValueError"),
        ({"parameters": [1]}, TritonModelException, "Expect dict, got <class 'list'>"),
        ({"parameters": {1: 1}}, TritonModelException, f"{KEYS} type str, found type <class 'int'>"),
        ({"parameters": {"a": 1.5}}, TritonModelException, f"{VALUES} type bool/int/str, found type <class 'float'>"),
        ({"parameters": {"a": 1, "big": 1 << 64}}, TritonModelException, f"{BITS} 65 bits for 'big'"),
        ({"parameters": {"huge": -(10**5000)}}, TritonModelException, f"{BITS} 16610 bits for 'huge'"),
    ],
)
def test_arguments_are_checked(arguments, kind, message):
    with pytest.raises(kind) as raised:
        InferenceResponse(**arguments)

    assert str(raised.value) == message


def test_a_received_response_has_json_parameters():
    error = TritonError._received("gone", 4)

    response = InferenceResponse._received([], error, '{"a":1}')

    assert (response.output_tensors(), response.error(), response.parameters()) == ([], error, '{"a":1}')


CODES = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"]


@pytest.mark.parametrize(("number", "name"), list(enumerate(CODES)))
def test_codes_are_numbered_as_in_the_server(number, name):
    code = getattr(TritonError, name)

    assert int(code) == number
    assert TritonError("x", code).code() is code
    assert TritonError._received("x", number).code() is code


def test_an_error_has_a_message_and_is_internal_by_default():
    error = TritonError(message="text")

    assert (error.message(), error.code()) == ("text", TritonError.INTERNAL)
    assert not isinstance(error, Exception)


def test_a_code_of_a_newer_server_is_unknown():
    assert TritonError._received("x", 99).code() is TritonError.UNKNOWN


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None,), "TritonError takes its message as str, got NoneType"),
        ((3,), "TritonError takes its message as str, got int"),
        (("x", None), "TritonError takes one of its codes, such as TritonError.INVALID_ARG, got None"),
        (("x", 3), "TritonError takes one of its codes, such as TritonError.INVALID_ARG, got 3"),
    ],
)
def test_errors_take_a_text_and_one_of_their_codes(arguments, message):
    with pytest.raises(TypeError) as raised:
        TritonError(*arguments)

    assert str(raised.value) == message


def test_names_are_of_the_references_module():
    for cls in (TritonError, TritonModelException, InferenceResponse, Tensor):
        assert cls.__module__ == "c_python_backend_utils"


@pytest.mark.parametrize(
    "cls",
    [
        InferenceRequest,
        InferenceResponse,
        InferenceResponseSender,
        InferenceTrace,
        Metric,
        MetricFamily,
        PreferredMemory,
        ResponseIterator,
        Tensor,
        TritonError,
    ],
)
def test_objects_may_be_referred_to_weakly(cls):
    """As in the reference: models keep senders in a WeakSet, and data of their own beside requests."""
    made = cls.__new__(cls)
    assert weakref.ref(made)() is made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (TritonError.NOT_FOUND, "ErrorCode.NOT_FOUND"),
        (Logger.WARNING, "LogLevel.WARNING"),
        (MetricFamily.HISTOGRAM, "MetricKind.HISTOGRAM"),
        (MemoryType.TRITONSERVER_MEMORY_CPU, "MemoryType.TRITONSERVER_MEMORY_CPU"),
    ],
)
def test_values_are_printed_by_name_as_by_the_reference(value, text):
    assert (str(value), f"{value}", f"{value:d}") == (text, text, str(int(value)))
