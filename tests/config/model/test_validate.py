"""Configurations that contradict themselves are refused with the reference's texts.

`refused/*.txt` holds them: `=== model`, `--- what the reference logged` (Triton 2.51), the configuration. Three texts
are not from there: those of KIND_GPU are what a build without GPU support says, and a number that no datatype has
passes the reference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.normalise import normalise, normalise_instance_groups
from naiad.config.model.text import parse_text
from naiad.config.model.validate import validate, validate_instance_groups, validate_name
from naiad.core.errors import Code, ConfigError

IO = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'


def cases():
    for file in sorted((Path(__file__).parent / "refused").glob("*.txt")):
        for case in file.read_text("utf-8").split("=== ")[1:]:
            head, text = case.split("\n--- ", maxsplit=1)
            expected, config = text.split("\n", maxsplit=1)
            yield pytest.param(head, config, expected, id=head)


def check(name, text, *, with_io=True):
    message = parse_text(text, "config.pbtxt")
    message.name = message.name or name
    if message.default_model_filename == "model.py":
        message.backend = "python"
    normalise(message)
    validate(message, with_io=with_io)
    validate_name(message, name)
    normalise_instance_groups(message)
    validate_instance_groups(message)
    return message


@pytest.mark.parametrize(("name", "config", "expected"), list(cases()))
def test_a_contradiction_is_refused_with_the_text_of_the_reference(name, config, expected):
    with pytest.raises(ConfigError) as caught:
        check(name, config)

    assert caught.value.message.partition(": it found none")[0] == expected
    assert caught.value.code is (Code.INTERNAL if "unexpected kind KIND_AUTO" in expected else Code.INVALID_ARG)


@pytest.mark.parametrize(
    "config",
    [
        # One variable dimension may move among ones, and an empty reshape makes a scalar of one element.
        'input { name: "x" data_type: TYPE_FP32 dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] } }',
        'max_batch_size: 1 input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { } }',
        'max_batch_size: 1 input { name: "x" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { } }',
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2, 3 ] format: FORMAT_NCHW }',
        'platform: "anything"' + IO,
        IO + ' batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "IN" }',
        "instance_group { count: -3 }",
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }",
        "sequence_batching { direct { minimum_slot_utilization: 1 } }",
        'sequence_batching { control_input { name: "A" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } }',
    ],
)
def test_a_sound_configuration_passes(config):
    check("m", f'backend: "python" {config}')


def test_inputs_and_outputs_may_be_incomplete_until_the_model_has_completed_them():
    text = 'backend: "python" input { name: "x" } output { }'

    check("m", text, with_io=False)

    with pytest.raises(ConfigError, match=r"^model input 'x' must specify 'data_type' for m$"):
        check("m", text, with_io=True)


def test_an_ensemble_whose_tensors_form_a_cycle_is_refused():
    step = '{ model_name: "m" input_map { key: "a" value: "%s" } output_map { key: "b" value: "%s" } }'
    steps = ", ".join(step % flow for flow in [("IN", "x"), ("y", "OUT"), ("OUT", "y"), ("x", "z")])

    with pytest.raises(
        ConfigError,
        match=r"^output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 'y', ",
    ):
        check("e", f'platform: "ensemble" {IO} ensemble_scheduling {{ step [ {steps} ] }}')


def test_an_ensemble_with_a_step_fed_by_two_others_passes():
    step = 'step {{ model_name: "m" {0} output_map {{ key: "o" value: "{1}" }} }}'
    source = 'input_map {{ key: "{0}" value: "{0}" }}'.format
    steps = (
        step.format(source("IN"), "x"),
        step.format(source("x") + source("y"), "OUT"),
        step.format(source("IN"), "y"),
    )

    message = check("e", f'platform: "ensemble" {IO} ensemble_scheduling {{ {" ".join(steps)} }}')

    assert not message.instance_group


@pytest.mark.parametrize(
    ("control", "problem"),
    [
        ("", "metric control must specify 'metric_identifier'"),
        ("metric_identifier { }", "metric identifier must specify non-empty 'family'"),
        ('metric_identifier { family: "f" }', "metric control must specify 'histogram_options'"),
        (
            'metric_identifier { family: "f" } histogram_options { }',
            "histogram options must specify non-empty 'buckets'",
        ),
    ],
)
def test_metric_controls_must_be_whole(control, problem):
    with pytest.raises(ConfigError) as caught:
        check("m", f'backend: "python" model_metrics {{ metric_control {{ {control} }} }}')

    assert caught.value.message == problem


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_batch_tensor_of_an_unknown_kind_is_refused(kind):
    with pytest.raises(ConfigError, match=f"^unknown batch {kind} kind '' for m$"):
        check("m", f'backend: "python" batch_{kind} {{ kind: 77 }}')


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (pb.ModelConfig(), "model configuration must specify 'name'"),
        (pb.ModelConfig(name="m"), "unexpected platform type '' for m"),
        (
            pb.ModelConfig(
                name="m",
                platform="tensorrt_plan",
                backend="tensorrt",
                input=[pb.ModelInput(name="x", data_type=pb.TYPE_FP32, dims=[1], is_non_linear_format_io=True)],
            ),
            "Non-linear IO format input requires 3 dims for m",
        ),
    ],
)
def test_invalid_messages_that_no_file_could_contain_are_refused(message, problem):
    with pytest.raises(ConfigError) as caught:
        validate(message, with_io=True)

    assert caught.value.message == problem
