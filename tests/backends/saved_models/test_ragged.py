"""Batches of inputs whose sizes differ: what the model gets, and whose part of the outputs is whose."""

from __future__ import annotations

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from saved_models.execution import BatchRunner
from saved_models.ragged import RaggedBatches
from saved_models.settings import read_config

from .test_execution import values

SHAPES = [{"X": (1, 3)}, {"X": (2, 2)}, {"X": (1, 1)}]
"""Of three requests: 3, 4 and 1 elements in 4 rows."""


def settings_of(kind="BATCH_ELEMENT_COUNT", data_type="TYPE_FP32", dims=(-1,), **more):
    return read_config(
        {
            "name": "m",
            "max_batch_size": 8,
            "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1], "allow_ragged_batch": True}],
            "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": list(dims)}],
            "batch_input": [{"kind": kind, "target_name": ["B", "C"], "data_type": data_type, "source_input": ["X"]}],
            **more,
        }
    )


SCATTERED = {"batch_output": [{"target_name": ["Y"], "source_input": ["X"]}]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 4, 1]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 7, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 7, 8]),
        ("BATCH_ITEM_SHAPE", [[3], [2], [2], [1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 2, 2, 1]),
    ],
)
@pytest.mark.parametrize(("data_type", "dtype"), [("TYPE_FP32", "float32"), ("TYPE_INT32", "int32")])
def test_a_batch_input_describes_the_batch(kind, expected, data_type, dtype):
    found = RaggedBatches(settings_of(kind, data_type)).batch_inputs(SHAPES)
    assert list(found) == ["B", "C"]
    for array in found.values():
        assert (array.tolist(), array.dtype.name) == (expected, dtype)


def test_the_greatest_number_of_elements_is_the_shape_of_an_input():
    found = RaggedBatches(settings_of("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE")).batch_inputs(SHAPES)
    assert found["B"].shape == (4,)


def test_the_shapes_of_several_dimensions_are_rows():
    shapes = [{"X": (2, 3, 1)}, {"X": (1, 2, 2)}]
    assert RaggedBatches(settings_of("BATCH_ITEM_SHAPE")).batch_inputs(shapes)["B"].tolist() == [[3, 1], [3, 1], [2, 2]]
    flat = RaggedBatches(settings_of("BATCH_ITEM_SHAPE_FLATTEN")).batch_inputs(shapes)["B"]
    assert flat.tolist() == [3, 1, 3, 1, 2, 2]


def test_an_output_has_the_sizes_of_its_input_where_they_vary():
    ragged = RaggedBatches(settings_of(**SCATTERED))
    parts = ragged.scatter("Y", np.arange(8), SHAPES)
    assert [part.tolist() for part in parts] == [[[0, 1, 2]], [[3, 4], [5, 6]], [[7]]]
    wide = RaggedBatches(settings_of(dims=(-1, 2), **SCATTERED))
    assert [part.shape for part in wide.scatter("Y", np.arange(16), SHAPES)] == [(1, 3, 2), (2, 2, 2), (1, 1, 2)]
    with pytest.raises(ValueError, match="output 'Y' has 7 elements, and inputs 'X' of its batch need 8"):
        ragged.scatter("Y", np.arange(7), SHAPES)


class Doubling:
    """Doubles `X` into `Y`, and remembers what it got."""

    def __init__(self):
        self.calls = []

    def run(self, arrays, wanted):
        self.calls.append({name: array.tolist() for name, array in arrays.items()})
        if (arrays["X"] == 13).any():
            raise ValueError("13 is refused")
        return {"Y": arrays["X"] * 2}


def request(*rows):
    array = np.array(rows, np.float32)
    return pb_utils.InferenceRequest(model_name="m", inputs=[pb_utils.Tensor("X", array)], requested_output_names=["Y"])


def runner_of(library):
    settings = settings_of("BATCH_ACCUMULATED_ELEMENT_COUNT", **SCATTERED)
    return BatchRunner(settings, library.run, ragged=RaggedBatches(settings))


def test_requests_of_all_sizes_are_one_call_with_one_dimension():
    library = Doubling()
    responses = runner_of(library).execute([request([1, 2]), request([3]), request([4, 5, 6])])
    assert library.calls == [{"X": [1, 2, 3, 4, 5, 6], "B": [2, 3, 6], "C": [2, 3, 6]}]
    assert [values(response)["Y"] for response in responses] == [[[2, 4]], [[6]], [[8, 10, 12]]]


def test_one_request_is_a_batch_as_well():
    library = Doubling()
    (response,) = runner_of(library).execute([request([1, 2], [3, 4])])
    assert library.calls == [{"X": [1, 2, 3, 4], "B": [4], "C": [4]}]
    assert values(response)["Y"] == [[2, 4], [6, 8]]


def test_a_request_that_the_library_refuses_fails_alone():
    responses = runner_of(Doubling()).execute([request([1, 2]), request([13])])
    assert values(responses[0])["Y"] == [[2, 4]]
    assert responses[1].error().message() == "13 is refused"


def test_a_backend_that_makes_no_ragged_batches_gets_each_shape_alone():
    library = Doubling()
    runner = BatchRunner(settings_of(**SCATTERED), library.run)
    runner.execute([request([1, 2]), request([3])])
    assert library.calls == [{"X": [[1, 2]]}, {"X": [[3]]}]
