"""Error texts about unknown fields and enum values, with the nearest valid name."""

from __future__ import annotations

import difflib

from google.protobuf.descriptor import Descriptor, EnumDescriptor

from naiad.config.model import model_config_pb2 as pb

PACKAGE = f"{pb.DESCRIPTOR.package}."  # prefix of all full names, to be removed from texts for users

# Names from the wire protocol or numpy, for the datatypes of config.pbtxt.
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


def unknown_field(descriptor: Descriptor, name: str) -> str:
    """The error text about an unknown field."""
    return (
        f"{_short(descriptor)} has no field '{name}'; {_suggest(name, [f.name for f in descriptor.fields], 'fields')}"
    )


def unknown_value(enum: EnumDescriptor, name: str) -> str:
    """The error text about an unknown enum value."""
    values = [value.name for value in enum.values]
    return f"{_short(enum)} has no value '{name}'; {_suggest(name.upper(), values, 'values')}"


def _short(descriptor: Descriptor | EnumDescriptor) -> str:
    return str(descriptor.full_name).removeprefix(PACKAGE)


def _suggest(wrong: str, names: list[str], what: str) -> str:
    if (known := _OTHER_NAMES.get(wrong)) in names:
        return f"did you mean '{known}'?"
    # A missing prefix, as in `CPU` for `KIND_CPU`, is too large a difference for `get_close_matches`.
    ending = [name for name in names if name.endswith(f"_{wrong}")]
    nearest = ending or difflib.get_close_matches(wrong, names, n=1, cutoff=0.55)
    return f"did you mean '{nearest[0]}'?" if nearest else f"its {what} are {', '.join(names)}"
