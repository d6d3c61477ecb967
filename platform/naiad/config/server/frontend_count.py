"""`--frontends`: how many processes serve the ports."""

from __future__ import annotations

from naiad_stub.process_limits import usable_processors

from naiad.config.server.flag_values import FlagValues

__all__ = ["automatic_count", "parse_frontends"]

_AUTO = "auto"
_FEW_CORES = 4
_CORES_PER_FRONTEND = 4
_MOST_AUTOMATIC = 8
_MOST = 64


def parse_frontends(values: FlagValues, name: str) -> int:
    """The number of frontend processes; 0 where the server's main process serves the ports.

    Raises:
        UsageError: If it is not a number up to 64, or `auto`.
    """
    text = values.text(name)
    if text == _AUTO:
        return automatic_count(usable_processors())
    if not text.isascii() or not text.isdigit() or int(text) > _MOST:
        raise values.invalid(name, f"'{text}' is not a number up to {_MOST} or '{_AUTO}'")
    return int(text)


def automatic_count(cores: int) -> int:
    """How many frontend processes `auto` means on a machine with *cores* usable cores."""
    return 0 if cores <= _FEW_CORES else min(cores // _CORES_PER_FRONTEND, _MOST_AUTOMATIC)
