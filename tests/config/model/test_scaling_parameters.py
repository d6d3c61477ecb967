"""The parameters that let a model's number of instances follow its load."""

from __future__ import annotations

import pytest

from naiad.config.model.model_config import freeze
from naiad.config.model.scaling import ScalingPolicy, reject_native_scaling, with_count
from naiad.config.model.text import parse_text
from naiad.core.errors import ConfigError


def config(group="instance_group { count: 2 }", **parameters):
    given = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n' for key, text in parameters.items()
    )
    return freeze(parse_text(f'name: "m" {group} {given}', "config.pbtxt"))


@pytest.mark.parametrize(
    ("parameters", "policy"),
    [
        ({}, None),
        ({"min_instances": "1", "max_instances": "4"}, ScalingPolicy(least=1, most=4, wait=0.1, idle=60)),
        ({"max_instances": "4"}, ScalingPolicy(least=2, most=4, wait=0.1, idle=60)),
        ({"max_instances": "1"}, ScalingPolicy(least=1, most=1, wait=0.1, idle=60)),
        ({"min_instances": "3", "max_instances": "3"}, ScalingPolicy(least=3, most=3, wait=0.1, idle=60)),
        (
            {"max_instances": "4", "scale_wait_ms": "20", "scale_idle_seconds": "1.5"},
            ScalingPolicy(least=2, most=4, wait=0.02, idle=1.5),
        ),
    ],
)
def test_the_count_of_the_group_is_the_least_number_unless_another_is_given(parameters, policy):
    assert config(**parameters).settings.scaling == policy


@pytest.mark.parametrize(
    ("texts", "name", "range_of"),
    [
        (("4_0", "+4", "٤", "0", "4097", "nan"), "max_instances", "instances from 1 to 4096"),
        (("1_0", "+1", "nan", "inf", "1e999", "0", "-1"), "scale_idle_seconds", "seconds above 0"),
    ],
)
def test_a_number_is_in_ascii_digits(texts, name, range_of):
    for text in texts:
        with pytest.raises(ConfigError, match=rf"give a number of {range_of}$"):
            config(**{"max_instances": "4", name: text})


def test_a_copy_gets_the_number_of_instances():
    message = config().message
    assert [with_count(message, 3).instance_group[0].count, message.instance_group[0].count] == [3, 2]


@pytest.mark.parametrize(
    ("group", "parameters", "problem"),
    [
        ("", {"min_instances": "2"}, "parameter min_instances of model 'm' has no effect without max_instances: the number of its instances is fixed"),
        ("", {"min_instances": "0", "max_instances": "2"}, "parameter min_instances of model 'm' is '0': give a number of instances from 1 to 4096"),
        ("", {"max_instances": "many"}, "parameter max_instances of model 'm' is 'many': give a number of instances from 1 to 4096"),
        ("", {"min_instances": "4", "max_instances": "2"}, "parameter max_instances of model 'm' is 2, less than min_instances=4"),
        ("", {"scale_wait_ms": "5"}, "parameter scale_wait_ms of model 'm' has no effect without max_instances: the number of its instances is fixed"),
        ("", {"max_instances": "2", "scale_idle_seconds": "0"}, "parameter scale_idle_seconds of model 'm' is '0': give a number of seconds above 0"),
        ("", {"max_instances": "2", "scale_wait_ms": "x"}, "parameter scale_wait_ms of model 'm' is 'x': give a number of milliseconds above 0"),
        ("instance_group [{ count: 1 }, { count: 1 }]", {"max_instances": "2"}, "parameters min_instances and max_instances of model 'm' need one instance group on one device: its configuration has several"),
        ("instance_group { count: 1 passive: true }", {"max_instances": "2"}, "parameters min_instances and max_instances of model 'm' cannot be used with rate_limiter or passive of its instance group"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_scaled_is_refused_with_the_reason(group, parameters, problem):
    with pytest.raises(ConfigError) as caught:
        config(group, **parameters)
    assert caught.value.message == problem


def test_a_native_model_that_gives_a_range_is_rejected_with_the_reason():
    assert reject_native_scaling("m").message == (
        "parameters min_instances and max_instances of model 'm' need a model in Python: the instances of a native "
        "backend cannot be added while it serves"
    )
