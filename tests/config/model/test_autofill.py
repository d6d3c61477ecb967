"""The backend of a model is told from its files and name, in the reference's order."""

from __future__ import annotations

import pytest

from naiad.config.model.autofill import fill_backend
from naiad.config.model.text import parse_text
from naiad.core.errors import ConfigError


def filled(text="", *, name="m", listing=None):
    message = parse_text(text, "config.pbtxt")
    fill_backend(message, name, listing)
    return message.name, message.backend, message.platform, message.default_model_filename


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ({"model.py": False}, ("python", "", "model.py")),
        ({"model.py": False, "labels.txt": False, "data": True}, ("python", "", "model.py")),
        ({"model.py": False, "model.onnx": False}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ({"model.onnx": True}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ({"model.plan": False, "model.onnx": False}, ("tensorrt", "tensorrt_plan", "model.plan")),
        ({"model.plan": True, "model.py": False}, ("python", "", "model.py")),
        ({"model.savedmodel": True}, ("tensorflow", "tensorflow_savedmodel", "model.savedmodel")),
        ({"model.savedmodel": False, "model.py": False}, ("python", "", "model.py")),
        ({"model.graphdef": False}, ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        ({"model.xml": False}, ("openvino", "", "model.xml")),
        ({"model.pt": False}, ("pytorch", "pytorch_libtorch", "model.pt")),
        ({"model.pt2": False}, ("pytorch", "torch_aoti", "model.pt2")),
        # Saved models, of backends that the reference lacks.
        ({"xgboost.json": False}, ("fil", "", "")),
        ({"model.skops": False}, ("sklearn", "", "")),
        ({"MLmodel": False, "model.skops": False, "requirements.txt": False}, ("mlflow", "", "")),
        # As in Triton: such files have a meaning to the model's own code.
        ({"MLmodel": False, "model.py": False}, ("python", "", "model.py")),
        ({"MLmodel": False, "model.onnx": False}, ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
    ],
)
def test_the_files_of_a_model_determine_its_backend(listing, expected):
    assert filled(listing=listing) == ("m", *expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('default_model_filename: "model.py"', ("python", "", "model.py")),
        ('backend: "python"', ("python", "", "model.py")),
        ('backend: "python" default_model_filename: "other.py"', ("python", "", "other.py")),
        ('backend: "my_backend"', ("my_backend", "", "")),
        ('platform: "onnxruntime_onnx"', ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "onnxruntime"', ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('backend: "pytorch" platform: "torch_aoti"', ("pytorch", "torch_aoti", "model.pt2")),
        ('platform: "libtorch"', ("pytorch", "libtorch", "model.pt")),
        ('platform: "python"', ("", "python", "")),
        ('platform: "ensemble"', ("", "ensemble", "")),
        ('default_model_filename: "foo.py"', ("", "", "foo.py")),
    ],
)
def test_the_configuration_outweighs_files(text, expected):
    assert filled(text, listing={"model.plan": False}) == ("m", *expected)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "adapter_config.json"])
def test_the_files_of_a_backend_that_ships_with_naiad_are_recognised_after_those_of_the_reference(name):
    listing = {"config.json": False, name: False}
    assert filled(listing=listing) == ("m", "transformers", "", "")
    assert filled(listing={**listing, "model.py": False}) == ("m", "python", "", "model.py")


@pytest.mark.parametrize(
    ("name", "backend"), [("sum.my_backend", "my_backend"), ("sum.my.backend", "my.backend"), (".x", "x")]
)
def test_the_name_of_a_model_has_its_backend_after_the_first_dot(name, backend):
    assert filled(name=name, listing={"weights.bin": False}) == (name, backend, "", f"model.{backend}")


def test_files_outweigh_the_name():
    assert filled(name="sum.my_backend", listing={"model.py": False})[1] == "python"


def test_a_model_whose_backend_is_unknown_is_an_error():
    with pytest.raises(ConfigError) as caught:
        filled(name="sum", listing={})

    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'sum' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


def test_a_name_in_the_configuration_stays():
    assert filled('name: "other" backend: "python"')[0] == "other"
