"""The JSON form of a configuration, checked field by field before protobuf takes it.

protobuf's own reader knows enum values in one case only, and what it says about a value of the wrong shape is seldom
what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from naiad.config.model.suggestions import unknown_field, unknown_value
from naiad.errors import ConfigError

__all__ = ["prepare"]

_LABEL_REPEATED = 3


def prepare(value: Any, descriptor: Descriptor, path: str = "") -> dict[str, Any]:
    """Copy the JSON form of a message with the names of enum values in upper case, as they are declared.

    Args:
        value: The decoded JSON.
        descriptor: The message it should be.
        path: Where it stands, such as `input[0]`; empty for the configuration itself.

    Raises:
        ConfigError: With the path of the first field that does not exist or has the wrong shape.
    """
    if not isinstance(value, Mapping):
        raise _wrong(path, "an object", value)
    # Both spellings of a field are legal in protobuf's JSON.
    by_name = {f.json_name: f for f in descriptor.fields} | {f.name: f for f in descriptor.fields}
    copy = {}
    for key, child in value.items():
        if key not in by_name:
            raise ConfigError(f"{path}: {unknown_field(descriptor, key)}" if path else unknown_field(descriptor, key))
        # null stands for a field that is not set.
        copy[key] = None if child is None else _field(child, by_name[key], f"{path}.{key}" if path else key)
    return copy


def _field(value: Any, field: FieldDescriptor, path: str) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise _wrong(path, "an object", value)
        entry = field.message_type.fields_by_name["value"]
        return {key: _single(item, entry, f"{path}[{key}]") for key, item in value.items()}
    if _is_repeated(field):
        if not isinstance(value, list):
            raise _wrong(path, "a list", value)
        return [_single(item, field, f"{path}[{index}]") for index, item in enumerate(value)]
    return _single(value, field, path)


def _single(value: Any, field: FieldDescriptor, path: str) -> Any:
    if field.message_type is not None:
        return prepare(value, field.message_type, path)
    if field.enum_type is not None and isinstance(value, str):
        name = value.upper()
        if name not in field.enum_type.values_by_name:
            raise ConfigError(f"{path}: {unknown_value(field.enum_type, value)}")
        return name
    if isinstance(value, (Mapping, list)):
        raise _wrong(path, "a single value", value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not isinstance(value, str):
        raise _wrong(path, "a string", value)
    return value


def _is_repeated(field: FieldDescriptor) -> bool:
    # `is_repeated` came with protobuf 6, which warns of `label`.
    name, repeated = ("is_repeated", True) if hasattr(field, "is_repeated") else ("label", _LABEL_REPEATED)
    return bool(getattr(field, name) == repeated)


def _wrong(path: str, expected: str, value: Any) -> ConfigError:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    actual = kinds.get(type(value), "a number")
    return ConfigError(f"{path or 'a model configuration'} must be {expected}, not {actual}")
