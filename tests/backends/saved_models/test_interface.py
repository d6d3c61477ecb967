"""Configurations compared with what a saved model declares, and completed from it. Texts are the reference's."""

from __future__ import annotations

import json

import pytest
import triton_python_backend_utils as pb_utils
from saved_models.interface import ModelInterface, ModelTensor, check, complete, is_complete
from saved_models.settings import read_config

X = ModelTensor("X", "TYPE_FP32", (-1, 4))
Y = ModelTensor("Y", "TYPE_FP32", (-1, 2))
BATCHING = ModelInterface(inputs=(X,), outputs=(Y,))
FIXED = ModelInterface(inputs=(ModelTensor("X", "TYPE_INT64", (3,)),), outputs=(ModelTensor("S", "TYPE_INT64", ()),))


def tensor(name: str, dims: list[int], data_type: str = "TYPE_FP32", **more: object) -> dict[str, object]:
    return {"name": name, "data_type": data_type, "dims": dims, **more}


def completed(interface: ModelInterface, **written: object):
    config = pb_utils.ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **written}))
    return complete(config, interface).as_dict()


def checked(interface: ModelInterface, **written: object) -> None:
    check(read_config({"name": "m", **written}), interface)


def test_a_model_whose_first_dimensions_vary_gets_a_batch_size_and_the_dynamic_batcher(monkeypatch):
    found = completed(BATCHING)
    assert found["max_batch_size"] == 4
    assert found["dynamic_batching"] == {}
    assert found["input"] == [tensor("X", [4])]
    assert found["output"] == [tensor("Y", [2])]
    monkeypatch.setattr(pb_utils, "get_backend_config", lambda: {"default-max-batch-size": "32"})
    assert completed(BATCHING)["max_batch_size"] == 32
    assert "dynamic_batching" not in completed(BATCHING, sequence_batching={})
    assert "dynamic_batching" not in completed(BATCHING, max_batch_size=1)
    monkeypatch.setattr(pb_utils, "get_backend_config", lambda: {"default-max-batch-size": "0"})
    assert completed(BATCHING)["input"] == [tensor("X", [-1, 4])]


def test_a_scalar_has_one_element_and_with_batches_a_reshape():
    assert completed(FIXED)["output"] == [tensor("S", [1], "TYPE_INT64")]
    rows = ModelInterface(inputs=(X,), outputs=(ModelTensor("Y", "TYPE_FP32", (-1,)),))
    assert completed(rows)["output"] == [tensor("Y", [1], reshape={"shape": []})]


def test_inputs_may_be_optional_and_outputs_in_configurations_may_not():
    either = ModelTensor("E", "TYPE_FP32", (-1, 1), is_optional=True)
    found = completed(ModelInterface(inputs=(X, either), outputs=(Y, either)))
    assert found["input"][1] == tensor("E", [1], optional=True)
    assert found["output"][1] == tensor("E", [1])


def test_what_is_written_stays_and_the_other_half_is_completed():
    mine = [tensor("X", [-1])]
    found = completed(BATCHING, input=mine, max_batch_size=2)
    assert (found["input"], found["output"], found["max_batch_size"]) == (mine, [tensor("Y", [2])], 2)
    assert is_complete({"input": mine, "output": mine})
    assert is_complete({"batch_input": [{}], "output": mine})
    assert not is_complete({"input": mine, "output": []})


