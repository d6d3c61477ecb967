"""Sizes and durations with units, as people write them: `10GB`, `512MiB`, `30d`, `12h`."""

from __future__ import annotations

import re

from naiad.core.errors import OptionError

_QUANTITY = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*")
_SIZES = {
    "": 1,
    "b": 1,
    **{f"{letter}{ending}": 1000**power for power, letter in enumerate("kmgt", 1) for ending in ("", "b")},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_STEP = 999.5  # from this on three digits show the next unit: 999.6 would be printed as 1e+03
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def parse_size(text: str) -> int:
    """The number of bytes: `10GB` is 10,000,000,000, `10GiB` is 10 * 2**30."""
    return int(_parse(text, _SIZES, "a size such as 10GB, 512MiB or 1000000"))


def parse_seconds(text: str) -> float:
    """The number of seconds of `30d`, `12h`, `90m`, `2w`; a unit is required."""
    return _parse(text, _SECONDS, "a span of time such as 30d, 12h, 90m or 2w")


def size_text(size: float) -> str:
    """A size in bytes as text with a unit and about three digits."""
    for unit in ("B", "kB", "MB"):
        if size < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def counted(count: int, noun: str) -> str:
    """A number and its noun, in the plural unless it is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _parse(text: str, units: dict[str, int], wanted: str) -> float:
    match = _QUANTITY.fullmatch(text)
    factor = units.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise OptionError(f"'{text}' is not {wanted}")
    return float(match["number"]) * factor
