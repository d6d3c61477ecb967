"""Ensembles and the models of their steps: what fits together, and what is said where it does not."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.ensemble_checks import check_ensemble_members
from naiad.core.errors import ConfigError


def model(name, inputs="IN FP32 -1", outputs="OUT FP32 -1", *, batch=0, decoupled=False, optional=""):
    """`inputs` and `outputs`: `NAME TYPE DIM...` each, separated by commas."""
    message = pb.ModelConfig(name=name, max_batch_size=batch)
    message.model_transaction_policy.decoupled = decoupled
    for text, tensors in ((inputs, message.input), (outputs, message.output)):
        for part in text.split(","):
            tensor, datatype, *dims = part.split()
            tensors.add(name=tensor, data_type=pb.DataType.Value(f"TYPE_{datatype}"), dims=map(int, dims))
    for tensor in message.input:
        tensor.optional = tensor.name == optional
    return message


def ensemble(*steps, inputs="X FP32 -1", outputs="Y FP32 -1", batch=0):
    """Steps: `model IN=X, IN2=Z > OUT=Y`."""
    message = model("e", inputs, outputs, batch=batch)
    for text in steps:
        name, _, maps = text.partition(" ")
        step = message.ensemble_scheduling.step.add(model_name=name, model_version=-1)
        taken, _, made = maps.partition(">")
        for part, target in ((taken, step.input_map), (made, step.output_map)):
            for pair in part.split(","):
                key, _, value = pair.strip().partition("=")
                target[key] = value
    return message


def check(message, *models):
    return check_ensemble_members(message, {each.name: each for each in models})


CHAIN = ("m IN=X > OUT=A", "n IN=A > OUT=Y")
INCONSISTENT = "in ensemble e, ensemble tensor {} is inferred from model {} while {} is inferred from model {}"
DECOUPLED = "in ensemble e, step of model 'e' receives inputs originated from different decoupled models"


def test_an_ensemble_is_decoupled_if_one_of_its_models_is():
    assert check(ensemble(*CHAIN), model("m"), model("n")) is False
    assert check(ensemble(*CHAIN), model("m"), model("n", decoupled=True)) is True


@pytest.mark.parametrize(
    ("message", "models", "text"),
    [
        (
            ensemble("m IN=X > OUT=Y", batch=8),
            [model("m", batch=4)],
            "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to be 4",
        ),
        (
            ensemble("m NOPE=X > OUT=Y"),
            [model("m")],
            "in ensemble e, ensemble tensor X is mapping to non-existing input NOPE in model m",
        ),
        (
            ensemble("m IN=X > NOPE=Y"),
            [model("m")],
            "in ensemble e, ensemble tensor Y is mapped from non-existing output NOPE in model m",
        ),
        (
            ensemble("m IN=X > OUT=Y"),
            [model("m", "IN FP32 -1,MORE FP32 -1")],
            "in ensemble e, input MORE in model m is not mapped to any ensemble tensors",
        ),
        (
            ensemble("m IN=X > OUT=Y"),
            [model("m", "IN INT32 -1")],
            INCONSISTENT.format("X: inconsistent data type: TYPE_FP32", "e", "TYPE_INT32", "m"),
        ),
        (
            ensemble(*CHAIN),
            [model("m", outputs="OUT FP32 3"), model("n", "IN FP32 4")],
            INCONSISTENT.format("A: inconsistent shape: [3]", "m", "[4]", "n"),
        ),
        (
            ensemble("m IN=X > OUT=Y", batch=2, inputs="X FP32 3", outputs="Y FP32 3"),
            [model("m", "IN FP32 3", "OUT FP32 4", batch=2)],
            INCONSISTENT.format("Y: inconsistent shape: [-1,3]", "e", "[-1,4]", "m"),
        ),
        (
            ensemble("m IN=X > OUT=A", "n IN=A, IN2=X > OUT=Y"),
            [model("m", decoupled=True), model("n", "IN FP32 -1,IN2 FP32 -1")],
            DECOUPLED,
        ),
        (
            ensemble("m IN=X > OUT=Y", "n IN=X > OUT=Z", outputs="Y FP32 -1,Z FP32 -1"),
            [model("m", decoupled=True), model("n")],
            DECOUPLED,
        ),
    ],
)
def test_steps_whose_tensors_do_not_fit_are_refused(message, models, text):
    with pytest.raises(ConfigError) as caught:
        check(message, *models)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("message", "models"),
    [
        (ensemble("m IN=X > OUT=Y", batch=4), [model("m", batch=4)]),
        (ensemble("m IN=X > OUT=Y", batch=4), [model("m", batch=8)]),
        (ensemble("m IN=X > OUT=Y"), [model("m", batch=8)]),
        # A batch of one model is one tensor of another.
        (
            ensemble("m IN=X > OUT=Y", batch=4, inputs="X FP32 3", outputs="Y FP32 3"),
            [model("m", "IN FP32 -1 3", "OUT FP32 -1 3")],
        ),
        (ensemble("m IN=X > OUT=Y"), [model("m", "IN FP32 -1,MORE FP32 -1", optional="MORE")]),
        (ensemble("m IN=X > OUT=Y", inputs="X FP32 3"), [model("m")]),
        (ensemble(*CHAIN), [model("m", decoupled=True), model("n", decoupled=True)]),
    ],
)
def test_steps_whose_tensors_fit_are_accepted(message, models):
    check(message, *models)


def test_a_reshaped_tensor_has_the_shape_that_steps_see():
    message = ensemble("m IN=X > OUT=Y", inputs="X FP32 1")
    text_format.Parse("input { reshape { shape: [ 4 ] } }", extra := pb.ModelConfig())
    message.input[0].reshape.CopyFrom(extra.input[0].reshape)
    check(message, model("m", "IN FP32 4"))
