"""Frozen configurations hold what the message says."""

from __future__ import annotations

import dataclasses

import pytest

from naiad.config.model.model_config import (
    All,
    InstanceGroup,
    InstanceKind,
    Latest,
    Specific,
    TensorConfig,
    freeze,
    instance_names,
)
from naiad.config.model.normalise import normalise_instance_groups
from naiad.config.model.text import parse_text
from naiad.protocol.datatypes import Datatype


def frozen(text):
    message = parse_text(text, "config.pbtxt")
    normalise_instance_groups(message)
    return freeze(message)


def test_every_part_of_a_configuration_is_frozen():
    config = frozen(
        """
        name: "m" platform: "p" backend: "b" runtime: "model.py" max_batch_size: 8 default_model_filename: "f.py"
        input { name: "A" data_type: TYPE_STRING dims: [ -1 ] optional: true allow_ragged_batch: true }
        input { name: "B" data_type: TYPE_BF16 dims: [ 2, 3 ] reshape { shape: [ 6 ] } }
        output { name: "C" data_type: TYPE_FP16 dims: [ 1 ] reshape { } label_filename: "labels.txt" }
        instance_group { name: "g" count: 2 kind: KIND_MODEL passive: true host_policy: "h" }
        version_policy { specific { versions: [ 3, 1 ] } }
        parameters { key: "k" value { string_value: "v" } }
        model_transaction_policy { decoupled: true }
        """
    )

    assert (config.name, config.platform, config.backend, config.runtime) == ("m", "p", "b", "model.py")
    assert (config.max_batch_size, config.default_model_filename, config.decoupled) == (8, "f.py", True)
    assert config.inputs == (
        TensorConfig(name="A", datatype=Datatype.BYTES, dims=(-1,), optional=True, allow_ragged_batch=True),
        TensorConfig(name="B", datatype=Datatype.BF16, dims=(2, 3), reshape=(6,)),
    )
    assert config.outputs == (
        TensorConfig(name="C", datatype=Datatype.FP16, dims=(1,), reshape=(), label_filename="labels.txt"),
    )
    assert config.instance_groups == (
        InstanceGroup(name="g", kind=InstanceKind.MODEL, count=2, passive=True, host_policy="h"),
    )
    assert config.version_policy == Specific((3, 1))
    assert dict(config.parameters) == {"k": "v"}


def test_a_frozen_configuration_cannot_be_changed():
    config = frozen('name: "m"')

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.name = "other"
    with pytest.raises(TypeError):
        config.parameters["k"] = "v"


def test_a_frozen_configuration_does_not_follow_its_message():
    message = parse_text('name: "m"', "config.pbtxt")
    config = freeze(message)

    message.name = "other"

    assert config.name == config.message.name == "m"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", Latest(1)),
        ("version_policy { }", All()),
        ("version_policy { latest { num_versions: 3 } }", Latest(3)),
        ("version_policy { latest { } }", Latest(0)),
        ("version_policy { all { } }", All()),
        ("version_policy { specific { versions: 2 } }", Specific((2,))),
    ],
)
def test_version_policies_become_values(text, policy):
    assert freeze(parse_text(text, "config.pbtxt")).version_policy == policy


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ("", [("m_0", "CPU")]),
        ("instance_group { }", [("m_0_0", "CPU")]),
        ("instance_group { count: 2 }", [("m_0_0", "CPU"), ("m_0_1", "CPU")]),
        ('instance_group { name: "g" count: 2 kind: KIND_CPU }', [("g_0", "CPU"), ("g_1", "CPU")]),
        (
            'instance_group [ { kind: KIND_CPU }, { name: "named" }, { kind: KIND_MODEL count: 2 } ]',
            [("m_0_0", "CPU"), ("named_0", "CPU"), ("m_2_0", "MODEL"), ("m_2_1", "MODEL")],
        ),
        ("ensemble_scheduling { }", []),
    ],
)
def test_instances_are_named_as_the_reference_names_them(groups, names):
    config = frozen(f'name: "m" {groups}')

    assert [(name, kind.value) for name, kind, _ in instance_names(config)] == names


def test_an_unknown_datatype_number_is_invalid_until_the_tensors_are_checked():
    assert frozen('input { name: "x" data_type: 99 }').inputs[0].datatype is Datatype.INVALID
