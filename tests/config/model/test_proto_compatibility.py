"""Our ModelConfig and tritonclient's are the same on the wire."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2 as theirs

from naiad.config.model import model_config_pb2 as ours


def describe_messages(container, package):
    """Every message, field by field in order, with the package cut from names of types."""
    found = {}
    for message in container:
        name = message.full_name.removeprefix(package)
        found[name] = [describe_field(field, package) for field in message.fields]
        found |= describe_messages(message.nested_types, package)
    return found


def describe_field(field, package):
    kind = field.message_type or field.enum_type
    return (
        field.name,
        field.number,
        field.type,
        field.is_repeated,
        field.has_presence,
        kind.full_name.removeprefix(package) if kind else None,
        field.containing_oneof.name if field.containing_oneof else None,
        field.json_name,
    )


def describe_enums(module, package):
    found = {enum.full_name.removeprefix(package): enum for enum in module.DESCRIPTOR.enum_types_by_name.values()}
    waiting = list(module.DESCRIPTOR.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        waiting.extend(message.nested_types)
        found |= {enum.full_name.removeprefix(package): enum for enum in message.enum_types}
    return {name: [(value.name, value.number) for value in enum.values] for name, enum in found.items()}


OURS = describe_messages(ours.DESCRIPTOR.message_types_by_name.values(), "naiad.config.")
THEIRS = describe_messages(theirs.DESCRIPTOR.message_types_by_name.values(), "inference.")


def test_both_know_the_same_messages():
    assert sorted(OURS) == sorted(THEIRS)
    assert len(OURS) > 50


@pytest.mark.parametrize("message", sorted(THEIRS))
def test_fields_agree_in_name_number_type_and_order(message):
    assert OURS[message] == THEIRS[message]


def test_enums_agree_in_names_and_numbers():
    assert describe_enums(ours, "naiad.config.") == describe_enums(theirs, "inference.")


def test_a_message_crosses_the_wire_unchanged():
    theirs_message = theirs.ModelConfig(name="m", max_batch_size=4)
    theirs_message.input.add(name="IN", data_type=theirs.TYPE_BF16, dims=[-1, 3])
    theirs_message.parameters["k"].string_value = "v"

    message = ours.ModelConfig.FromString(theirs_message.SerializeToString())

    assert message.input[0].data_type == ours.TYPE_BF16
    assert message.SerializeToString(deterministic=True) == theirs_message.SerializeToString(deterministic=True)
