"""`--http-allowed-hosts`, `--http-allowed-origins`, `--openai-allowed-origins`: what web pages in browsers may use."""

from __future__ import annotations

import re

from naiad.config.server.flag_values import FlagValues

__all__ = ["parse_allowed_hosts", "parse_allowed_origins"]

_ANY = "*"
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def parse_allowed_hosts(values: FlagValues, flag: str) -> tuple[str, ...] | None:
    """The names of a flag, in lower case; None without the flag.

    Raises:
        UsageError: If one is not a name.
    """
    if not values.has(flag):
        return None
    hosts = tuple(each.lower().rstrip(".") for each in _items(values, flag))
    for host in hosts:
        if host != _ANY and _HOST.fullmatch(host) is None:
            raise values.invalid(
                flag, f"'{host}' is not a name such as models.example.com, *.example.com or *, without scheme and port"
            )
    return hosts


def parse_allowed_origins(values: FlagValues, flag: str) -> tuple[str, ...]:
    """The origins of a flag, in lower case as browsers send them.

    Raises:
        UsageError: If one is not an origin.
    """
    origins = tuple(each.lower().rstrip("/") for each in _items(values, flag))
    for origin in origins:
        if origin not in {_ANY, "null"} and _ORIGIN.fullmatch(origin) is None:
            raise values.invalid(
                flag, f"'{origin}' is not an origin such as https://app.example.com or http://localhost:3000, or *"
            )
    return origins


def _items(values: FlagValues, flag: str) -> list[str]:
    return [each for each in map(str.strip, values.text(flag).split(",")) if each]
