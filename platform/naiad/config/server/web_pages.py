"""`--http-allowed-hosts`, `--http-allowed-origins`, `--openai-allowed-origins`: what web pages in browsers may use."""

from __future__ import annotations

import re

from naiad.config.server.flag_values import FlagValues
from naiad.core.errors import OptionError

_ANY = "*"
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"file://|[a-z][a-z0-9+.-]*://[^/?#@*\s]+")


def parse_allowed_hosts(values: FlagValues, flag: str) -> tuple[str, ...] | None:
    """The names of a flag, in lower case; None without the flag."""
    return values.parsed(flag, read_hosts) if values.has(flag) else None


def parse_allowed_origins(values: FlagValues, flag: str) -> tuple[str, ...]:
    """The origins of a flag, in lower case as browsers send them."""
    return values.parsed(flag, read_origins)


def read_hosts(text: str) -> tuple[str, ...]:
    """The names in a list with commas, in lower case."""
    hosts = tuple(each.lower().rstrip(".") for each in _items(text))
    for host in hosts:
        if host != _ANY and _HOST.fullmatch(host) is None:
            raise OptionError(
                f"'{host}' is not a name such as models.example.com, *.example.com or *, without scheme and port"
            )
    return hosts


def read_origins(text: str) -> tuple[str, ...]:
    """The origins in a list with commas, in lower case."""
    # A page in a file has the origin `file://` or `null`, by browser.
    origins = tuple(each.lower() if each.endswith("://") else each.lower().rstrip("/") for each in _items(text))
    for origin in origins:
        if origin not in {_ANY, "null"} and _ORIGIN.fullmatch(origin) is None:
            raise OptionError(
                f"'{origin}' is not an origin such as https://app.example.com or http://localhost:3000, or *"
            )
    return origins


def _items(text: str) -> list[str]:
    return [each for each in map(str.strip, text.split(",")) if each]
