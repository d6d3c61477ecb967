"""What `naiad top` shows in a terminal: models in an order that keys choose, and as many lines as there is room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from naiad_operations.top.screen import Column, columns_of, draw_head, draw_tables
from naiad_operations.top.snapshot import ModelRow, Snapshot

Line = list[Segment]
_ATTENTION = "attention"  # the order at the beginning: failed models first, then the busiest
_KEYS = "q quit  ↑↓ scroll  s/S sort: {sort}  r reverse"


@dataclass(slots=True)
class _Section:
    """Lines below a header, which stays while they scroll."""

    header: Line
    lines: list[Line]


class View:
    """A snapshot on a screen."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.problem = ""
        self._sort = _ATTENTION
        self._is_reversed = False
        self._first = 0
        self._room = 1
        self._width = 80

    def press(self, key: str) -> bool:
        """Do what a key stands for; returns whether it ends the command."""
        titles = [_ATTENTION, *(column.title for column in columns_of(self.snapshot.models, self._width))]
        step = {"s": 1, "S": -1}.get(key, 0)
        if step:
            at = titles.index(self._sort) if self._sort in titles else 0
            self._sort, self._is_reversed, self._first = titles[(at + step) % len(titles)], False, 0
        elif key == "r":
            self._is_reversed, self._first = not self._is_reversed, 0
        page = max(self._room - 1, 1)
        ways = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -self._first, "end": 1 << 30}
        self._first = max(self._first + ways.get(key, 0), 0)
        return key == "q"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines that have room."""
        width, height = options.max_width, options.height or console.height
        self._width = width
        head = _lines(console, draw_head(self.snapshot, self.problem), width)
        rows = [
            (section, line) for section in self._sections(console, width) for line in (section.header, *section.lines)
        ]
        # Below the head: the header of the first section on the screen, its lines, and the line about keys.
        self._room = max(height - len(head) - 2, 1)
        self._first = min(self._first, max(len(rows) - 1 - self._room, 0))
        section, _ = rows[self._first]
        below = rows[self._first + 1 : self._first + 1 + self._room]
        for line in (*head, section.header, *(line for _, line in below)):
            yield from line
            yield Segment.line()
        yield Segment("\n" * (self._room - len(below)))
        yield self._footer(len(rows) - 1, len(below), width)

    def _sections(self, console: Console, width: int) -> Iterator[_Section]:
        for table, others in draw_tables(self.snapshot, self._sorted(), width):
            table.expand = True
            header, *lines = _lines(console, table, width)
            yield _Section(header, [*lines, *(line for other in others for line in _lines(console, other, width))])

    def _sorted(self) -> Sequence[ModelRow]:
        models = self.snapshot.models
        column = self._column()
        if column is None:
            return models[::-1] if self._is_reversed else models
        known = [row for row in models if column.value(row) is not None]
        is_descending = column.is_text == self._is_reversed
        ordered = sorted(known, key=lambda row: (column.value(row), row.name), reverse=is_descending)
        return [*ordered, *(row for row in models if column.value(row) is None)]

    def _column(self) -> Column | None:
        found = (column for column in columns_of(self.snapshot.models, self._width) if column.title == self._sort)
        return next(found, None)

    def _footer(self, all_lines: int, shown: int, width: int) -> Text:
        column = self._column()
        arrow = "" if column is None else " ↑" if column.is_text != self._is_reversed else " ↓"
        keys = _KEYS.format(sort=self._sort + arrow)
        place = f"{self._first + 1}-{self._first + shown} of {all_lines}" if shown < all_lines else ""
        text = Text(no_wrap=True, overflow="ellipsis", style="reverse", end="")
        return text.append(keys).append(place.rjust(max(width - len(keys), len(place) + 2)))


def _lines(console: Console, renderable: RenderableType, width: int) -> list[Line]:
    options = console.options.update(width=width).reset_height()
    return console.render_lines(renderable, options, pad=False)
