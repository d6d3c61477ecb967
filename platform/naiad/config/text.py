"""From the text of a configuration to the message: protobuf's text format and its JSON form.

The reference stops at the first thing it does not understand and says so in the words of its parser. Here the
message names file, line and column and, for a name that does not exist, the nearest one that does.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from naiad.config import model_config_pb2 as pb
from naiad.errors import ConfigError

__all__ = ["parse_json", "parse_mapping", "parse_text"]

_PACKAGE = f"{pb.DESCRIPTOR.package}."

_POSITION = re.compile(r"^\d+:\d+ : ")
# protobuf repeats the line it failed in, in quotes; the position says as much.
_QUOTED_LINE = re.compile(r"^'.*': (?=[A-Z])", re.DOTALL)
_JSON_NESTING = re.compile(r"^(?:Failed to parse \w+ field: )+")
_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "([^"]+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\S+?)\.?$')

# What people write who know the names of the wire or of numpy.
_OTHER_NAMES = {
    "BYTES": "TYPE_STRING",
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_BFLOAT16": "TYPE_BF16",
}


def parse_text(text: str, source: str | Path) -> pb.ModelConfig:
    """Parse `config.pbtxt`.

    Args:
        text: The configuration in protobuf's text format.
        source: Where it comes from; errors begin with it.

    Raises:
        ConfigError: With file, line, column and what to write instead.
    """
    message = pb.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        raise ConfigError(f"{source}:{line}:{column}: {_clarify(str(error))}") from error
    return message


def parse_json(text: str, source: str | Path) -> pb.ModelConfig:
    """Parse a configuration in its JSON form, as the load API takes it and auto-completion returns it.

    Unknown fields are refused; names of enum values may be in any case.

    Raises:
        ConfigError: With what is wrong and, where JSON itself is broken, with line and column.
    """
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{source}: a model configuration must be a JSON object, not {type(fields).__name__}")
    return parse_mapping(fields, source)


def parse_mapping(fields: Mapping[str, Any], source: str | Path) -> pb.ModelConfig:
    """Turn the JSON form of a configuration, already decoded, into the message.

    Raises:
        ConfigError: For unknown fields and values of the wrong type.
    """
    message = pb.ModelConfig()
    try:
        json_format.ParseDict(_with_upper_case_enums(fields, pb.ModelConfig.DESCRIPTOR), message)
    except json_format.ParseError as error:
        raise ConfigError(f"{source}: {_clarify(str(error))}") from error
    return message


def _clarify(problem: str) -> str:
    """Say what protobuf's parser complains about, without its package and with the nearest valid name."""
    problem = _QUOTED_LINE.sub("", _POSITION.sub("", problem))
    if match := _UNKNOWN_FIELD.search(problem):
        descriptor = pb.DESCRIPTOR.pool.FindMessageTypeByName(match[1])
        names = [field.name for field in descriptor.fields]
        return f"{_short(descriptor)} has no field '{match[2]}'; {_suggest(match[2], names, 'fields')}"
    if match := _UNKNOWN_VALUE.search(problem):
        enum = pb.DESCRIPTOR.pool.FindEnumTypeByName(match[1])
        names = [value.name for value in enum.values]
        return f"{_short(enum)} has no value '{match[2]}'; {_suggest(match[2].upper(), names, 'values')}"
    return _JSON_NESTING.sub("", problem).replace(_PACKAGE, "")


def _short(descriptor: Descriptor | EnumDescriptor) -> str:
    """The name of a message or enum as users know it."""
    return str(descriptor.full_name).removeprefix(_PACKAGE)


def _suggest(wrong: str, names: list[str], what: str) -> str:
    """Name the nearest valid name, or all of them where none is near."""
    if (known := _OTHER_NAMES.get(wrong)) in names:
        return f"did you mean '{known}'?"
    nearest = difflib.get_close_matches(wrong, names, n=1, cutoff=0.55) or _ending_with(wrong, names)
    return f"did you mean '{nearest[0]}'?" if nearest else f"its {what} are {', '.join(names)}"


def _ending_with(wrong: str, names: Iterable[str]) -> list[str]:
    """Names of which only the prefix is missing, such as `CPU` of `KIND_CPU`."""
    return [name for name in names if name.endswith(f"_{wrong}")]


def _with_upper_case_enums(value: Mapping[str, Any], descriptor: Descriptor) -> dict[str, Any]:
    """Copy the JSON form of a message with the names of enum values in upper case, as they are declared."""
    # Both spellings of a field are legal in protobuf's JSON.
    by_name = {f.name: f for f in descriptor.fields} | {f.json_name: f for f in descriptor.fields}
    return {key: _field_with_upper_case_enums(child, by_name.get(key)) for key, child in value.items()}


def _field_with_upper_case_enums(value: Any, field: FieldDescriptor | None) -> Any:
    if isinstance(value, list):
        return [_field_with_upper_case_enums(item, field) for item in value]
    if field is None:
        return value
    if field.enum_type is not None:
        return value.upper() if isinstance(value, str) else value
    if field.message_type is None or not isinstance(value, Mapping):
        return value
    if field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {key: _field_with_upper_case_enums(item, entry) for key, item in value.items()}
    return _with_upper_case_enums(value, field.message_type)
