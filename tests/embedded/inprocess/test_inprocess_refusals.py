"""Requests that cannot be sent are refused, and the instance serves the next one whatever the fault was."""

from __future__ import annotations

import queue
import struct
from typing import Any

import numpy as np
import pytest

import naiad
from naiad.guests import exchange
from naiad.guests.memory import unsent_frames

NUMBERS = np.array([1.5, -2.0], np.float32)
SECONDS = 30
UINT64 = "an integer from 0 to 18446744073709551615"
CAUSE = "unexpected struct.error: a fault of the test; see the log of the server"


def answer(server: naiad.Server, model: str = "identity") -> list[float]:
    """The answer to a valid request; an instance that was left waiting would never send it."""
    responses: queue.SimpleQueue[Any] = queue.SimpleQueue()
    server.model(model).infer(inputs={"IN": NUMBERS}, response_queue=responses)
    response = responses.get(timeout=SECONDS)
    assert response.error is None
    return response.outputs["OUT"].to_numpy().tolist()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("correlation_id", -1, f"correlation_id must be a string or {UINT64}, not -1"),
        ("correlation_id", 1 << 64, f"correlation_id must be a string or {UINT64}, not {1 << 64}"),
        ("correlation_id", 1.5, f"correlation_id must be a string or {UINT64}, not 1.5"),
        ("correlation_id", "\ud800", "correlation_id cannot be encoded as UTF-8: "),
        ("flags", -1, "flags must be an integer from 0 to 4294967295, not -1"),
        ("flags", 1 << 32, "flags must be an integer from 0 to 4294967295, not 4294967296"),
        ("flags", "start", "flags must be an integer from 0 to 4294967295, not 'start'"),
        ("timeout", -1, f"timeout must be {UINT64}, not -1"),
        ("timeout", "x", f"timeout must be {UINT64}, not 'x'"),
        ("priority", -1, f"priority must be {UINT64}, not -1"),
        ("priority", 0.5, f"priority must be {UINT64}, not 0.5"),
        ("request_id", 7, "request_id must be a string, not 7"),
        ("request_id", "\udfff", "request_id cannot be encoded as UTF-8: "),
        ("parameters", {1: 2}, "the name of a parameter must be a string, not 1"),
        (
            "parameters",
            {"p": 1 << 70},
            f"parameter 'p' must be an integer from -9223372036854775808 to 9223372036854775807, not {1 << 70}",
        ),
        ("parameters", {"p": "\ud800"}, "parameter 'p' cannot be encoded as UTF-8: "),
        ("parameters", None, "parameters must be a dictionary, not None"),
        ("inputs", None, "inputs must be a dictionary, not None"),
        ("inputs", {7: NUMBERS}, "the name of an input must be a string, not 7"),
    ],
)
def test_a_field_that_no_request_can_have_is_refused_as_by_the_package(
    shared: naiad.Server, field: str, value: object, text: str
) -> None:
    with pytest.raises(TypeError) as caught:
        shared.model("identity").infer(**{"inputs": {"IN": NUMBERS}, field: value})

    assert str(caught.value).startswith(f"cannot submit the request: {text}")
    assert answer(shared) == NUMBERS.tolist()


@pytest.mark.parametrize("version", ["1", 1 << 63, None])
def test_a_version_that_is_no_number_is_refused(shared: naiad.Server, version: object) -> None:
    with pytest.raises(TypeError, match="the version of the model must be an integer from -9223372036854775808 to"):
        shared.model("identity", version).infer(inputs={"IN": NUMBERS})  # type: ignore[arg-type] # the fault


@pytest.mark.parametrize("shape", [[1.5], [1 << 63], ["2"], 2])
def test_a_shape_that_no_tensor_can_have_is_refused(shared: naiad.Server, shape: Any) -> None:
    tensor = naiad.Tensor.from_numpy(NUMBERS)
    tensor.shape = shape

    with pytest.raises(TypeError, match=r"cannot submit input 'IN': its shape must be a sequence of integers"):
        shared.model("identity").infer(inputs={"IN": tensor})

    assert answer(shared) == NUMBERS.tolist()


def test_numbers_of_numpy_are_numbers(shared: naiad.Server) -> None:
    (response,) = shared.model("says_what_it_got").infer(
        inputs={"IN": NUMBERS},
        correlation_id=np.uint64(1 << 63),
        flags=np.int8(1),
        parameters={"f": np.float64(0.5)},
    )

    text = response.outputs["OUT"].to_string_array()[0]
    assert f'"correlation": {1 << 63}, "flags": 1' in text
    assert '"f": 0.5' in text


@pytest.mark.parametrize("size", [2, 400_000], ids=["in the message", "in a block"])
def test_a_message_that_cannot_be_packed_fails_its_request_alone(
    shared: naiad.Server, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    pack = exchange._pack_request

    def faulty(key: int, request: Any, *more: Any) -> bytes:
        if request.request_id == "unpackable":
            raise struct.error("a fault of the test")
        return pack(key, request, *more)

    monkeypatch.setattr(exchange, "_pack_request", faulty)
    for _ in range(3):
        (response,) = shared.model("identity").infer(
            inputs={"IN": np.zeros(size, np.float32)}, request_id="unpackable", raise_on_error=False
        )
        assert isinstance(response.error, naiad.InternalError)
        assert response.error.args[0] == f"cannot send the request to 'identity_0': {CAUSE}"
        assert answer(shared) == NUMBERS.tolist()


def test_inputs_that_cannot_be_copied_fail_their_request_alone(
    shared: naiad.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = unsent_frames._copy
    faults = [struct.error("a fault of the test")]

    def faulty(copies: Any, most: int) -> int:
        if faults and copies:
            raise faults.pop()
        return copy(copies, most)

    monkeypatch.setattr(unsent_frames, "_copy", faulty)
    inputs = {"IN": np.arange(2 * unsent_frames.COPIED_AT_ONCE // 4, dtype=np.float32)}
    model = shared.model("identity")
    responses = [next(iter(model.infer(inputs=inputs, raise_on_error=False))) for _ in range(2)]

    assert responses[0].error is not None
    assert responses[0].error.args[0] == f"cannot send the request to 'identity_0': {CAUSE}"
    assert np.array_equal(responses[1].outputs["OUT"].to_numpy(), inputs["IN"])
    assert answer(shared) == NUMBERS.tolist()


class _Refusing(queue.SimpleQueue):  # type: ignore[type-arg] # Python 3.10 has no generic one
    """A queue of the program's own that takes nothing."""

    def put(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no room")


@pytest.mark.parametrize("model", ["identity", "repeats"])
def test_a_queue_of_the_program_that_raises_ends_no_guest(shared: naiad.Server, model: str) -> None:
    def failures() -> int:
        return int(shared.model(model).statistics()["model_stats"][0]["inference_stats"]["fail"]["count"])

    before, inputs = failures(), {"IN": NUMBERS}
    responses = shared.model(model).infer(inputs=inputs, response_queue=_Refusing(), raise_on_error=False)
    assert next(iter(responses)).error is None
    (response, *_) = shared.model(model).infer(
        inputs=inputs
    )  # of the same guest: if it had been ended, this would fail
    assert response.error is None
    assert failures() == before
