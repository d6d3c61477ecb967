"""`--cache-config` and the flag it replaced (SRV src/command_line_parser.cc, whose texts these are)."""

from __future__ import annotations

import os

from naiad.config.server.flag import UsageError
from naiad.config.server.given import GivenFlags
from naiad.errors import OptionError

__all__ = ["parse_cache_size"]

_LOCAL = "local"
_LEAST = 1024
"""The reference takes no less: its buffer keeps books of its own in it."""


def parse_cache_size(given: GivenFlags) -> int:
    """How many bytes of responses to keep; 0 for no cache.

    Raises:
        UsageError: If a setting cannot be understood.
        OptionError: If there is no such cache, or none of that size.
    """
    if given.has("response-cache-byte-size"):
        return _checked(given.text("response-cache-byte-size"))
    caches: dict[str, dict[str, str]] = {}
    for text in given.texts("cache-config"):
        name, setting, value = _split(given, text)
        caches.setdefault(name, {})[setting] = value
    if not caches:
        return 0
    if len(caches) > 1:
        raise OptionError(
            "error: creating server: Invalid argument - found multiple cache configurations, but only a single cache "
            "is currently supported"
        )
    ((name, settings),) = caches.items()
    if name != _LOCAL:
        raise OptionError(
            f"error: creating server: Invalid argument - there is no cache '{name}': naiad keeps responses in its own "
            f"memory and loads no libtritoncache_{name}.so; use --cache-config={_LOCAL},size=<bytes>"
        )
    if "size" not in settings:
        raise OptionError(
            "error: creating server: Invalid argument - Failed to initialize LocalCache: config didn't contain a valid "
            "'size' field."
        )
    return _checked(settings["size"])


def _split(given: GivenFlags, text: str) -> tuple[str, str, str]:
    name, comma, rest = text.partition(",")
    if not name or not comma:
        raise _bad(
            given, f"No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {text}"
        )
    setting, _, value = rest.partition("=")
    if not setting or not value:
        raise _bad(given, f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
    return name, setting, value


def _bad(given: GivenFlags, detail: str) -> UsageError:
    return given.bad("cache-config", detail)


def _checked(text: str) -> int:
    problem = ""
    size = int(text) if text.isascii() and text.isdigit() else -1
    if size < 0:
        problem = f"size '{text}' is not a number of bytes"
    elif size < _LEAST:
        problem = f"size {size} is too small: a cache takes at least {_LEAST} bytes"
    elif size > (memory := _memory()):
        problem = f"failed to allocate buffer: size {size} is more than the {memory} bytes this machine has"
    if problem:
        raise OptionError(f"error: creating server: Internal - Failed to initialize LocalCache: {problem}")
    return size


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
