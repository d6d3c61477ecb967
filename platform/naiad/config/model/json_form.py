"""Checks the JSON form of a configuration before protobuf parses it.

The reference reads it by protobuf's parser in C++, which accepts more than the one in Python: a single value where a
list is expected, lists in lists, `"true"` for a switch, enum values in any case or as numbers in quotes. The errors of
both about values of the wrong type rarely name the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from naiad.config.model.suggestions import unknown_field, unknown_value
from naiad.core.errors import ConfigError

_LABEL_REPEATED = 3
_SWITCHES = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER_OF_ENUM = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


def prepare(value: Any, descriptor: Descriptor, path: str = "") -> dict[str, Any]:
    """The JSON form of a message for protobuf's parser in Python; ConfigError has the path of a wrong field."""
    if not isinstance(value, Mapping):
        raise _type_error(path, "an object", value)
    # Both spellings of a field are legal in protobuf's JSON.
    by_name = {f.json_name: f for f in descriptor.fields} | {f.name: f for f in descriptor.fields}
    copy = {}
    for key, child in value.items():
        if key not in by_name:
            raise ConfigError(f"{path}: {unknown_field(descriptor, key)}" if path else unknown_field(descriptor, key))
        # In protobuf's JSON, null is a field that is not set.
        copy[key] = None if child is None else _field(child, by_name[key], f"{path}.{key}" if path else key)
    return copy


def _field(value: Any, field: FieldDescriptor, path: str) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise _type_error(path, "an object", value)
        entry = field.message_type.fields_by_name["value"]
        return {key: _single(item, entry, f"{path}[{key}]") for key, item in value.items()}
    if _is_repeated(field):
        return [_single(item, field, place) for item, place in _elements(value, path)]
    return _single(value, field, path)


def _elements(value: Any, path: str) -> Iterator[tuple[Any, str]]:
    """The elements of a repeated field with their paths: also a single value, and those of lists in the list.

    In protobuf's JSON, null is no element.
    """
    if not isinstance(value, list):
        yield value, path
        return
    for index, item in enumerate(value):
        pending = [item]
        while pending:
            element = pending.pop()
            if isinstance(element, list):
                pending += reversed(element)
            elif element is not None:
                yield element, f"{path}[{index}]"


def _single(value: Any, field: FieldDescriptor, path: str) -> Any:
    if field.message_type is not None:
        return prepare(value, field.message_type, path)
    if field.enum_type is not None and isinstance(value, str):
        if _NUMBER_OF_ENUM.fullmatch(value):
            return int(value)
        name = value.upper().replace("-", "_")
        if name not in field.enum_type.values_by_name:
            raise ConfigError(f"{path}: {unknown_value(field.enum_type, value)}")
        return name
    if isinstance(value, (Mapping, list)):
        raise _type_error(path, "a single value", value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not isinstance(value, str):
        raise _type_error(path, "a string", value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and not isinstance(value, bool):
        if not isinstance(value, str):
            raise _type_error(path, "true or false", value)
        if value.lower() not in _SWITCHES:
            raise ConfigError(f"{path} must be true or false, not '{value}'")
        return _SWITCHES[value.lower()]
    if field.cpp_type in _INTEGERS and isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ConfigError(f"{path} must be an integer, not '{value}'")
    return value


def _is_repeated(field: FieldDescriptor) -> bool:
    # protobuf 6 introduced `is_repeated` and deprecated `label`.
    name, repeated = ("is_repeated", True) if hasattr(field, "is_repeated") else ("label", _LABEL_REPEATED)
    return bool(getattr(field, name) == repeated)


def _type_error(path: str, expected: str, value: Any) -> ConfigError:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    actual = kinds.get(type(value), "a number")
    return ConfigError(f"{path or 'a model configuration'} must be {expected}, not {actual}")
