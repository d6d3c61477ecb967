"""`--backend-config`: settings of backends as given, as handed to a backend, and those of `python` as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from naiad.errors import OptionError

__all__ = [
    "GLOBAL",
    "KNOWN_SETTINGS",
    "WITHOUT_EFFECT",
    "BackendConfigs",
    "PythonSettings",
    "effective_settings",
    "parse_backend_configs",
]

GLOBAL = ""
"""The key of settings for all backends."""

BackendConfigs = Mapping[str, Mapping[str, str]]
"""Settings by name of a backend."""

WITHOUT_EFFECT = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm-region-prefix-name",
    "shm_message_queue_size",
    "thread-pool-size",
)
"""Settings of `python` that the reference reads, and that nothing here corresponds to."""

KNOWN_SETTINGS = (
    "stub-timeout-seconds",
    *WITHOUT_EFFECT,
    # The server's own, which it hands to every backend.
    "auto-complete-config",
    "backend-directory",
    "default-max-batch-size",
    "min-compute-capability",
)
"""Settings of `python` that mean something to it, or to the reference's."""

_MIB = 1 << 20
_LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)


def parse_backend_configs(texts: Iterable[str]) -> BackendConfigs:
    """Group `<backend>,<key>=<value>` and `<key>=<value>` by backend; a later value of a key replaces an earlier one.

    Raises:
        OptionError: If a text has another form.
    """
    configs: dict[str, dict[str, str]] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        backend, comma, key = left.rpartition(",")
        # The first comma ends the name: `a,b,c=1` is the setting `b,c` of backend `a`.
        if comma:
            backend, _, key = left.partition(",")
        if not equals or not key or (comma and not backend) or not value:
            raise OptionError(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
        configs.setdefault(backend, {})[key] = value
    return MappingProxyType({name: MappingProxyType(settings) for name, settings in configs.items()})


def effective_settings(configs: BackendConfigs, backend: str) -> dict[str, str]:
    """The settings one backend reads: those for all, replaced by its own (CORE src/backend_model.cc)."""
    return {**configs.get(GLOBAL, {}), **configs.get(backend, {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """What the settings of `python` say, checked.

    Attributes:
        shm_default_byte_size: Warm size of a segment.
        shm_growth_byte_size: Step by which it grows.
        stub_timeout_seconds: How long a start may take without progress.
        thread_pool_size: How many calls to other models an instance may have open.
        shm_message_queue_size: Accepted for compatibility; messages travel on a socket.
    """

    shm_default_byte_size: int = _MIB
    shm_growth_byte_size: int = _MIB
    stub_timeout_seconds: int = 30
    thread_pool_size: int = 32
    shm_message_queue_size: int = 1000

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> PythonSettings:
        """Check the settings of `python`; texts are the reference's (PB src/python_be.cc).

        Raises:
            OptionError: If a value is not a number or too small.
        """
        if settings.get("shm-region-prefix-name") == "":
            raise OptionError("shm-region-prefix-name must at least contain one character.")
        default = cls()
        return cls(
            shm_default_byte_size=_at_least(
                settings,
                "shm-default-byte-size",
                default.shm_default_byte_size,
                _MIB,
                # The text names another bound than the one that is checked; so it is in the reference.
                "shm-default-byte-size can't be smaller than 4 MiBs",
            ),
            shm_growth_byte_size=_positive(settings, "shm-growth-byte-size", default.shm_growth_byte_size),
            stub_timeout_seconds=_positive(settings, "stub-timeout-seconds", default.stub_timeout_seconds),
            thread_pool_size=_at_least(
                settings, "thread-pool-size", default.thread_pool_size, 1, "thread-pool-size can't be less than 1."
            ),
            shm_message_queue_size=_number(settings, "shm_message_queue_size", default.shm_message_queue_size),
        )


def _positive(settings: Mapping[str, str], key: str, default: int) -> int:
    return _at_least(settings, key, default, 1, f"{key} can't be smaller than or equal to zero.")


def _at_least(settings: Mapping[str, str], key: str, default: int, lowest: int, text: str) -> int:
    number = _number(settings, key, default)
    if number < lowest:
        raise OptionError(text)
    return number


def _number(settings: Mapping[str, str], key: str, default: int) -> int:
    if key not in settings:
        return default
    match = _LEADING_NUMBER.match(settings[key])
    # `12abc` is 12 and anything else fails as `stol`, as for std::stol.
    if match is None:
        raise OptionError(f"stol: --backend-config=python,{key}={settings[key]} is not a number")
    return int(match[1])
