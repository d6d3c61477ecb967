"""`pb_utils.InferenceRequest`, built by models and received from the server."""

import numpy as np
import pytest
from naiad_stub import runtime
from naiad_stub.exceptions import TritonModelException
from naiad_stub.request import InferenceRequest, InferenceTrace, MemoryType, PreferredMemory
from naiad_stub.tensor import Tensor

CPU = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)


def build(**changes):
    arguments = {"inputs": [], "requested_output_names": [], "model_name": "m", **changes}
    return InferenceRequest(**arguments)


def test_defaults_are_the_references():
    request = build()

    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert (request.inputs(), request.requested_output_names(), request.parameters()) == ([], set(), "{}")
    assert request.is_cancelled() is False
    assert request.trace().get_context() is None


def test_arguments_may_be_given_by_position():
    tensors = [Tensor("a", np.zeros(1)), Tensor("b", np.zeros(1))]
    trace = InferenceTrace("{}")

    request = InferenceRequest("id", "seq", tensors, ["o", "p", "o"], "m", 2, 1, 7, CPU, trace, {"k": 1})

    assert (request.request_id(), request.correlation_id()) == ("id", "seq")
    assert [tensor.name() for tensor in request.inputs()] == ["a", "b"]
    assert request.requested_output_names() == {"o", "p"}
    assert (request.flags(), request.timeout(), request.parameters()) == (1, 7, '{"k": 1}')
    assert request.trace() is trace


def test_a_request_keeps_its_own_list_of_inputs():
    tensors = [Tensor("a", np.zeros(1))]
    request = build(inputs=tensors)
    tensors.clear()

    assert len(request.inputs()) == 1


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ({}, "inputs and requested_output_names and model_name"),
        ({"inputs": [], "requested_output_names": []}, "model_name"),
        ({"inputs": [], "model_name": "m"}, "requested_output_names"),
        ({"requested_output_names": [], "model_name": "m"}, "inputs"),
    ],
)
def test_required_arguments_are_named_when_missing(arguments, missing):
    with pytest.raises(TypeError, match=rf"^InferenceRequest\(\) misses its argument {missing}$"):
        InferenceRequest(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"request_id": None}, "request_id must be a str, got NoneType"),
        ({"correlation_id": None}, "correlation_id must be an int or a str, got NoneType"),
        ({"inputs": None}, "inputs must be a list, got NoneType"),
        ({"inputs": [3]}, "inputs must hold Tensor objects, got int"),
        ({"inputs": iter([])}, "inputs must be a list, got list_iterator"),
        ({"requested_output_names": None}, "requested_output_names must be a list, got NoneType"),
        ({"requested_output_names": "ab"}, "requested_output_names must be a list, got str"),
        ({"requested_output_names": {"a"}}, "requested_output_names must be a list, got set"),
        (
            {"requested_output_names": [None]},
            "requested_output_names must hold names: each must be a str, got NoneType",
        ),
        ({"model_name": None}, "model_name must be a str, got NoneType"),
        ({"model_version": None}, "model_version must be an int, got NoneType"),
        ({"model_version": "1"}, "model_version must be an int, got str"),
        ({"flags": None}, "flags must be an int, got NoneType"),
        ({"flags": -1}, "flags must be from 0 to 4294967295, got -1"),
        ({"flags": 2**32}, "flags must be from 0 to 4294967295, got 4294967296"),
        ({"timeout": None}, "timeout must be an int, got NoneType"),
        ({"timeout": 1.5}, "timeout must be an int, got float"),
        ({"timeout": -1}, "timeout must be from 0 to 18446744073709551615, got -1"),
        ({"preferred_memory": None}, "preferred_memory must be a PreferredMemory, got NoneType"),
        ({"trace": None}, "trace must be an InferenceTrace, got NoneType"),
    ],
)
def test_arguments_of_another_type_are_type_errors(changes, message):
    with pytest.raises(TypeError) as raised:
        build(**changes)

    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correlation_id": 1.5}, "Correlation ID must be integer or string"),
        ({"correlation_id": np.int64(1)}, "Correlation ID must be integer or string"),
        ({"correlation_id": -1}, "Correlation ID must be from 0 to 18446744073709551615, got -1"),
        ({"inputs": [None]}, "Input tensor for request with id '' and model name 'm' should not be empty."),
        (
            {"request_id": "q", "requested_output_names": ["a", ""]},
            "Requested output name for request with id 'q' and model name 'm' should not be empty.",
        ),
        ({"parameters": []}, "Expect dict, got <class 'list'>"),
        ({"parameters": "{}"}, "Expect dict, got <class 'str'>"),
        ({"parameters": {1: 2}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"parameters": {"a": 1.5}}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        (
            {"parameters": {"a": None}},
            "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>",
        ),
        ({"parameters": {"a": [1]}}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
    ],
)
def test_wrong_values_are_model_exceptions(changes, message):
    with pytest.raises(TritonModelException) as raised:
        build(**changes)

    assert str(raised.value) == message


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (2**64 - 1, 2**64 - 1), (True, 1), ("", ""), ("abc", "abc")])
def test_correlation_ids_come_back_as_they_were_given(given, expected):
    answer = build(correlation_id=given).correlation_id()

    assert (answer, type(answer)) == (expected, type(expected))


