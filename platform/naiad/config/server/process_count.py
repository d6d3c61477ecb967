"""`--processes`: how many processes serve the ports."""

from __future__ import annotations

from naiad_stub.process_limits import usable_processors

from naiad.config.server.flag_values import FlagValues

__all__ = ["FORMER_NAME", "automatic_count", "parse_processes"]

FORMER_NAME = "frontends"
"""The flag by its former name, of which 0 meant one process."""
_AUTO = "auto"
_FEW_CORES = 4
_CORES_PER_PROCESS = 4
_MOST_AUTOMATIC = 8
_MOST = 64


def parse_processes(values: FlagValues, name: str) -> int:
    """The number of processes that serve the ports; 1 where one process does everything."""
    is_former = values.has(FORMER_NAME) and not values.has(name)
    given = FORMER_NAME if is_former else name
    least, text = 0 if is_former else 1, values.text(given)
    if text == _AUTO:
        return automatic_count(usable_processors())
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= _MOST:
        raise values.invalid(given, f"'{text}' is not a number from {least} to {_MOST} or '{_AUTO}'")
    return max(int(text), 1)


def automatic_count(cores: int) -> int:
    """How many processes `auto` means on a machine with *cores* usable cores."""
    return 1 if cores <= _FEW_CORES else min(max(cores // _CORES_PER_PROCESS, 2), _MOST_AUTOMATIC)
