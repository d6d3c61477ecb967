"""A model's parameter `memory_limit`: how much memory each of its guests may use."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.core.errors import OptionError, ParameterError
from naiad.core.quantities import parse_size

MEMORY_LIMIT = "memory_limit"
_LEAST = 16 << 20  # An interpreter with numpy has more. A smaller number is most likely one without its unit.


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit, as it was written and in bytes; 0 for no limit."""

    size: int
    text: str

    def __bool__(self) -> bool:
        return self.size > 0


NO_MEMORY_LIMIT = MemoryLimit(0, "")


def parse_memory_limit(model: str, text: str) -> MemoryLimit:
    """The limit of *model*, whose parameter is *text*; "" without one."""
    text = text.strip()
    if not text:
        return NO_MEMORY_LIMIT
    try:
        size = parse_size(text)
    except OptionError as error:
        raise ParameterError(
            f"parameter {MEMORY_LIMIT} of model '{model}': {error.message}", parameter=MEMORY_LIMIT
        ) from None
    if 0 < size < _LEAST:
        raise ParameterError(
            f"parameter {MEMORY_LIMIT} of model '{model}' is '{text}', too little for any guest; give a size such as "
            "2GiB",
            parameter=MEMORY_LIMIT,
        )
    return MemoryLimit(size, text)
