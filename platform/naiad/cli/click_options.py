"""Options and output that several of the commands that click parses have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """Give a command the option `--json`, as its parameter `json`."""
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


def progress_printer(*, json: bool) -> Callable[[str], None]:
    """Prints the lines of a command's progress: on stderr if stdout has its JSON."""
    return partial(click.echo, err=json)


class OrderedGroup(click.Group):
    """A group that lists its commands in the order of their registration; click sorts them by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)
