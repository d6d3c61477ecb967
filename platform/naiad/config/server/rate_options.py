"""`--rate-limit` and `--rate-limit-resource` (SRV src/command_line_parser.cc, whose texts these are)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from naiad.config.server.given import GivenFlags

__all__ = ["ResourceLimit", "parse_resource_limits"]

_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """How many of a resource there are: on one device, or (None) on each."""

    name: str
    count: int
    device: int | None = None


def parse_resource_limits(given: GivenFlags) -> tuple[ResourceLimit, ...] | None:
    """Read all `--rate-limit-resource`; None where nothing is limited.

    Raises:
        UsageError: If one is malformed.
    """
    limits = tuple(_parse(given, text) for text in given.texts("rate-limit-resource"))
    return None if given.text("rate-limit") == "off" else limits


def _parse(given: GivenFlags, text: str) -> ResourceLimit:
    name, *numbers = text.split(":")
    if not name or len(numbers) not in {1, 2}:
        raise given.bad(
            "rate-limit-resource",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}",
        )
    for number in numbers:
        if not _COUNT.fullmatch(number):
            raise given.bad("rate-limit-resource", f"Invalid option value. Got {number}")
    return ResourceLimit(name, int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None)
