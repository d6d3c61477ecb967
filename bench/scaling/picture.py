"""The picture of a run: requests/s, and CPU per request by role, over the number of processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from bench.results import THEIRS, Results
from bench.scaling import session
from bench.scaling.processes import ROLES
from bench.scaling.session import RATE

_WIDTH, _HEIGHT = 420, 260
_LEFT, _TOP, _BOTTOM, _RIGHT = 60, 46, 40, 16
_COLOURS = ("#3465a4", "#f57900", "#4e9a06", "#888888")
_LINES = 4
_FONT = "font-family='sans-serif' font-size='11' fill='#222222'"


def draw(results: Results) -> str:
    """An SVG with two panels, of the servers that were measured with one model and with eight."""
    ours = [name for name in results.samples[session.ONE_MODEL] if name != THEIRS]
    rates = {
        title: [results.median(case, name, RATE) for name in ours]
        for title, case in (("one model", session.ONE_MODEL), ("eight models", session.EIGHT_MODELS))
        if case in results.samples
    }
    theirs = results.median(session.ONE_MODEL, THEIRS, RATE)
    if theirs is not None:
        rates["Triton, one model"] = [theirs] * len(ours)
    bars = list(results.samples[session.ONE_MODEL])
    cpu = {
        role: values
        for role in ROLES
        if any(values := [results.median(session.ONE_MODEL, name, role) or 0.0 for name in bars])
    }
    left = "".join(_panel("requests/s, 16 clients and more", ours, rates, 0, stacked=False))
    right = "".join(_panel("CPU per request, us (one model, 16 clients)", bars, cpu, _WIDTH, stacked=True))
    size = f"width='{2 * _WIDTH}' height='{_HEIGHT}' viewBox='0 0 {2 * _WIDTH} {_HEIGHT}'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size}>\n"
        f"<rect width='100%' height='100%' fill='white'/>\n{left}{right}</svg>\n"
    )


def step_of(highest: float) -> float:
    """The distance of the lines of a scale to *highest*: 1, 2 or 5 times a power of ten, at most five lines."""
    rough = max(highest, 1e-9) / _LINES
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * (1 - 1e-9))


def _panel(
    title: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]], x: float, *, stacked: bool
) -> Iterator[str]:
    columns = [[values[index] or 0.0 for values in series.values()] for index in range(len(labels))]
    highest = max([sum(column) if stacked else max(column, default=0.0) for column in columns], default=0.0)
    step = step_of(highest)
    top = step * math.ceil(highest / step) or step
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    slot = plot_width / max(len(labels), 1)

    def at(index: int, value: float) -> tuple[float, float]:
        return x + _LEFT + slot * (index + 0.5), _TOP + plot_height * (1 - value / top)

    yield _text(x + _LEFT, 16, title, weight="bold")
    for number in range(round(top / step) + 1):
        y = at(0, number * step)[1]
        yield f"<line x1='{x + _LEFT}' x2='{x + _WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#dddddd'/>\n"
        yield _text(x + _LEFT - 6, y + 4, f"{number * step:,g}" if step < 1 else f"{number * step:,.0f}", anchor="end")
    for index, label in enumerate(labels):
        yield _text(at(index, 0)[0], _HEIGHT - _BOTTOM + 16, label, anchor="middle")
    base = [0.0] * len(labels)
    for number, (name, values) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        yield f"<rect x='{x + _LEFT + 110 * number}' y='24' width='10' height='10' fill='{colour}'/>\n"
        yield _text(x + _LEFT + 110 * number + 14, 33, name)
        if stacked:
            for index, value in enumerate(values):
                (middle, upper), lower = at(index, base[index] + (value or 0.0)), at(index, base[index])[1]
                corner = f"x='{middle - slot / 4:.1f}' y='{upper:.1f}'"
                yield f"<rect {corner} width='{slot / 2:.1f}' height='{lower - upper:.1f}' fill='{colour}'/>\n"
                base[index] += value or 0.0
        else:
            points = [at(index, value) for index, value in enumerate(values) if value is not None]
            path = " ".join(f"{left:.1f},{y:.1f}" for left, y in points)
            dashes = " stroke-dasharray='5 4'" if name.startswith("Triton") else ""
            yield f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'{dashes}/>\n"
            yield from (f"<circle cx='{left:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>\n" for left, y in points)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}' {_FONT}>{escape(text)}</text>\n"
    )
