"""A snapshot as tables for a terminal, drawn with rich."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from naiad.core.quantities import counted, size_text
from naiad.protocol.numbers import integer
from naiad_operations.top.snapshot import CONDITIONS, NOT_SERVING, GuestRow, ModelRow, ServerRow, Snapshot

_UNKNOWN = "-"
_FEW = 10  # below it, a number has one decimal place
_STATE_STYLES = {"ready": "green", "not ready": "red", "draining": "yellow"}
_TEXTS = frozenset({"Ver", "State"})
_NAME_COLUMNS = 16
_SPANS = ((86_400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of models."""

    title: str
    value: Callable[[ModelRow], Any]  # what it shows, and by what it sorts models; None is last
    text: Callable[[Any], str]
    rank: int = 0  # the higher, the earlier it is left out where the terminal is narrow; 0 never
    is_text: bool = False  # whether it is left-aligned, and sorted from the beginning of the alphabet
    is_optional: bool = False  # whether it is left out where each model has none or zero

    def cell(self, row: ModelRow) -> str:
        return self.text(self.value(row))


def _number(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:.1f}" if 0 < value < _FEW else f"{value:,.0f}"


def _count(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _size(value: int | None) -> str:
    return _UNKNOWN if value is None else size_text(value)


MODEL_COLUMNS = (
    Column("Model", lambda row: row.name, str, is_text=True),
    Column(
        "Ver", lambda row: integer(row.version), lambda number: "" if number is None else str(number), 6, is_text=True
    ),
    Column("State", lambda row: row.shown_state, str, is_text=True),
    Column("req/s", lambda row: row.requests_per_second, _number),
    Column("fail/s", lambda row: row.failures_per_second, _number, is_optional=True),
    Column("p50 ms", lambda row: row.p50_ms, _number, 5),
    Column("p95 ms", lambda row: row.p95_ms, _number, 1),
    Column("Queue", lambda row: row.waiting, _count, 2),
    Column("tokens/s", lambda row: row.tokens_per_second, _number, 7, is_optional=True),
    Column("Restarts", lambda row: row.restarts, _count, 4, is_optional=True),
    Column("Memory", lambda row: row.memory, _size, 3),
)


def draw(snapshot: Snapshot, problem: str = "", *, width: int, fills_width: bool = True) -> RenderableType:
    """The snapshot as a header and two tables; what has no room in *width* columns is left out."""
    parts: list[RenderableType] = [draw_head(snapshot, problem)]
    for table, reasons in draw_tables(snapshot, snapshot.models, width):
        table.expand = fills_width
        parts += [table, *reasons]
    return Group(*parts)


def draw_tables(
    snapshot: Snapshot, models: Sequence[ModelRow], width: int
) -> Iterator[tuple[Table, Sequence[RenderableType]]]:
    """The tables of models, in this order, and of processes, each with the lines below it."""
    yield draw_models(models, width), draw_reasons(snapshot.models)
    if snapshot.guests:
        yield draw_guests(snapshot.guests), ()


def draw_head(snapshot: Snapshot, problem: str) -> RenderableType:
    """The server in two lines, and why its figures are not newer."""
    head = _header(snapshot.server, snapshot.models)
    return Group(head, Text(problem, style="bold red")) if problem else head


def _header(server: ServerRow, models: Sequence[ModelRow]) -> Text:
    failed = sum(model.has_failed for model in models)
    states = Counter(model.shown_state for model in models)
    facts = [
        f"{counted(states['ready'], 'model')} ready",
        f"{states['loading']} loading" if states["loading"] else "",
        f"{states['dormant']} dormant" if states["dormant"] else "",
        *(f"{states[condition]} {condition}" for condition in sorted(CONDITIONS) if states[condition]),
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


def columns_of(models: Sequence[ModelRow], width: int) -> list[Column]:
    """The columns that a table of these models has in a terminal of *width* columns.

    Columns that would have the same value in each row are left out, and others where there is no room.
    """
    shown = [column for column in MODEL_COLUMNS if not column.is_optional or any(map(column.value, models))]

    def needed() -> int:
        return sum(max(len(column.title), *(len(column.cell(row)) for row in models)) + 1 for column in shown[1:])

    while models and _NAME_COLUMNS + 1 + needed() > width and any(column.rank for column in shown):
        shown.remove(max(shown, key=lambda column: column.rank))
    return shown


def draw_models(models: Sequence[ModelRow], width: int) -> Table:
    """The table of models."""
    columns = columns_of(models, width)
    table = _table(*(column.title for column in columns))
    for model in models:
        style = _style(model)
        table.add_row(*(Text(column.cell(model), style=style if column.title == "State" else "") for column in columns))
    return table


def _style(model: ModelRow) -> str:
    if model.has_failed:
        return "red"
    if model.warning or model.shown_state in CONDITIONS:
        return "red" if model.shown_state == NOT_SERVING else "yellow"
    return "" if model.shown_state == "ready" else "dim"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True, ratio=1, min_width=_NAME_COLUMNS)
    for name in others:
        table.add_column(name, no_wrap=True, justify="left" if name in _TEXTS else "right")
    return table


def draw_reasons(models: Sequence[ModelRow]) -> list[Text]:
    """Why models failed, and what is or went wrong with others; one line each, across the screen."""
    return [
        Text(
            f"{model.name} {model.version}".rstrip() + f": {model.trouble}",
            _style(model),
            no_wrap=True,
            overflow="ellipsis",
        )
        for model in models
        if model.trouble
    ]


def draw_guests(guests: Sequence[GuestRow]) -> Table:
    """The table of processes."""
    # Only processes of the server have these.
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


def _span(seconds: float) -> str:
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