def test_parameters_come_back_as_json():
    request = build(parameters={"a": 1, "b": True, "c": "x", "d": "\u00e9"})

    assert request.parameters() == '{"a": 1, "b": true, "c": "x", "d": "\\u00e9"}'
    assert build(parameters={}).parameters() == "{}"


def test_numpy_integers_are_accepted_as_numbers():
    assert build(flags=np.uint32(3), timeout=np.int64(5)).timeout() == 5


def test_flags_can_be_set_later():
    request = build()
    request.set_flags(3)

    assert request.flags() == 3
    with pytest.raises(TypeError, match=r"^flags must be an int, got NoneType$"):
        request.set_flags(None)
    with pytest.raises(TypeError, match=r"positional"):
        request.set_flags(flags=1)


def test_release_flags_are_all_or_reschedule():
    request = build()

    assert request._release_flags == 1
    request.set_release_flags(2)
    assert request._release_flags == 2
    for wrong in (0, 3, 4):
        with pytest.raises(TritonModelException, match=rf"^Unable to set request release flags.*, got {wrong}\.$"):
            request.set_release_flags(wrong)
    with pytest.raises(TypeError, match=r"^flags must be an int, got str$"):
        request.set_release_flags("a")


def received(handle=None, parameters=""):
    tensor = Tensor._received("IN", 8, (1,), memoryview(bytearray(4)))
    return InferenceRequest._received("id", 5, 3, 9, [tensor], ("OUT", "MORE"), parameters, handle)


def test_a_received_request_has_the_fields_that_were_sent():
    request = received()

    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("id", 5, 3, 9)
    assert [tensor.name() for tensor in request.inputs()] == ["IN"]
    assert request.requested_output_names() == {"OUT", "MORE"}
    assert request.parameters() == "{}"
    assert received(parameters='{"a":1.5}').parameters() == '{"a":1.5}'
    assert request.trace() is request.trace()


def test_the_set_of_requested_names_is_the_models_to_change():
    request = received()
    request.requested_output_names().clear()

    assert request.requested_output_names() == {"OUT", "MORE"}


def test_cancellation_is_asked_of_the_runtime():
    cancelled = []

    class Senders(runtime.ResponseSenders):
        def is_cancelled(self, handle):
            return handle in cancelled

    request = received(handle="record")

    with runtime.activate(runtime.Runtime(senders=Senders())):
        assert request.is_cancelled() is False
        cancelled.append("record")
        assert request.is_cancelled() is True
        assert build().is_cancelled() is False


def test_calls_are_refused_outside_a_server():
    for call in (build().exec, build().async_exec):
        with pytest.raises(TritonModelException, match=r"^BLS is only supported during the 'execute' function\.$"):
            call()
    with pytest.raises(
        TritonModelException, match=r"Response sender has no reference to the decoupled state of the model"
    ):
        build().get_response_sender()


def test_calls_go_to_the_runtime():
    class Calls(runtime.ModelCalls):
        def exec(self, request, decoupled):
            return "exec", request, decoupled

        def async_exec(self, request, decoupled):
            return "async_exec", request, decoupled

    class Senders(runtime.ResponseSenders):
        def sender_of(self, request):
            return "sender", request

    request = build()

    with runtime.activate(runtime.Runtime(calls=Calls(), senders=Senders())):
        assert request.exec() == ("exec", request, False)
        assert request.exec(decoupled=True) == ("exec", request, True)
        assert request.async_exec(True) == ("async_exec", request, True)
        assert request.get_response_sender() == ("sender", request)


def test_preferred_memory_takes_a_kind_and_a_device():
    PreferredMemory(preferred_memory_type=MemoryType.TRITONSERVER_MEMORY_GPU, preferred_device_id=1)

    for wrong in (None, 1):
        with pytest.raises(
            TypeError, match=r"^PreferredMemory takes TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU"
        ):
            PreferredMemory(wrong)
    with pytest.raises(TypeError, match=r"^preferred_device_id must be from 0 to"):
        PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU, -1)
