"""Terminal output of the demos: steps with their durations, and notes."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Iterator

from rich.console import Console

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print the step's name when it begins, and its duration when it ends."""
    console.print(f"[bold]{title}[/]")
    started = time.perf_counter()
    yield
    console.print(f"  [green]done[/] in {time.perf_counter() - started:.1f} s")


def note(line: str) -> None:
    """Print one line of a step's output."""
    console.print(f"  {line}", style="dim", markup=False)
