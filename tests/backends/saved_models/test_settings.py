"""The configuration of a model as backends for saved models read it."""

from __future__ import annotations

import json

import pytest
import triton_python_backend_utils as pb_utils
from saved_models.settings import TensorSettings, control_inputs, placed, read, read_config, threads_for_instance


def settings_of(**config: object):
    arguments = {"model_instance_kind": "CPU", "model_instance_device_id": "0"}
    return read({**arguments, "model_config": json.dumps({"name": "m", **config})})


def test_a_reshape_takes_the_place_of_the_dimensions_and_states_are_inputs_and_outputs():
    found = settings_of(
        max_batch_size=8,
        input=[{"name": "X", "data_type": "TYPE_FP32", "dims": [1], "reshape": {"shape": []}, "optional": True}],
        output=[{"name": "Y", "data_type": "TYPE_INT64", "dims": ["-1", "2"], "allow_ragged_batch": False}],
        sequence_batching={
            "state": [{"input_name": "IN", "output_name": "OUT", "data_type": "TYPE_INT32", "dims": ["3"]}]
        },
    )
    assert found.inputs == (
        TensorSettings("X", "TYPE_FP32", (), is_reshaped=True, is_optional=True),
        TensorSettings("IN", "TYPE_INT32", (3,)),
    )
    assert found.outputs == (TensorSettings("Y", "TYPE_INT64", (-1, 2)), TensorSettings("OUT", "TYPE_INT32", (3,)))
    assert (found.name, found.max_batch_size, found.kind, found.device) == ("m", 8, "CPU", 0)


def test_parameters_are_numbers_and_truth_values_or_say_what_they_are_not():
    found = settings_of(
        parameters={"n": {"string_value": " 3"}, "on": {"string_value": "True"}, "off": {"string_value": "0"}}
    )
    assert (found.integer("n", 7), found.integer("missing", 7)) == (3, 7)
    assert (found.flag("on", default=False), found.flag("off", default=True)) == (True, False)
    assert (found.flag("missing", default=True), found.flag("missing", default=False)) == (True, False)
    with pytest.raises(pb_utils.TritonModelException) as caught:
        found.integer("on", 0)
    assert str(caught.value) == (
        "unable to load model 'm', the parameter on is 'True', not an integer; correct it in config.pbtxt"
    )
    with pytest.raises(pb_utils.TritonModelException, match="the parameter n is ' 3', not true or false; correct it"):
        found.flag("n", default=False)


def test_an_object_in_a_parameter_is_read_or_the_error_has_an_example():
    found = settings_of(parameters={"o": {"string_value": '{"a": 1}'}, "n": {"string_value": "null"}, "x": {}})
    assert (found.json_object("o", "{}"), found.json_object("missing", "{}")) == ({"a": 1}, None)
    for key in ("n", "x"):
        with pytest.raises(
            pb_utils.TritonModelException, match=f"the parameter {key} is '.*', not a JSON object such as"
        ):
            found.json_object(key, '{"a": 1}')


@pytest.mark.parametrize(
    ("parameter", "setting", "default", "allowed"),
    [
        (None, None, False, False),
        (None, None, True, True),
        (None, "true", False, True),
        (None, "false", True, False),
        (None, "maybe", True, True),
        (None, "maybe", False, False),
        ("true", "false", True, True),
        ("false", "true", True, False),
    ],
)
def test_the_models_parameter_counts_before_the_setting_of_the_operator(
    monkeypatch, parameter, setting, default, allowed
):
    monkeypatch.setattr(pb_utils, "get_backend_config", lambda: {} if setting is None else {"allow-it": setting})
    found = settings_of(parameters={} if parameter is None else {"allow_it": {"string_value": parameter}})
    assert found.allows("allow_it", "allow-it", default=default) is allowed


def test_a_control_has_the_type_of_its_values_or_the_one_it_names():
    controls = [
        {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]},
        {"name": "READY", "control": [{"kind": "CONTROL_SEQUENCE_READY", "int32_false_true": [0, 1]}]},
        {"name": "ID", "control": [{"kind": "CONTROL_SEQUENCE_CORRID", "data_type": "TYPE_UINT64"}]},
    ]
    assert control_inputs({"sequence_batching": {"control_input": controls}}) == {
        "START": "TYPE_FP32",
        "READY": "TYPE_INT32",
        "ID": "TYPE_UINT64",
    }
    assert control_inputs({}) == {}


def test_a_missing_file_is_named_with_the_place_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    with pytest.raises(pb_utils.TritonModelException) as caught:
        settings_of().find_file("model.onnx")
    assert str(caught.value) == f"unable to find '{tmp_path}/model.onnx' for model instance 'm'"
    (tmp_path / "other.onnx").touch()
    assert settings_of(default_model_filename="other.onnx").find_file("model.onnx") == tmp_path / "other.onnx"


@pytest.mark.parametrize(("text", "threads"), [("4", 4), ("", 0), ("4,2", 0)])
def test_the_threads_of_an_instance_are_those_that_the_server_leaves_it(monkeypatch, text, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads_for_instance() == threads


@pytest.mark.parametrize(
    ("groups", "has_gpu", "expected"),
    [
        ([], True, ("CPU", 0)),
        ([{"kind": "KIND_CPU"}], True, ("CPU", 0)),
        ([{"kind": "KIND_MODEL"}], True, ("MODEL", 0)),
        ([{"kind": "KIND_GPU", "gpus": [1, 2]}], False, ("GPU", 1)),
        ([{"kind": "KIND_AUTO"}], True, ("GPU", 0)),
        ([{"kind": "KIND_AUTO"}], False, ("CPU", 0)),
    ],
)
def test_a_model_is_completed_where_its_first_instance_will_be(groups, has_gpu, expected):
    found = placed(read_config({"name": "m", "instance_group": groups}), has_gpu=has_gpu)
    assert (found.kind, found.device) == expected
