"""`--metrics-config` (CORE src/metric_model_reporter.cc, whose settings and texts these are)."""

from __future__ import annotations

from dataclasses import dataclass

from naiad.config.server.given import GivenFlags

__all__ = ["MetricsOptions", "metrics_warnings", "parse_metrics_options"]

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Which metrics there are of how long requests take.

    Attributes:
        counters: Sums of durations.
        summaries: Quantiles of durations over the last minute.
        histograms: How long decoupled models took to their first responses.
        quantiles: Which quantiles.
    """

    counters: bool = True
    summaries: bool = False
    histograms: bool = False
    quantiles: tuple[float, ...] = _QUANTILES


def parse_metrics_options(given: GivenFlags) -> MetricsOptions:
    """Read all `--metrics-config`.

    Raises:
        UsageError: If one is no setting at all.
    """
    settings = _settings(given)
    return MetricsOptions(
        counters=settings.get("counter_latencies") != "false",
        summaries=settings.get("summary_latencies") == "true",
        histograms=settings.get("histogram_latencies") == "true",
        quantiles=_quantiles(settings.get("summary_quantiles", ""))[0] or _QUANTILES,
    )


def metrics_warnings(given: GivenFlags) -> tuple[str, ...]:
    """A sentence for each setting that says nothing, which the reference takes in silence."""
    warnings = []
    for name, value in _settings(given).items():
        if name == "summary_quantiles":
            warnings += _quantiles(value)[1]
        elif name not in _SWITCHES:
            known = ", ".join((*_SWITCHES, "summary_quantiles"))
            warnings.append(f"--metrics-config={name}={value} has no effect: there are {known}")
        elif value not in {"true", "false"}:
            warnings.append(f"--metrics-config={name}={value} has no effect: it is either true or false")
    return tuple(warnings)


def _settings(given: GivenFlags) -> dict[str, str]:
    settings = {}
    for text in given.texts("metrics-config"):
        name, _, value = text.partition("=")
        if not name or not value:
            raise given.bad("metrics-config", f"--metrics-config option format is <setting>=<value>. Got {text}")
        settings[name] = value
    return settings


def _quantiles(text: str) -> tuple[tuple[float, ...], list[str]]:
    """The quantiles of pairs `<quantile>:<error>`, and what is wrong with the others.

    The errors are read and dropped: every quantile here is exact to less than one percent of its value.
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
            problems.append(f"Invalid option: [{pair}]. Error: a number is none")
            continue
        if 0 <= value <= 1:
            found.append(value)
        else:
            problems.append(f"Invalid option: [{pair}]. Error: a quantile is from 0 to 1")
    return tuple(dict.fromkeys(found)), problems
