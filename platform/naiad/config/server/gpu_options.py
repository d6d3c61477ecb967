"""`--cuda-memory-pool-byte-size` (SRV src/command_line_parser.cc)."""

from __future__ import annotations

from collections.abc import Mapping

from naiad.config.server.flag import leading_integer
from naiad.config.server.flag_values import FlagValues

__all__ = ["parse_gpu_pools"]


def parse_gpu_pools(values: FlagValues, name: str) -> Mapping[int, int]:
    """Bytes by the number of a GPU; the last value for a GPU counts."""
    found: dict[int, int] = {}
    for text in values.texts(name):
        gpu, colon, size = text.partition(":")
        number, limit = leading_integer(gpu), leading_integer(size)
        if not colon or number is None or number < 0 or limit is None or limit < 0:
            raise values.invalid(name, f"--{name} option format is '<GPU device ID>:<byte size>'. Got {text}")
        found[number] = limit
    return found
