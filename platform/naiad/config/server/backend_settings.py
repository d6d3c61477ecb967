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
    settings = effective_settings(parse_backend_configs(values, _FLAG), "python")
    return values.parsed(_FLAG, lambda _: PythonSettings.parse(settings))


def effective_settings(configs: BackendConfigs, backend: str) -> dict[str, str]:
    """The settings that one backend reads: its own override those for all (CORE src/backend_model.cc)."""
    return {**configs.get(GLOBAL, {}), **configs.get(backend, {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """The settings of backend `python` that have an effect."""

    stub_timeout_seconds: int = 30  # how long a guest may take to start without progress

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> PythonSettings:
        """Check the settings of `python`; texts are the reference's (PB src/python_be.cc)."""
        if settings.get("shm-region-prefix-name") == "":
            raise OptionError("shm-region-prefix-name must at least contain one character.")
        numbers = {key: _number(key, settings[key]) for key in _NUMBERS if key in settings}
        for key, number in numbers.items():
            lowest, text = _NUMBERS[key]
            if lowest is not None and number < lowest:
                raise OptionError(text.format(key=key))
        return cls(stub_timeout_seconds=numbers.get("stub-timeout-seconds", cls().stub_timeout_seconds))


_NOT_POSITIVE = "{key} can't be smaller than or equal to zero."
# Numbers that are checked: the lowest and the text about a lower one.
_NUMBERS: Mapping[str, tuple[int | None, str]] = {
    # The text names 4 MiB and the bound is 1 MiB, as in the reference.
    "shm-default-byte-size": (1 << 20, "{key} can't be smaller than 4 MiBs"),
    "shm-growth-byte-size": (1, _NOT_POSITIVE),
    "stub-timeout-seconds": (1, _NOT_POSITIVE),
    "thread-pool-size": (1, "{key} can't be less than 1."),
    "shm_message_queue_size": (None, ""),
}


def _number(key: str, text: str) -> int:
    number = leading_integer(text)
    # As the reference's std::stol: `12abc` is 12, and a text without leading digits is an error that names `stol`.
    if number is None:
        raise OptionError(f"stol: --backend-config=python,{key}={text} is not a number")
    return number
