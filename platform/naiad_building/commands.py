"""The sub-commands of `naiad` about environments that are built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from naiad.cli.flag_commands import FlagCommand

if TYPE_CHECKING:
    import click

FLAG_COMMANDS: dict[str, FlagCommand] = {}


def click_commands() -> Mapping[str, click.Command]:
    """The commands that click parses, by their names."""
    from naiad_building.cli.declared import add_command, lock_command, remove_command
    from naiad_building.cli.env.commands import env_group

    return {"add": add_command, "remove": remove_command, "lock": lock_command, "env": env_group}
