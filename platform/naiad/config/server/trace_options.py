"""How requests are traced: `--trace-config` and the flags it replaces.

Names and defaults: SRV docs/user_guide/trace.md, src/command_line_parser.cc.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from naiad.config.server.flag import UsageError
from naiad.config.server.given import GivenFlags

__all__ = ["LEVELS", "OpenTelemetryOptions", "TraceOptions", "levels_of", "parse_trace_options", "trace_warnings"]

LEVELS = ("TIMESTAMPS", "TENSORS")
"""What of a request may be traced, in the order in which it is told."""

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
_INTEGER = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTelemetryOptions:
    """How traces are exported in the mode `opentelemetry`, under the names the settings have.

    Attributes:
        url: Where to; the last one counts, none is the exporter's own default.
        resource: What is said of this server, each as `<key>=<value>`.
        bsp_max_queue_size: How many spans may wait to be exported; further ones are dropped.
        bsp_schedule_delay: Milliseconds after which those that wait are exported.
        bsp_max_export_batch_size: How many are exported at a time.
    """

    url: tuple[str, ...] = ()
    resource: tuple[str, ...] = ()
    bsp_max_queue_size: int = _OTEL_NUMBERS["bsp_max_queue_size"]
    bsp_schedule_delay: int = _OTEL_NUMBERS["bsp_schedule_delay"]
    bsp_max_export_batch_size: int = _OTEL_NUMBERS["bsp_max_export_batch_size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """What is traced, of how many requests, and where to.

    Attributes:
        levels: What of a request is traced; nothing is, where this is empty.
        rate: One request of how many is traced.
        count: How many requests are traced in all, -1 for any number.
        log_frequency: How many traces go into a file of their own, 0 for all into one.
        file: Where to.
        open_telemetry: Where to, and how, instead; None for files.
    """

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    open_telemetry: OpenTelemetryOptions | None = None

    @property
    def mode(self) -> str:
        """The name of what traces are written by."""
        return "triton" if self.open_telemetry is None else _OTEL


def levels_of(names: Iterable[str]) -> tuple[str, ...]:
    """The levels among some names, each once and in their order; other names, such as OFF, stand for none."""
    given = frozenset(names)
    return tuple(level for level in LEVELS if level in given)


def parse_trace_options(given: GivenFlags, environ: Mapping[str, str]) -> TraceOptions:
    """Read all flags about traces, and the variables of OpenTelemetry that stand for some.

    Raises:
        UsageError: If a setting is unknown, or has no such value.
    """
    settings: dict[str, list[str]] = {key: given.texts(flag) for key, flag in _OLD_FLAGS.items() if given.has(flag)}
    found: dict[str, list[str]] = {}
    for text in given.texts("trace-config"):
        key, equals, value = text.partition("=")
        if not equals:
            raise given.bad("trace-config", f"--trace-config option format is '<mode>,<setting>=<value>'. Got {text}")
        if key not in _KNOWN:
            raise given.bad("trace-config", f"'{key}' is no setting of traces; there are {', '.join(_KNOWN)}")
        found.setdefault(key, []).append(value)
    settings.update(found)
    mode = settings.get("mode", ["triton"])[-1]
    if mode not in {"triton", _OTEL}:
        raise given.bad("trace-config", f"invalid value for trace mode option: {mode}")
    return TraceOptions(
        levels=_levels(given, settings.get("level", ())),
        rate=_number(given, settings, "rate", 1000, low=0),
        count=_number(given, settings, "count", -1, low=-1),
        log_frequency=_number(given, settings, "triton,log-frequency", 0, low=0),
        file=settings.get("triton,file", [""])[-1],
        open_telemetry=_open_telemetry(given, settings, environ) if mode == _OTEL else None,
    )


def _open_telemetry(
    given: GivenFlags, settings: Mapping[str, list[str]], environ: Mapping[str, str]
) -> OpenTelemetryOptions:
    texts = {name: tuple(settings.get(f"{_OTEL},{name}", ())) for name in _OTEL_TEXTS}
    for name, values in texts.items():
        if "" in values:
            raise given.bad("trace-config", f"{_OTEL},{name} is empty")
    for text in texts["resource"]:
        if not text.partition("=")[0] or "=" not in text:
            raise given.bad("trace-config", f"{_OTEL},resource must be <key>=<value>. Got {text}")
    variables = {f"{_OTEL},{name}": [environ.get(f"OTEL_{name.upper()}", "")] for name in _OTEL_NUMBERS}
    named = {**{key: texts for key, texts in variables.items() if texts[0]}, **settings}
    numbers = {
        name: _number(given, named, f"{_OTEL},{name}", default, low=1) for name, default in _OTEL_NUMBERS.items()
    }
    if numbers["bsp_max_export_batch_size"] > numbers["bsp_max_queue_size"]:
        raise given.bad(
            "trace-config",
            f"{_OTEL},bsp_max_export_batch_size={numbers['bsp_max_export_batch_size']} is more than "
            f"bsp_max_queue_size={numbers['bsp_max_queue_size']}: so many spans would never be there",
        )
    return OpenTelemetryOptions(
        url=texts["url"],
        resource=texts["resource"],
        bsp_max_queue_size=numbers["bsp_max_queue_size"],
        bsp_schedule_delay=numbers["bsp_schedule_delay"],
        bsp_max_export_batch_size=numbers["bsp_max_export_batch_size"],
    )


def trace_warnings(given: GivenFlags) -> tuple[str, ...]:
    """A sentence for each old flag that `--trace-config` overrides."""
    named = {text.partition("=")[0] for text in given.texts("trace-config")}
    return tuple(
        f"Overriding deprecated '--{flag}' in favor of provided {key.rpartition(',')[2]} value in --trace-config!"
        for key, flag in _OLD_FLAGS.items()
        if key in named and given.has(flag)
    )


def _levels(given: GivenFlags, names: Iterable[str]) -> tuple[str, ...]:
    wanted = [name.upper() for name in names]
    for name in wanted:
        if name not in {"OFF", *LEVELS}:
            raise given.bad("trace-config", f"invalid value for trace level option: {name}")
    return () if "OFF" in wanted else levels_of(wanted)


def _number(given: GivenFlags, settings: Mapping[str, list[str]], key: str, default: int, *, low: int) -> int:
    if key not in settings:
        return default
    text = settings[key][-1]
    if not _INTEGER.fullmatch(text) or not low <= int(text) < 1 << 31:
        raise _bad_number(given, key, text, low)
    return int(text)


def _bad_number(given: GivenFlags, key: str, text: str, low: int) -> UsageError:
    return given.bad("trace-config", f"{key} must be an integer of at least {low}. Got {text}")
