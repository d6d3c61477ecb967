"""`--metrics-config` (CORE src/metric_model_reporter.cc, whose settings and texts these are)."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.server.flag_values import FlagValues

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Which latency metrics the server exports."""

    counters: bool = True
    summaries: bool = False  # export quantiles of durations over the last minute
    histograms: bool = False  # export the time to the first response of decoupled models
    quantiles: tuple[float, ...] = _QUANTILES


def parse_metrics_config(values: FlagValues, _flag: str) -> MetricsConfig:
    """The settings of all `--metrics-config`."""
    settings = _settings(values)
    return MetricsConfig(
        counters=settings.get("counter_latencies") != "false",
        summaries=settings.get("summary_latencies") == "true",
        histograms=settings.get("histogram_latencies") == "true",
        quantiles=_quantiles(settings.get("summary_quantiles", ""))[0] or _QUANTILES,
    )


def metrics_warnings(values: FlagValues) -> tuple[str, ...]:
    """A sentence for each setting that is unknown or has an invalid value; the reference ignores them silently."""
    warnings = []
    for name, value in _settings(values).items():
        if name == "summary_quantiles":
            warnings += _quantiles(value)[1]
        elif name not in _SWITCHES:
            known = ", ".join((*_SWITCHES, "summary_quantiles"))
            warnings.append(f"--metrics-config={name}={value} has no effect: there are {known}")
        elif value not in {"true", "false"}:
            warnings.append(f"--metrics-config={name}={value} has no effect: it is either true or false")
    return tuple(warnings)


def _settings(values: FlagValues) -> dict[str, str]:
    settings = {}
    for text in values.texts("metrics-config"):
        name, _, value = text.partition("=")
        if not name or not value:
            raise values.invalid("metrics-config", f"--metrics-config option format is <setting>=<value>. Got {text}")
        settings[name] = value
    return settings


def _quantiles(text: str) -> tuple[tuple[float, ...], list[str]]:
    """The quantiles of pairs `<quantile>:<error>`, and a sentence for each invalid pair.

    The errors are checked and then ignored: every quantile here is exact to less than one percent of its value.
    """
    found: list[float] = []
    problems = []
    for pair in filter(None, text.split(",")):
        quantile, colon, error = pair.partition(":")
        if not colon:
            problems.append(f"Invalid option: [{pair}]. No ':' delimiter found. Expected format is <quantile>:<error>")
            continue
        try:
            value, _ = float(quantile), float(error)
        except ValueError:
            problems.append(f"Invalid option: [{pair}]. Error: quantile and error must be numbers")
            continue
        if 0 <= value <= 1:
            found.append(value)
        else:
            problems.append(f"Invalid option: [{pair}]. Error: the quantile must be between 0 and 1")
    return tuple(dict.fromkeys(found)), problems
