"""`--cache-config` and the flag it replaced (SRV src/command_line_parser.cc, whose texts these are)."""

from __future__ import annotations

import os

from naiad.config.server.flag_values import FlagValues
from naiad.core.errors import OptionError

_LOCAL = "local"
_MIN_SIZE = 1  # a cache too small for any response is useless and harmless; the reference starts with 200 bytes


def parse_cache_size(values: FlagValues, flag: str) -> int:
    """The size of the response cache in bytes; 0 for no cache."""
    if values.has("response-cache-byte-size"):
        return _parse_size(values.text("response-cache-byte-size"))
    caches: dict[str, dict[str, str]] = {}
    for text in values.texts(flag):
        name, setting, value = _split_setting(values, flag, text)
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
    return _parse_size(settings["size"])


def _split_setting(values: FlagValues, flag: str, text: str) -> tuple[str, str, str]:
    name, comma, rest = text.partition(",")
    if not name or not comma:
        raise values.invalid(
            flag,
            f"No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {text}",
        )
    setting, _, value = rest.partition("=")
    if not setting or not value:
        raise values.invalid(flag, f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
    return name, setting, value


def _parse_size(text: str) -> int:
    problem = ""
    size = int(text) if text.isascii() and text.isdigit() else -1
    if size < 0:
        problem = f"size '{text}' is not a number of bytes"
    elif size < _MIN_SIZE:
        problem = f"size {size} is too small: use 1 or more bytes, or no --cache-config for no cache"
    elif size > (memory := _machine_memory()):
        problem = f"failed to allocate buffer: size {size} is more than the {memory} bytes this machine has"
    if problem:
        raise OptionError(f"error: creating server: Internal - Failed to initialize LocalCache: {problem}")
    return size


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
