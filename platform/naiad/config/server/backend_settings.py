"""`--backend-directory` and `--backend-config`: where backends are found, and their settings.

Settings are kept as given, as backends of the user's own read them, too. Those of backend `python` are also checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import naiad
from naiad.config.server.flag import leading_integer
from naiad.config.server.flag_values import FlagValues
from naiad.core.errors import OptionError

GLOBAL = ""  # key of the settings for all backends

BackendConfigs = Mapping[str, Mapping[str, str]]  # settings by backend name

# Settings of `python` that the reference reads and that have no counterpart here.
WITHOUT_EFFECT = (
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm-region-prefix-name",
    "shm_message_queue_size",
    "thread-pool-size",
)

ENVIRONMENT_SETTING = "execution-env-path"
PYTHON_SETTING = "default-python"

# Settings of `python` that this server or the reference's reads.
KNOWN_SETTINGS = (
    "stub-timeout-seconds",
    ENVIRONMENT_SETTING,
    PYTHON_SETTING,
    *WITHOUT_EFFECT,
    # The server's own settings, which it passes to every backend.
    "auto-complete-config",
    "backend-directory",
    "default-max-batch-size",
    "min-compute-capability",
)

_DEFAULT_DIRECTORY = Path("/opt/tritonserver/backends")
_FLAG = "backend-config"
_MIB = 1 << 20


def backend_directories(values: FlagValues, flag: str) -> tuple[Path, ...]:
    """The directories in which backends are searched for, in order: those named, else Triton's, then those shipped."""
    named = values.paths(flag)
    if not named and _DEFAULT_DIRECTORY.is_dir():
        named = (_DEFAULT_DIRECTORY,)
    return tuple(dict.fromkeys((*named, shipped_backends())))


def shipped_backends() -> Path:
    """The backends that ship with naiad: beside `platform/` in a checkout, inside the package in a wheel."""
    package = Path(naiad.__file__).resolve().parent
    checkout = package.parent.with_name("backends")
    return checkout if package.parent.name == "platform" and checkout.is_dir() else package / "_backends"


def parse_backend_configs(values: FlagValues, flag: str) -> BackendConfigs:
    """The settings of `<backend>,<key>=<value>` and `<key>=<value>` by backend; the last value of a key counts."""
    configs: dict[str, dict[str, str]] = {}
    for text in values.texts(flag):
        left, equals, value = text.partition("=")
        # The first comma ends the name: `a,b,c=1` is the setting `b,c` of backend `a`.
        backend, comma, key = left.partition(",")
        if not comma:
            backend, key = GLOBAL, left
        if not equals or not key or (comma and not backend) or not value:
            raise values.invalid(
                flag, f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}"
            )
        configs.setdefault(backend, {})[key] = value
    return MappingProxyType({name: MappingProxyType(settings) for name, settings in configs.items()})


def parse_python_settings(values: FlagValues) -> PythonSettings:
    """The settings of backend `python`, checked."""
    try:
        return PythonSettings.parse(effective_settings(parse_backend_configs(values, _FLAG), "python"))
    except OptionError as error:
        raise values.invalid(_FLAG, error.message) from None


def effective_settings(configs: BackendConfigs, backend: str) -> dict[str, str]:
    """The settings that one backend reads: its own override those for all (CORE src/backend_model.cc)."""
    return {**configs.get(GLOBAL, {}), **configs.get(backend, {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """The settings of backend `python`. Only `stub_timeout_seconds` has an effect; the others are checked alone."""

    shm_default_byte_size: int = _MIB  # in the reference, the initial size of an instance's segment
    shm_growth_byte_size: int = _MIB  # in the reference, the step by which it grows
    stub_timeout_seconds: int = 30  # how long a guest may take to start without progress
    thread_pool_size: int = 32  # in the reference, the most calls to other models that an instance may have open
    shm_message_queue_size: int = 1000  # in the reference, the length of its message queues

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> PythonSettings:
        """Check the settings of `python`; texts are the reference's (PB src/python_be.cc)."""
        if settings.get("shm-region-prefix-name") == "":
            raise OptionError("shm-region-prefix-name must at least contain one character.")
        default = cls()
        return cls(
            shm_default_byte_size=_at_least(
                settings,
                "shm-default-byte-size",
                default.shm_default_byte_size,
                _MIB,
                # The text names 4 MiB and the bound is 1 MiB, as in the reference.
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
    number = leading_integer(settings[key])
    # As the reference's std::stol: `12abc` is 12, and a text without leading digits is an error that names `stol`.
    if number is None:
        raise OptionError(f"stol: --backend-config=python,{key}={settings[key]} is not a number")
    return number
