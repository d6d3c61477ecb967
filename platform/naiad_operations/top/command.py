"""The command `naiad top`."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from naiad.cli.click_options import json_option
from naiad.cli.http_reading import (
    DEFAULT_URL,
    HttpStatusError,
    ServerAddress,
    UnreachableServerError,
    basic_authorization,
    parse_header,
)
from naiad.cli.json_output import print_json
from naiad.core.errors import NaiadError

if TYPE_CHECKING:
    from rich.console import Console

    from naiad_operations.top.snapshot import Snapshot

_KEY_SECONDS = 0.05
# Largest width of lines that no terminal shows, without COLUMNS: nothing is cut, for `grep` and files.
_PIPE_COLUMNS = 1000
_NOT_FOUND, _UNAUTHORIZED, _FORBIDDEN = 404, 401, 403
_REMEDIES = {
    _NOT_FOUND: "it has no page at /ui, whose figures these are; start it with --ui=true, or name its HTTP port",
    _UNAUTHORIZED: "its page needs a password; add --ui-password=FILE",
    _FORBIDDEN: "its page is not served to this address; start it with --ui-password=FILE or --ui-address",
}
_SEQUENCES = {
    "up": ("\x1b[A", "\x1bOA", "k"),
    "down": ("\x1b[B", "\x1bOB", "j"),
    "page up": ("\x1b[5~", "b"),
    "page down": ("\x1b[6~", " "),
    "home": ("\x1b[H", "\x1b[1~", "g"),
    "end": ("\x1b[F", "\x1b[4~", "G"),
}
_KEYS = {sequence: key for key, sequences in _SEQUENCES.items() for sequence in sequences}
# One key: the sequence of a key without a letter (ECMA-48, section 5.4), or a letter.
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)


@click.command("top", short_help="Show the models and guests of a running server, live.")
@click.argument("url", default="")
@click.option("--url", "named", metavar="URL", default="", help="The same as the argument.")
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
    interval: float,
    once: bool,  # noqa: FBT001 - click passes options by name
    password: Path | None,
    headers: tuple[str, ...],
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Show the models and guests of the server at URL, which has --ui=true; q or Ctrl-C ends it.

    In a terminal, s and S choose the column that sorts the models, r reverses the order, and arrows scroll.

    URL is the address of its HTTP port; default: http://localhost:8000.
    """
    if url and named:
        raise click.UsageError(f"the server is named twice, {url} and {named}", click.get_current_context())
    given = dict(map(parse_header, headers))
    if password is not None:
        given |= basic_authorization(password)
    server = ServerAddress(url or named or DEFAULT_URL, given)
    try:
        if json:
            print_json(_read(server))
        elif once or not sys.stdout.isatty():
            _print_once(_read(server))
        else:
            from rich.console import Console

            show(lambda: _read(server), interval, Console())
    except KeyboardInterrupt:
        return  # the way to end it


def _read(server: ServerAddress) -> Snapshot:
    from naiad_operations.top.snapshot import snapshot_of

    try:
        return snapshot_of(server.url, server.get("/ui/data/state"), server.get("/ui/data/guests"))
    except HttpStatusError as error:
        if error.status not in _REMEDIES:
            raise
        raise NaiadError(f"cannot read the server at {server.url}: {_REMEDIES[error.status]}") from error
    except ValueError as error:  # another program's page
        raise NaiadError(f"cannot read the server at {server.url}: {_REMEDIES[_NOT_FOUND]}") from error


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


def show(read: Callable[[], Snapshot], interval: float, console: Console) -> None:
    """Redraw until the user ends it; while the server does not answer, its last figures stay, with the reason."""
    from rich.live import Live

    from naiad_operations.top.view import View

    # The first error ends the command: nothing can be shown yet.
    view = View(read())
    readings: SimpleQueue[Snapshot | BaseException] = SimpleQueue()
    threading.Thread(target=_read_repeatedly, args=(read, interval, readings), daemon=True).start()
    with _single_keys() as pressed, Live(view, console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.refresh()
            # A key or a reading, whichever is first.
            while not (keys := pressed(_KEY_SECONDS)) and readings.empty():
                pass
            if any(view.press(key) for key in keys):
                return
            if not readings.empty():
                reading = readings.get()
                if isinstance(reading, UnreachableServerError):
                    view.problem = f"{time.strftime('%H:%M:%S')}: {reading.message.partition(';')[0]}"
                elif isinstance(reading, NaiadError):
                    view.problem = reading.message
                elif isinstance(reading, BaseException):
                    raise reading
                else:
                    view.snapshot, view.problem = reading, ""


def _read_repeatedly(
    read: Callable[[], Snapshot], interval: float, readings: SimpleQueue[Snapshot | BaseException]
) -> None:
    """Read on this thread, so that keys act while a server does not answer."""
    while True:
        time.sleep(interval)
        try:
            readings.put(read())
        except NaiadError as error:
            readings.put(error)
        except BaseException as error:  # noqa: BLE001 - for the other thread to raise
            readings.put(error)
            return


@contextmanager
def _single_keys() -> Iterator[Callable[[float], list[str]]]:
    """What waits for some seconds for keys of the terminal, which sends no whole lines meanwhile.

    A key is a letter, or the name of another key. Ctrl-C still interrupts. Without a terminal there are no keys.
    """
    if sys.stdin is None or not sys.stdin.isatty():

        def wait(seconds: float) -> list[str]:
            time.sleep(seconds)
            return []

        yield wait
        return
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)

    def read(seconds: float) -> list[str]:
        if not select.select([terminal], [], [], seconds)[0]:
            return []
        text = os.read(terminal, 256).decode("utf-8", "replace")
        return [_KEYS.get(key, key) for key in _KEY.findall(text)]

    try:
        tty.setcbreak(terminal)
        yield read
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)
