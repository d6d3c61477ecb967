"""How requests are traced: `--trace-config` and the flags it replaces.

Names and defaults: SRV docs/user_guide/trace.md, src/command_line_parser.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from naiad.config.server.flag import leading_integer
from naiad.config.server.flag_values import FlagValues

LEVELS = ("TIMESTAMPS", "TENSORS")  # what can be traced of a request, in the order in which settings list it

_FLAG = "trace-config"
_OLD_FLAGS = {
    "level": "trace-level",
    "rate": "trace-rate",
    "count": "trace-count",
    "triton,file": "trace-file",
    "triton,log-frequency": "trace-log-frequency",
}
_OTEL = "opentelemetry"
_OTEL_TEXTS = ("url", "resource")
_OTEL_NUMBERS = {"bsp_max_queue_size": 2048, "bsp_schedule_delay": 5000, "bsp_max_export_batch_size": 512}
_KNOWN = ("mode", *_OLD_FLAGS, *(f"{_OTEL},{name}" for name in (*_OTEL_TEXTS, *_OTEL_NUMBERS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTelemetryConfig:
    """How traces are exported in mode `opentelemetry`. Fields are named as the settings."""

    url: tuple[str, ...] = ()  # Endpoints; the last one counts. Empty: the exporter's own default.
    resource: tuple[str, ...] = ()  # attributes of this server, each as `<key>=<value>`
    # Most spans that wait for export; further spans are dropped.
    bsp_max_queue_size: int = _OTEL_NUMBERS["bsp_max_queue_size"]
    bsp_schedule_delay: int = _OTEL_NUMBERS["bsp_schedule_delay"]
    bsp_max_export_batch_size: int = _OTEL_NUMBERS["bsp_max_export_batch_size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What is traced, of how many requests, and where traces are written."""

    levels: tuple[str, ...] = ()  # what is traced of a request; tracing is off where this is empty
    rate: int = 1000
    count: int = -1  # most requests to trace; -1 for no limit
    log_frequency: int = 0
    file: str = ""
    open_telemetry: OpenTelemetryConfig | None = None

    @property
    def mode(self) -> str:
        return "triton" if self.open_telemetry is None else _OTEL


def levels_of(names: Iterable[str]) -> tuple[str, ...]:
    """The levels among *names*, in the order of `LEVELS`; other names, such as OFF, are ignored."""
    given = frozenset(names)
    return tuple(level for level in LEVELS if level in given)


def parse_trace_config(values: FlagValues, _flag: str) -> TraceConfig:
    """The trace settings of `--trace-config`, of the flags it replaces, and of OpenTelemetry's variables."""
    settings: dict[str, list[str]] = {key: values.texts(flag) for key, flag in _OLD_FLAGS.items() if values.has(flag)}
    found: dict[str, list[str]] = {}
    for text in values.texts(_FLAG):
        key, equals, value = text.partition("=")
        if not equals:
            raise values.invalid(_FLAG, f"--trace-config option format is '<mode>,<setting>=<value>'. Got {text}")
        if key not in _KNOWN:
            raise values.invalid(_FLAG, f"unknown trace setting '{key}'; the settings are {', '.join(_KNOWN)}")
        found.setdefault(key, []).append(value)
    settings.update(found)
    mode = settings.get("mode", ["triton"])[-1]
    if mode not in {"triton", _OTEL}:
        raise values.invalid(_FLAG, f"invalid value for trace mode option: {mode}")
    return TraceConfig(
        levels=_levels(values, settings.get("level", ())),
        rate=_number(values, settings, "rate", 1000, low=0),
        count=_number(values, settings, "count", -1, low=-1),
        log_frequency=_number(values, settings, "triton,log-frequency", 0, low=0),
        file=settings.get("triton,file", [""])[-1],
        open_telemetry=_open_telemetry(values, settings) if mode == _OTEL else None,
    )


def _open_telemetry(values: FlagValues, settings: Mapping[str, list[str]]) -> OpenTelemetryConfig:
    texts = {name: tuple(settings.get(f"{_OTEL},{name}", ())) for name in _OTEL_TEXTS}
    for name, given in texts.items():
        if "" in given:
            raise values.invalid(_FLAG, f"{_OTEL},{name} is empty")
    for text in texts["resource"]:
        if not text.partition("=")[0] or "=" not in text:
            raise values.invalid(_FLAG, f"{_OTEL},resource must be <key>=<value>. Got {text}")
    variables = {f"{_OTEL},{name}": [values.environ.get(f"OTEL_{name.upper()}", "")] for name in _OTEL_NUMBERS}
    effective = {**{key: texts for key, texts in variables.items() if texts[0]}, **settings}
    numbers = {
        name: _number(values, effective, f"{_OTEL},{name}", default, low=1) for name, default in _OTEL_NUMBERS.items()
    }
    if numbers["bsp_max_export_batch_size"] > numbers["bsp_max_queue_size"]:
        raise values.invalid(
            _FLAG,
            f"{_OTEL},bsp_max_export_batch_size={numbers['bsp_max_export_batch_size']} is more than "
            f"bsp_max_queue_size={numbers['bsp_max_queue_size']}: the queue never holds so many spans",
        )
    return OpenTelemetryConfig(url=texts["url"], resource=texts["resource"], **numbers)


def trace_warnings(values: FlagValues) -> tuple[str, ...]:
    """A sentence for each old flag that `--trace-config` overrides."""
    named = {text.partition("=")[0] for text in values.texts(_FLAG)}
    return tuple(
        f"Overriding deprecated '--{flag}' in favor of provided {key.rpartition(',')[2]} value in --trace-config!"
        for key, flag in _OLD_FLAGS.items()
        if key in named and values.has(flag)
    )


def _levels(values: FlagValues, names: Iterable[str]) -> tuple[str, ...]:
    wanted = [name.upper() for name in names]
    for name in wanted:
        if name not in {"OFF", *LEVELS}:
            raise values.invalid(_FLAG, f"invalid value for trace level option: {name}")
    return () if "OFF" in wanted else levels_of(wanted)


def _number(values: FlagValues, settings: Mapping[str, list[str]], key: str, default: int, *, low: int) -> int:
    if key not in settings:
        return default
    text = settings[key][-1]
    number = leading_integer(text)
    if number is None or not low <= number < 1 << 31:
        raise values.invalid(_FLAG, f"{key} must be an integer of at least {low}. Got {text}")
    return number
