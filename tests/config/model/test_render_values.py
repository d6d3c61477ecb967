"""Values whose JSON form is not obvious."""

from __future__ import annotations

import json

import pytest

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.render import to_json


def utilization(value):
    message = pb.ModelConfig()
    message.sequence_batching.direct.minimum_slot_utilization = value
    return json.dumps(to_json(message)["sequence_batching"]["direct"]["minimum_slot_utilization"])


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.7, "0.7"),
        (-0.1, "-0.1"),
        (1 / 3, "0.333333343"),
        (1e10, "10000000000.0"),
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
    ],
)
def test_single_floats_are_printed_shortest(value, printed):
    assert utilization(value) == printed


def test_doubles_keep_their_digits_and_64_bit_integers_are_numbers():
    message = pb.ModelConfig()
    message.model_metrics.metric_control.add().histogram_options.buckets.extend([0.1, 1, 2.5, 1 / 3])
    message.input.add().dims.append(2**62)
    message.dynamic_batching.max_queue_delay_microseconds = 2**64 - 1

    fields = to_json(message)

    assert fields["model_metrics"]["metric_control"] == [{"histogram_options": {"buckets": [0.1, 1, 2.5, 1 / 3]}}]
    assert fields["input"][0]["dims"] == [2**62]
    assert fields["dynamic_batching"]["max_queue_delay_microseconds"] == 2**64 - 1


def test_the_64_bit_integers_that_the_reference_leaves_as_strings_are_strings():
    message = pb.ModelConfig()
    message.instance_group.add().secondary_devices.add().device_id = 3
    message.sequence_batching.state.add().initial_state.add().dims.append(4)
    message.optimization.cuda.graph_spec.add().input["IN"].dim.append(5)

    fields = to_json(message)

    assert fields["instance_group"][0]["secondary_devices"][0]["device_id"] == "3"
    assert fields["sequence_batching"]["state"][0]["initial_state"][0]["dims"] == ["4"]
    assert fields["optimization"]["cuda"]["graph_spec"][0]["input"]["IN"]["dim"] == ["5"]


def test_maps_are_printed_in_the_order_of_their_keys():
    message = pb.ModelConfig()
    for key in ("z", "a", "m"):
        message.parameters[key].string_value = key
    for level in (10, 9):
        message.dynamic_batching.priority_queue_policy[level].max_queue_size = level

    fields = to_json(message)

    assert list(fields["parameters"]) == ["a", "m", "z"]
    assert list(fields["dynamic_batching"]["priority_queue_policy"]) == ["9", "10"]


def test_a_number_that_no_enum_value_has_is_printed_as_the_number():
    message = pb.ModelConfig()
    message.instance_group.add().kind = 7

    assert to_json(message)["instance_group"][0]["kind"] == 7
