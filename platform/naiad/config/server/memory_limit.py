"""A model's parameter `memory_limit`: how much memory each of its guests may use."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.server.quantities import parse_size
from naiad.core.errors import ConfigError, OptionError

__all__ = ["NO_MEMORY_LIMIT", "PARAMETER", "MemoryLimit", "parse_memory_limit"]

PARAMETER = "memory_limit"
_LEAST = 16 << 20
"""An interpreter with numpy has more. A smaller number is most likely one without its unit."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit.

    Attributes:
        size: Bytes; 0 for no limit.
        text: As it was written.
    """

    size: int
    text: str

    def __bool__(self) -> bool:
        return self.size > 0


NO_MEMORY_LIMIT = MemoryLimit(0, "")


def parse_memory_limit(model: str, text: str) -> MemoryLimit:
    """The limit of *model*, whose parameter is *text*; "" without one.

    Raises:
        ConfigError: If *text* is not a size, or too small for any guest.
    """
    text = text.strip()
    if not text:
        return NO_MEMORY_LIMIT
    try:
        size = parse_size(text)
    except OptionError as error:
        raise ConfigError(f"parameter {PARAMETER} of model '{model}': {error.message}") from None
    if 0 < size < _LEAST:
        raise ConfigError(
            f"parameter {PARAMETER} of model '{model}' is '{text}', too little for any guest; give a size such as 2GiB"
        )
    return MemoryLimit(size, text)
