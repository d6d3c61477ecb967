"""What the demos say on the terminal: steps with their times, and notes."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Iterator

from rich.console import Console

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print what begins, and how long it took."""
    console.print(f"[bold]{title}[/]")
    started = time.perf_counter()
    yield
    console.print(f"  [green]done[/] in {time.perf_counter() - started:.1f} s")


def note(line: str) -> None:
    """One line of a step."""
    console.print(f"  {line}", style="dim", markup=False)
