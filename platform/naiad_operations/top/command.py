"""The command `naiad top`."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from naiad.cli.click_options import json_option
from naiad.cli.http_reading import (
    DEFAULT_URL,
    ServerAddress,
    UnreachableServerError,
    basic_authorization,
    parse_header,
)
from naiad.cli.json_output import print_json
from naiad.core.errors import NaiadError

if TYPE_CHECKING:
    from rich.console import Console

    from naiad_operations.top.reading import TopReader
    from naiad_operations.top.snapshot import Snapshot
    from naiad_operations.top.view import View

__all__ = ["show", "top_command"]


@click.command("top", short_help="Show the models and guests of a running server, live.")
@click.argument("url", default="")
@click.option("--url", "named", metavar="URL", default="", help="The same as the argument.")
@click.option("--metrics", metavar="URL", default="", help="Address of its metrics; default: port 8002 of its host.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between readings."
)
@click.option("--once", is_flag=True, help="Print one reading, as without a terminal.")
@click.option(
    "--ui-password",
    "password",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the password of the server's page.",
)
@click.option(
    "--header", "headers", metavar="NAME:VALUE", multiple=True, help="Header of each request; may be repeated."
)
@json_option
def top_command(
    url: str,
    named: str,
    metrics: str,
    interval: float,
    once: bool,  # noqa: FBT001 - click passes options by name
    password: Path | None,
    headers: tuple[str, ...],
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Show the models and guests of the server at URL; q or Ctrl-C ends it.

    In a terminal, s and S choose the column that sorts the models, r reverses the order, and arrows scroll.

    URL is the address of its HTTP port; default: http://localhost:8000. A server with --ui=true has all figures; of
    others, rates, mean durations and queues are read from /metrics.
    """
    from naiad_operations.top.reading import TopReader

    if url and named:
        raise click.UsageError(f"the server is named twice, {url} and {named}", click.get_current_context())
    given = dict(map(parse_header, headers))
    if password is not None:
        given |= basic_authorization(password)
    reader = TopReader(ServerAddress(url or named or DEFAULT_URL, given), metrics)
    try:
        if json:
            print_json(_read_once(reader, interval))
        elif once or not sys.stdout.isatty():
            _print_once(_read_once(reader, interval))
        else:
            from rich.console import Console

            show(reader, interval, Console())
    except KeyboardInterrupt:
        return  # the way to end it


def _read_once(reader: TopReader, interval: float) -> Snapshot:
    """One snapshot with rates; metrics need two readings for that."""
    snapshot = reader.read()
    if not reader.has_page:
        time.sleep(min(interval, 1.0))
        snapshot = reader.read()
    return snapshot


_PIPE_COLUMNS = 1000
"""Largest width of lines that no terminal shows, without COLUMNS: nothing is cut, for `grep` and files."""


def _print_once(snapshot: Snapshot) -> None:
    from rich.console import Console

    from naiad_operations.top.screen import draw

    if sys.stdout.isatty():
        console = Console()
        console.print(draw(snapshot, width=console.width))
        return
    width = os.environ.get("COLUMNS", "")
    console = Console(width=int(width) if width.isdecimal() and int(width) else _PIPE_COLUMNS)
    with console.capture() as captured:
        console.print(draw(snapshot, width=console.width, fills_width=False))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show(reader: TopReader, interval: float, console: Console) -> None:
    """Redraw until the user ends it; while the server does not answer, its last figures stay, with the reason."""
    from rich.live import Live

    from naiad_operations.top.keys import single_keys
    from naiad_operations.top.view import View

    # The first error ends the command: nothing can be shown yet.
    view = View(reader.read())
    readings: SimpleQueue[Snapshot | BaseException] = SimpleQueue()
    threading.Thread(target=_read_repeatedly, args=(reader, interval, readings), daemon=True).start()
    with single_keys() as keys, Live(view, console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.refresh()
            # A key or a reading, whichever is first.
            while not (key := keys.read(_KEY_SECONDS)) and readings.empty():
                pass
            if view.press(key):
                return
            if not readings.empty():
                _take(view, readings.get())


_KEY_SECONDS = 0.05


def _read_repeatedly(reader: TopReader, interval: float, readings: SimpleQueue[Snapshot | BaseException]) -> None:
    """Read on this thread, so that keys act while a server does not answer."""
    while True:
        time.sleep(interval)
        try:
            readings.put(reader.read())
        except NaiadError as error:
            readings.put(error)
        except BaseException as error:  # noqa: BLE001 - for the other thread to raise
            readings.put(error)
            return


def _take(view: View, reading: Snapshot | BaseException) -> None:
    if isinstance(reading, UnreachableServerError):
        view.problem = f"{time.strftime('%H:%M:%S')}: {reading.message.partition(';')[0]}"
    elif isinstance(reading, NaiadError):
        view.problem = reading.message
    elif isinstance(reading, BaseException):
        raise reading
    else:
        view.snapshot, view.problem = reading, ""
