"""The JSON form of a configuration, exactly as the reference writes it.

`GET /v2/models/M/config` returns it, and a model receives it as `args["model_config"]`. Fields have their proto names
and declared order, enum values their names. Scalars, lists and maps are always present; messages and members of a oneof
only where they are set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from naiad.config.model import model_config_pb2 as pb

# protobuf's JSON writes 64-bit integers as strings. The reference converts them back to numbers field by field and
# misses these, so its clients receive strings.
_LEFT_AS_STRINGS = frozenset(
    f"{pb.DESCRIPTOR.package}.{name}"
    for name in (
        "ModelInstanceGroup.SecondaryDevice.device_id",
        "ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "ModelSequenceBatching.InitialState.dims",
    )
)


def to_json(message: pb.ModelConfig) -> dict[str, Any]:
    """Return the JSON form of a configuration."""
    return _message(message)


def _message(message: Message) -> dict[str, Any]:
    fields = cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields)
    present = [field for field in fields if not field.has_presence or message.HasField(field.name)]
    # As in the reference, members of a oneof come last unless they are messages. The sort is stable.
    present.sort(key=lambda field: field.containing_oneof is not None and field.message_type is None)
    return {field.name: _field(getattr(message, field.name), field) for field in present}


def _field(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(value, field.message_type.fields_by_name["value"])
    # Checked on the value: the attribute of the descriptor depends on protobuf's version.
    if isinstance(value, MutableSequence):
        return [_scalar_or_message(item, field) for item in value]
    return _scalar_or_message(value, field)


def _map(values: Mapping[Any, Any], value_field: FieldDescriptor) -> dict[str, Any]:
    # A protobuf map has no order; sorted, two responses about the same model are equal.
    return {str(key): _scalar_or_message(values[key], value_field) for key in sorted(values)}


def _scalar_or_message(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _message(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.cpp_type in {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}:
        return _number(value, field)
    return str(value) if field.full_name in _LEFT_AS_STRINGS else value


def _number(value: float, field: FieldDescriptor) -> float | str:
    """A number as the reference's JSON writer formats it: fewest digits that round-trip, an int if it is whole."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    single = field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT
    short, exact = (6, 9) if single else (15, 17)
    text = f"{value:.{short}g}"
    import numpy as np  # deferred: importing it delays the start, which needs no float

    if (float(np.float32(text)) if single else float(text)) != value:
        text = f"{value:.{exact}g}"
    return int(text) if text.lstrip("-").isdigit() else float(text)
