"""The click group `naiad`: the overview of all sub-commands, and those that click parses."""

from __future__ import annotations

from collections.abc import Sequence

import click

from naiad import __version__
from naiad.cli.env.commands import ENV_COMMANDS
from naiad.cli.flag_commands import FLAG_COMMANDS, FlagCommand
from naiad.cli.init import INIT_COMMANDS
from naiad.errors import NaiadError

__all__ = ["naiad_group", "run"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class _OrderedGroup(click.Group):
    """A group that lists its commands in the order of their registration; click sorts them by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


@click.group(cls=_OrderedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="naiad", message="%(prog)s %(version)s")
def naiad_group() -> None:
    """Serve models written in Python, each in its own Python.

    Flags without a command are those of `naiad serve`.
    """


@naiad_group.group("init", cls=_OrderedGroup)
def _init() -> None:
    """Write the first files of a model, a shared backend or a recipe."""


@naiad_group.group("env", cls=_OrderedGroup)
def _env() -> None:
    """Build, pack, check and clean up execution environments."""


def _overview_entry(name: str, command: FlagCommand) -> click.Command:
    """A click command that passes all its arguments on; `naiad.cli.main` runs these commands without click."""

    def run_command(arguments: tuple[str, ...]) -> int:
        return command.run(arguments)

    return click.Command(
        name,
        callback=run_command,
        params=[
            click.Argument(["arguments"], metavar=command.arguments, nargs=-1, type=click.UNPROCESSED),
        ],
        help=command.summary,
        short_help=command.summary,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )


for _name, _flag_command in FLAG_COMMANDS.items():
    naiad_group.add_command(_overview_entry(_name, _flag_command))
for _command in INIT_COMMANDS:
    _init.add_command(_command)
for _command in ENV_COMMANDS:
    _env.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line of `naiad`; returns the exit code."""
    try:
        result = naiad_group.main(args=list(arguments), prog_name="naiad", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except NaiadError as error:
        click.echo(error.message, err=True)
        return 1
    return result if isinstance(result, int) else 0
