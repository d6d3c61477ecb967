"""`--rate-limit` and `--rate-limit-resource` (SRV src/command_line_parser.cc, whose texts these are)."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.server.flag import leading_integer
from naiad.config.server.flag_values import FlagValues

__all__ = ["ResourceLimit", "parse_resource_limits"]

_LARGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """Units of a resource that exist on one device, or (`device` None) on each device."""

    name: str
    count: int
    device: int | None = None


def parse_resource_limits(values: FlagValues) -> tuple[ResourceLimit, ...] | None:
    """The values of `--rate-limit-resource`; None where the rate limiter is off."""
    limits = tuple(_parse_limit(values, text) for text in values.texts("rate-limit-resource"))
    return None if values.text("rate-limit") == "off" else limits


def _parse_limit(values: FlagValues, text: str) -> ResourceLimit:
    name, *numbers = text.split(":")
    if not name or len(numbers) not in {1, 2}:
        raise values.invalid(
            "rate-limit-resource",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}",
        )
    count, *devices = (_number(values, number) for number in numbers)
    return ResourceLimit(name, count, devices[0] if devices else None)


def _number(values: FlagValues, text: str) -> int:
    number = leading_integer(text)
    if number is None or number < 0:
        raise values.invalid("rate-limit-resource", f"Invalid option value. Got {text}")
    if number > _LARGEST:
        raise values.invalid("rate-limit-resource", f"Provided option value is out of bound. Got {text}")
    return number
