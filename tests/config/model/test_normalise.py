"""Defaults become explicit; running it again changes nothing."""

from __future__ import annotations

import pytest

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.normalise import normalise, normalise_instance_groups
from naiad.config.model.text import parse_text


def normalised(text):
    message = parse_text(text, "config.pbtxt")
    normalise(message)
    return message


def test_the_latest_version_alone_is_served_unless_there_is_a_policy():
    assert normalised("").version_policy.latest.num_versions == 1
    assert normalised("version_policy { }").version_policy == pb.ModelVersionPolicy(), "one without a choice"


@pytest.mark.parametrize("batcher", ["dynamic_batching { %s }", "sequence_batching { oldest { %s } }"])
@pytest.mark.parametrize(
    ("max_batch_size", "setting", "expected"),
    [(8, "", [8]), (0, "", []), (8, "preferred_batch_size: [ 2, 4 ]", [2, 4])],
)
def test_whole_batches_are_preferred_by_default(batcher, max_batch_size, setting, expected):
    message = normalised(f"max_batch_size: {max_batch_size} {batcher % setting}")

    batching = message.sequence_batching.oldest if "oldest" in batcher else message.dynamic_batching
    assert list(batching.preferred_batch_size) == expected


@pytest.mark.parametrize(("setting", "expected"), [("", 1_000_000), ("max_sequence_idle_microseconds: 5", 5)])
def test_sequences_are_idle_for_a_second_by_default(setting, expected):
    assert normalised(f"sequence_batching {{ {setting} }}").sequence_batching.max_sequence_idle_microseconds == expected


def test_memory_is_pinned_unless_it_is_said_not_to_be():
    optimization = normalised("optimization { output_pinned_memory { enable: false } }").optimization

    assert optimization.input_pinned_memory.enable
    assert not optimization.output_pinned_memory.enable


def test_an_ensemble_gets_no_settings_of_models():
    message = normalised('platform: "ensemble" ensemble_scheduling { }')
    normalise_instance_groups(message)

    assert not message.HasField("optimization")
    assert not message.instance_group


def test_normalising_twice_is_normalising_once():
    text = 'name: "m" max_batch_size: 4 sequence_batching { oldest { } } instance_group [ { }, { name: "g" count: 3 } ]'
    once, twice = normalised(text), normalised(text)
    normalise_instance_groups(once)
    for _ in range(2):
        normalise(twice)
        normalise_instance_groups(twice)

    assert once == twice