def test_a_batch_size_for_a_model_that_cannot_batch_is_an_error():
    with pytest.raises(pb_utils.TritonModelException) as caught:
        completed(FIXED, max_batch_size=8)
    assert str(caught.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_a_type_that_requests_cannot_have_is_named():
    odd = ModelInterface(inputs=(ModelTensor("X", "", (-1,), "tensor(complex64)"),), outputs=(Y,))
    for act in (completed, checked):
        with pytest.raises(pb_utils.TritonModelException) as caught:
            act(odd, **({} if act is completed else {"max_batch_size": 1, "input": [tensor("X", [])], "output": []}))
        assert str(caught.value) == (
            "unable to load model 'm', input 'X' of the model has type tensor(complex64), and tensors of requests "
            "cannot have it; add a conversion to the model"
        )


RAGGED = ModelInterface(
    inputs=(ModelTensor("X", "TYPE_FP32", (-1,)), ModelTensor("N", "TYPE_INT32", (-1,))), outputs=(Y,)
)


@pytest.mark.parametrize(
    ("interface", "written"),
    [
        (BATCHING, {"max_batch_size": 8, "input": [tensor("X", [4])], "output": [tensor("Y", [2])]}),
        (BATCHING, {"max_batch_size": 0, "input": [tensor("X", [-1, 4])], "output": [tensor("Y", [-1, 2])]}),
        (BATCHING, {"max_batch_size": 0, "input": [tensor("X", [7, 4])], "output": []}),
        (BATCHING, {"max_batch_size": 8, "input": [tensor("X", [2, 2], reshape={"shape": [4]})], "output": []}),
        (FIXED, {"input": [tensor("X", [3], "TYPE_INT64")], "output": [tensor("S", [1, 1], "TYPE_INT64")]}),
        (
            ModelInterface(inputs=(X,), outputs=(Y,), overridable=(ModelTensor("W", "TYPE_FP32", (4,)),)),
            {"input": [tensor("X", [-1, 4]), tensor("W", [4], optional=True)], "output": []},
        ),
        (
            RAGGED,
            {
                "max_batch_size": 8,
                "input": [tensor("X", [-1], allow_ragged_batch=True)],
                "batch_input": [{"target_name": ["N"], "data_type": "TYPE_INT32"}],
                "output": [],
            },
        ),
    ],
)
def test_a_configuration_that_the_model_fits_is_accepted(interface, written):
    checked(interface, **written)


@pytest.mark.parametrize(
    ("interface", "written", "text"),
    [
        (BATCHING, {"input": []}, "unable to load model 'm', configuration expects 0 inputs, model provides 1"),
        (
            BATCHING,
            {"input": [tensor("Z", [-1, 4])]},
            "unexpected inference input 'Z', allowed inputs are: X",
        ),
        (
            BATCHING,
            {"input": [tensor("X", [-1, 4])], "output": [tensor("Z", [1])]},
            "unexpected inference output 'Z', allowed outputs are: Y",
        ),
        (
            BATCHING,
            {"input": [tensor("X", [-1, 4], "TYPE_INT32")]},
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'X', model provides TYPE_FP32",
        ),
        (
            BATCHING,
            {"input": [tensor("X", [4])]},
            (
                "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies "
                "1 dimensions (shape [4])"
            ),
        ),
        (
            BATCHING,
            {"max_batch_size": 2, "input": [tensor("X", [5])]},
            (
                "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,4]) but the model configuration specifies "
                "2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
                "making complete shape [-1,5])"
            ),
        ),
        (
            BATCHING,
            {"max_batch_size": 0, "input": [tensor("X", [-1, 4])], "output": [tensor("Y", [3, 2])]},
            (
                "model 'm', tensor 'Y': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies "
                "2 dimensions (shape [3,2])"
            ),
        ),
        (
            FIXED,
            {"max_batch_size": 2, "input": [tensor("X", [3], "TYPE_INT64")]},
            (
                "model 'm', tensor 'X': for the model to support batching the shape should have at least 1 dimension and the "
                "first dimension must be -1; but shape expected by the model is [3]"
            ),
        ),
        (
            FIXED,
            {"input": [tensor("X", [3], "TYPE_INT64")], "output": [tensor("S", [2], "TYPE_INT64")]},
            (
                "unable to load model 'm', scalar tensor 'S', should only provide 1 in the model configuration when the model "
                "doesn't support batching. Model configuration provided: [2]."
            ),
        ),
        (
            ModelInterface(inputs=(X,), outputs=(Y,), overridable=(ModelTensor("W", "TYPE_FP32", (-1,)),)),
            {"max_batch_size": 2, "input": [tensor("X", [4]), tensor("W", [], optional=True)]},
            "unable to load model 'm', optional input 'W' is not supported for models that support batching",
        ),
        (
            RAGGED,
            {
                "max_batch_size": 2,
                "input": [tensor("X", [-1], allow_ragged_batch=True)],
                "batch_input": [{"target_name": ["N"], "data_type": "TYPE_FP32"}],
            },
            (
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'N', model provides "
                "TYPE_INT32"
            ),
        ),
        (
            BATCHING,
            {"max_batch_size": 2, "input": [tensor("X", [4], allow_ragged_batch=True)]},
            (
                "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'X', "
                "model provides [-1,4]"
            ),
        ),
    ],
)
def test_a_difference_is_told_in_the_words_of_the_reference(interface, written, text):
    with pytest.raises(pb_utils.TritonModelException) as caught:
        checked(interface, **written)
    assert str(caught.value) == text
