"""A snapshot as tables for a terminal, drawn with rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from naiad.core.quantities import counted, size_text
from naiad_operations.top.snapshot import GuestRow, ModelRow, ServerRow, Snapshot

__all__ = ["draw"]

_UNKNOWN = "-"
_FEW = 10
"""Below it, a number has one decimal place."""
_STATE_STYLES = {"ready": "green", "not ready": "red", "draining": "yellow"}
_TEXTS = frozenset({"Ver", "State"})
_NAME_COLUMNS = 16
_SPANS = ((86_400, "d"), (3600, "h"), (60, "min"))


def draw(snapshot: Snapshot, problem: str = "", *, fills_width: bool = True) -> RenderableType:
    """The snapshot as a header and two tables.

    Args:
        snapshot: What to draw.
        problem: Why the snapshot is not newer.
        fills_width: Whether the tables are as wide as the screen, not only as wide as their contents.
    """
    parts: list[RenderableType] = [_header(snapshot.server, snapshot.models)]
    if problem:
        parts.append(Text(problem, style="bold red"))
    tables = [_models(snapshot.models)]
    parts += [*tables, *_reasons(snapshot.models)]
    if snapshot.guests:
        tables.append(_guests(snapshot.guests))
        parts.append(tables[-1])
    for table in tables:
        table.expand = fills_width
    if snapshot.server.note:
        parts.append(Text(snapshot.server.note, style="dim"))
    return Group(*parts)


def _header(server: ServerRow, models: Sequence[ModelRow]) -> Text:
    failed = sum(model.has_failed for model in models)
    states = Counter(model.shown_state for model in models)
    facts = [
        f"{counted(states['ready'], 'model')} ready",
        f"{states['loading']} loading" if states["loading"] else "",
        f"{states['dormant']} dormant" if states["dormant"] else "",
        f"{failed} failed" if failed else "",
        f"{_number(server.requests_per_second)} requests/s",
        f"{_number(server.failures_per_second)} failures/s" if server.failures_per_second else "",
        f"{_number(server.tokens_per_second)} tokens/s" if server.tokens_per_second else "",
        f"{server.waiting} waiting" if server.waiting is not None else "",
        f"{server.running} running" if server.running is not None else "",
        _memory(server),
        f"up {_span(server.uptime_seconds)}" if server.uptime_seconds is not None else "",
    ]
    title = Text.assemble(
        (f"naiad {server.version} ", "bold"),
        (server.state, _STATE_STYLES.get(server.state, "")),
        f" at {server.url}\n",
    )
    return title.append(", ".join(fact for fact in facts if fact))


def _models(models: Sequence[ModelRow]) -> Table:
    """The table of models. Columns that would have the same value in each row are left out, for narrow terminals."""
    # Without a page, servers report a mean instead of percentiles.
    has_mean = any(model.mean_ms is not None for model in models)
    has_failures = any(model.failures_per_second for model in models)
    has_tokens = any(model.tokens_per_second for model in models)
    has_restarts = any(model.restarts for model in models)
    columns: list[tuple[str, Callable[[ModelRow], str], bool]] = [
        ("req/s", lambda model: _number(model.requests_per_second), True),
        ("fail/s", lambda model: _number(model.failures_per_second), has_failures),
        ("p50 ms", lambda model: _number(model.p50_ms), True),
        ("p95 ms", lambda model: _number(model.p95_ms), True),
        ("mean ms", lambda model: _number(model.mean_ms), has_mean),
        ("Queue", lambda model: _count(model.waiting), True),
        ("tokens/s", lambda model: _number(model.tokens_per_second), has_tokens),
        ("Restarts", lambda model: _count(model.restarts), has_restarts),
        ("Memory", lambda model: _size(model.memory), True),
    ]
    shown = [(name, cell) for name, cell, is_shown in columns if is_shown]
    table = _table("Model", "Ver", "State", *(name for name, _ in shown))
    for model in models:
        style = "red" if model.has_failed else "" if model.shown_state == "ready" else "dim"
        table.add_row(
            Text(model.name),
            Text(model.version),
            Text(model.shown_state, style=style),
            *(cell(model) for _, cell in shown),
        )
    return table


def _table(first: str, *others: str) -> Table:
    """An empty table without a frame; numbers are right-aligned."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True, ratio=1, min_width=_NAME_COLUMNS)
    for name in others:
        table.add_column(name, no_wrap=True, justify="left" if name in _TEXTS else "right")
    return table


def _reasons(models: Sequence[ModelRow]) -> list[RenderableType]:
    """Why models failed, one line each, across the screen."""
    return [
        Text(f"{model.name} {model.version}".rstrip() + f": {model.reason}", "red", no_wrap=True, overflow="ellipsis")
        for model in models
        if model.has_failed
    ]


def _guests(guests: Sequence[GuestRow]) -> Table:
    # Only frontend processes have these.
    has_connections = any(guest.connections is not None for guest in guests)
    shown = ("Connections", "Requests") if has_connections else ()
    table = _table("Process", "State", "PID", "CPU", "Restarts", "Memory", *shown)
    for guest in guests:
        name = f"{guest.name} of {guest.model} {guest.version}".rstrip() if guest.model else guest.name
        is_fine = guest.state in {"", "ready"}
        cpu = _UNKNOWN if guest.cpu is None else f"{guest.cpu * 100:.0f}%"
        table.add_row(
            Text(name),
            Text(guest.state or _UNKNOWN, style="" if is_fine else "red"),
            _count(guest.pid),
            cpu,
            _count(guest.restarts),
            _size(guest.memory),
            *((_count(guest.connections), _count(guest.requests)) if has_connections else ()),
        )
    return table


def _memory(server: ServerRow) -> str:
    if server.memory is None:
        return ""
    total = f" of {size_text(server.total_memory)}" if server.total_memory else ""
    return f"{size_text(server.memory)}{total}"


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.1f}" if 0 < value < _FEW else f"{value:,.0f}"


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _size(value: int | None) -> str:
    return _UNKNOWN if value is None else size_text(value)


def _span(seconds: float) -> str:
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
