"""The requests of a batch as one call: what is joined, how outputs are divided, and what a failure costs."""

from __future__ import annotations

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from saved_models.conversion import InputError
from saved_models.execution import BatchRunner
from saved_models.settings import read_config


class Library:
    """Doubles `X` into `Y`, and remembers with what it was called."""

    def __init__(self) -> None:
        self.calls: list[dict[str, list[object]]] = []
        self.wanted: list[tuple[str, ...]] = []

    def run(self, arrays, wanted):
        self.calls.append({name: array.tolist() for name, array in arrays.items()})
        self.wanted.append(tuple(wanted))
        if any((array == 13).any() for array in arrays.values()):
            raise ValueError("13 is refused")
        return {"Y": arrays["X"] * 2, "N": np.array([[len(arrays["X"])]] * len(arrays["X"]))}


def runner_of(library: Library, *, max_batch_size: int = 8) -> BatchRunner:
    outputs = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in ("Y", "N")]
    return BatchRunner(read_config({"name": "m", "max_batch_size": max_batch_size, "output": outputs}), library.run)


def request(*rows: list[float], outputs: tuple[str, ...] = ("Y", "N")):
    array = np.array(rows, np.float32)
    return pb_utils.InferenceRequest(
        model_name="m", inputs=[pb_utils.Tensor("X", array)], requested_output_names=list(outputs)
    )


def values(response) -> dict[str, object]:
    assert not response.has_error(), response.error().message()
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in response.output_tensors()}


def test_requests_of_one_shape_are_one_call_and_get_their_own_rows():
    library = Library()
    responses = runner_of(library).execute([request([1, 2]), request([3, 4], [5, 6]), request([7, 8])])
    assert library.calls == [{"X": [[1, 2], [3, 4], [5, 6], [7, 8]]}]
    assert [values(response)["Y"] for response in responses] == [[[2, 4]], [[6, 8], [10, 12]], [[14, 16]]]
    assert values(responses[1])["N"] == [[4], [4]]


def test_requests_of_other_shapes_are_calls_of_their_own_and_responses_keep_the_order():
    library = Library()
    responses = runner_of(library).execute([request([1, 2]), request([3]), request([4, 5])])
    assert library.calls == [{"X": [[1, 2], [4, 5]]}, {"X": [[3]]}]
    assert [values(response)["Y"] for response in responses] == [[[2, 4]], [[6]], [[8, 10]]]


def test_a_response_lacks_the_outputs_that_a_batch_has_not():
    outputs = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in ("Y", "N")]
    settings = read_config({"name": "m", "max_batch_size": 8, "output": outputs})
    runner = BatchRunner(settings, lambda arrays, _wanted: {"Y": arrays["X"]})
    assert [values(each) for each in runner.execute([request([1]), request([2])])] == [{"Y": [[1]]}, {"Y": [[2]]}]
    assert [values(each) for each in runner.execute([request([3])])] == [{"Y": [[3]]}]


def test_requests_are_not_joined_for_a_library_that_takes_one_row():
    library = Library()
    outputs = [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]
    settings = read_config({"name": "m", "max_batch_size": 8, "output": outputs})
    found = BatchRunner(settings, library.run, is_joining=False).execute([request([1]), request([2])])
    assert [values(each)["Y"] for each in found] == [[[2]], [[4]]]
    assert library.calls == [{"X": [[1]]}, {"X": [[2]]}]


def test_requests_with_other_arguments_are_calls_of_their_own():
    calls = []

    def run(arrays, wanted, *arguments):
        calls.append((arrays["X"].tolist(), arguments))
        return {"Y": arrays["X"]}

    def named(number, name):
        array = np.array([[number]], np.float32)
        return pb_utils.InferenceRequest(
            model_name="m", inputs=[pb_utils.Tensor("X", array)], requested_output_names=["Y"], request_id=name
        )

    outputs = [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]
    settings = read_config({"name": "m", "max_batch_size": 8, "output": outputs})
    runner = BatchRunner(settings, run, arguments=lambda one: (one.request_id(),))
    responses = runner.execute([named(1, "a"), named(2, "b"), named(3, "a")])
    assert calls == [([[1], [3]], ("a",)), ([[2]], ("b",))]
    assert [values(response)["Y"] for response in responses] == [[[1]], [[2]], [[3]]]


def test_without_batches_each_request_is_a_call():
    library = Library()
    runner_of(library, max_batch_size=0).execute([request([1]), request([2])])
    assert library.calls == [{"X": [[1]]}, {"X": [[2]]}]


def test_a_request_that_the_library_refuses_fails_alone():
    responses = runner_of(Library()).execute([request([1]), request([13]), request([3])])
    assert [response.has_error() for response in responses] == [False, True, False]
    assert responses[1].error().message() == "13 is refused"
    assert values(responses[2])["Y"] == [[6]]


def test_only_outputs_that_a_request_asks_for_are_computed_and_sent():
    library = Library()
    first, second = runner_of(library).execute([request([1], outputs=("N",)), request([2], outputs=("Y",))])
    assert library.wanted == [("Y", "N")]
    assert list(values(first)) == ["N"]
    assert list(values(second)) == ["Y"]
    runner_of(library).execute([request([1], outputs=("N",))])
    assert library.wanted[-1] == ("N",)


@pytest.mark.parametrize("requests", [1, 2])
def test_an_output_without_a_row_for_each_input_is_an_error_and_no_wrong_answer(requests):
    def run(arrays, wanted):
        return {"Y": np.zeros((7, 1), np.float32)}

    outputs = [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}]
    runner = BatchRunner(read_config({"name": "m", "max_batch_size": 8, "output": outputs}), run)
    for response in runner.execute([request([1])] * requests):
        assert response.error().message() == "output 'Y' has shape [7, 1] for a batch of 1 rows"


@pytest.mark.parametrize(
    ("error", "text", "code"),
    [
        (RuntimeError("broken"), "RuntimeError: broken", "INTERNAL"),
        (KeyError("k"), "KeyError: 'k'", "INTERNAL"),
        (ValueError("no row"), "no row", "INTERNAL"),
        (InputError("input 'X' is wrong"), "input 'X' is wrong", "INVALID_ARG"),
    ],
)
def test_an_exception_of_the_library_has_its_class_in_the_error_and_wrong_inputs_are_the_clients(error, text, code):
    def run(arrays, wanted):
        raise error

    (response,) = BatchRunner(read_config({"name": "m"}), run).execute([request([1])])
    assert response.error().message() == text
    assert response.error().code() == getattr(pb_utils.TritonError, code)
