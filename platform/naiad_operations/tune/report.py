"""The report of a search: a table in Markdown, a picture, and all figures as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

from naiad_operations.bench.report import as_csv as csv_text
from naiad_operations.tune.objective import FIGURES, Limit, Measured
from naiad_operations.tune.search import Candidate, best_load

Trials = Mapping[Candidate, Sequence[Measured]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 480, 74, 24, 46, 58
_STEPS = (1, 2, 5)
_MOST_TICKS = 8


def candidate_text(candidate: Candidate) -> str:
    """A candidate in words."""
    instances = f"{candidate.instances} instance{'s' * (candidate.instances != 1)}"
    if not candidate.batch:
        return f"{instances}, no dynamic batching"
    return f"{instances}, batches of {candidate.batch}, delay {candidate.delay_us / 1000:g} ms"


def as_csv(trials: Trials) -> str:
    """All loads, a line each."""
    head = ("instances", "max_batch_size", "max_queue_delay_microseconds", "concurrency", "requests_per_second")
    return csv_text(
        [
            {
                **dict(zip(head, (*candidate, load.concurrency, load.rate), strict=True)),
                **{f"{name}_ms": load.milliseconds.get(name, "") for name in FIGURES},
                "errors": load.errors,
            }
            for candidate, loads in trials.items()
            for load in loads
        ]
    )


def as_markdown(
    model: str, trials: Trials, limits: Sequence[Limit], start: Candidate, best: Candidate, conditions: Sequence[str]
) -> str:
    """The report: trials in the order of the search, and sentences about how they were measured."""
    figure = limits[0].figure if limits else "p95"
    objective = " and ".join(map(str, limits)) or "any latency"
    rows = []
    for candidate, loads in sorted(trials.items(), key=lambda each: -_rate(each[1], limits)):
        load = best_load(loads, limits)
        note = ", ".join(text for text, which in (("chosen", best), ("before", start)) if candidate == which)
        cells = ("-", "-", "-") if load is None else _cells(load, figure)
        rows.append(f"| {candidate_text(candidate)} | {' | '.join(cells)} | {note} |")
    return "\n".join(
        [
            f"# Configurations of {model}",
            "",
            _verdict(trials, limits, start, best),
            "",
            f"![requests per second and {figure} of each configuration](report.svg)",
            "",
            f"The highest rate of each configuration with {objective}; `-`: no load kept that.",
            "",
            f"| configuration | requests/s | {figure} ms | requests in flight | |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *(f"- {text}" for text in conditions),
            "- All loads: [measurements.csv](measurements.csv). The configuration: [config.pbtxt](config.pbtxt).",
            "",
        ]
    )


def _verdict(trials: Trials, limits: Sequence[Limit], start: Candidate, best: Candidate) -> str:
    found, before = (best_load(trials[each], limits) for each in (best, start))
    if found is None:
        nearest = min((load.excess(limits) for load in trials[best]), default=float("inf"))
        text = f"The nearest, {candidate_text(best)}, needs {nearest:.2f} times as much time."
        return f"**No configuration keeps the limits.** {text}"
    text = f"**{candidate_text(best).capitalize()}: {found.rate:,.0f} requests/s**"
    if best == start:
        return f"{text}. The model's own configuration is the best of those that were tried."
    if before is None:
        return f"{text}. The configuration before, {candidate_text(start)}, keeps the limits with no load."
    return f"{text}, {found.rate / before.rate:.2f} times those of the configuration before ({candidate_text(start)})."


def _rate(loads: Sequence[Measured], limits: Sequence[Limit]) -> float:
    load = best_load(loads, limits)
    return 0.0 if load is None else load.rate


def _cells(load: Measured, figure: str) -> tuple[str, str, str]:
    return f"{load.rate:,.0f}", f"{load.milliseconds[figure]:.3g}", str(load.concurrency)


# -- the picture ------------------------------------------------------------------------------------------------------


def as_svg(model: str, trials: Trials, limits: Sequence[Limit], start: Candidate, best: Candidate) -> str:
    """The picture: each load by its rate and its latency, those of a configuration joined; the limit is a line."""
    figure = limits[0].figure if limits else "p95"
    points = {
        candidate: [(load.rate, load.milliseconds[figure]) for load in loads if figure in load.milliseconds]
        for candidate, loads in trials.items()
    }
    latencies = [y for each in points.values() for _, y in each] or [1.0]
    widest = max((x for each in points.values() for x, _ in each), default=1.0) * 1.05 or 1.0
    bound = [limits[0].milliseconds] if limits else []
    low, high = min((*latencies, *bound)) * 0.8, max((*latencies, *bound)) * 1.25

    def place(x: float, y: float) -> tuple[float, float]:
        share = (log10(max(y, low)) - log10(low)) / (log10(high) - log10(low) or 1)
        return _LEFT + x / widest * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(model)}: requests per second and {figure} of {len(trials)} configurations</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="bold">{escape(model)}: {figure} over rate</text>',
    ]
    for value in _linear_ticks(widest):
        x, y = place(value, low)
        lines += [
            f'<path d="M{x:.1f} {_TOP}V{y:.1f}" stroke="#e3e8ea"/>',
            f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{value:,.0f}</text>',
        ]
    for value in _log_ticks(low, high):
        x, y = place(0, value)
        lines += [
            f'<path d="M{x:.1f} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e3e8ea"/>',
            f'<text x="{x - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>',
        ]
    lines += [
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 14}" text-anchor="middle">requests per second</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" transform="rotate(-90 18 {middle})">{figure}, ms</text>',
    ]
    if bound:
        name = escape(str(limits[0]))
        x, y = place(0, bound[0])
        lines += [
            f'<path d="M{x:.1f} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#b3261e" stroke-dasharray="6 4"/>',
            f'<text x="{_WIDTH - _RIGHT}" y="{y - 6:.1f}" text-anchor="end" fill="#b3261e">{name}</text>',
        ]
    for candidate in sorted(points, key=lambda each: (each == best, each == start)):
        lines += _curve([place(*point) for point in points[candidate]], candidate, start, best)
    return "\n".join([*lines, "</svg>", ""])


def _curve(places: Sequence[tuple[float, float]], candidate: Candidate, start: Candidate, best: Candidate) -> list[str]:
    color, width = ("#0b7a75", 2.5) if candidate == best else ("#c2571a", 2) if candidate == start else ("#9db0b9", 1)
    path = " ".join(f"{'ML'[bool(index)]}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(places))
    lines = [f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}"/>'] if path else []
    title = f"<title>{escape(candidate_text(candidate))}</title>"
    lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}">{title}</circle>' for x, y in places]
    if candidate in {start, best}:
        row = 0 if candidate == best else 1
        name = "chosen" if candidate == best else "before"
        lines.append(
            f'<text x="{_WIDTH - _RIGHT}" y="{16 + 16 * row}" text-anchor="end" fill="{color}">{name}: '
            f"{escape(candidate_text(candidate))}</text>"
        )
    return lines


def _linear_ticks(high: float) -> list[float]:
    power = 10 ** int(log10(high)) if high >= 1 else 0.1
    step = next((power * each / 5 for each in (1, 2, 5, 10) if high / (power * each / 5) <= _MOST_TICKS), power)
    return [index * step for index in range(int(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    values = [step * 10.0**power for power in range(-4, 8) for step in _STEPS]
    return [value for value in values if low <= value <= high]
