"""The click group `naiad`: the overview of all sub-commands, and those that click parses."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from naiad import __version__
from naiad.cli.command_line import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, EXIT_USAGE, exit_code_of
from naiad.cli.completion import CompletedFlagCommand, completion_command
from naiad.cli.flag_commands import FLAG_COMMANDS
from naiad.core.errors import NaiadError
from naiad_building.cli.declared import DECLARED_COMMANDS
from naiad_building.cli.env.commands import ENV_COMMANDS
from naiad_operations.cli.init import INIT_COMMANDS
from naiad_operations.top.command import top_command

__all__ = ["naiad_group", "run"]


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
    """Write the first files of a model, a backend or a recipe."""


@naiad_group.group("env", cls=_OrderedGroup)
def _env() -> None:
    """Build, pack, check and clean up execution environments."""


for _name, _flag_command in FLAG_COMMANDS.items():
    naiad_group.add_command(CompletedFlagCommand(_name, _flag_command))
for _command in DECLARED_COMMANDS:
    naiad_group.add_command(_command)
naiad_group.add_command(top_command)
naiad_group.add_command(completion_command)
for _command in INIT_COMMANDS:
    _init.add_command(_command)
for _command in ENV_COMMANDS:
    _env.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line of `naiad`; returns the exit code."""
    output = sys.stdout
    try:
        result = naiad_group.main(args=list(arguments), prog_name="naiad", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except SystemExit:
        # click exits with 1 if the reader of the output is gone, and wraps `sys.stdout` before.
        if sys.stdout is not output:
            return EXIT_OUTPUT_CLOSED
        raise
    except click.UsageError as error:
        _print_usage_error(error)
        return EXIT_USAGE
    except click.ClickException as error:
        error.show()
        return EXIT_FAILURE
    except NaiadError as error:
        click.echo(error.message, err=True)
        return exit_code_of(error)
    return result if isinstance(result, int) else 0


def _print_usage_error(error: click.UsageError) -> None:
    """Print what is wrong with a command line, and as the last line what to do, as `command_line` does."""
    command = "naiad" if error.ctx is None else error.ctx.command_path
    # Newer versions of click raise the help of a group that is called without a command.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    near = getattr(error, "possibilities", None)
    text = error.message if near else error.format_message()
    hint = f"did you mean {near[0]}?" if near else f"`{command} --help` lists arguments and flags"
    if isinstance(error, click.MissingParameter) and error.param and isinstance(error.param.type, click.Choice):
        # click lists the choices in separate lines.
        text = f"missing argument {error.param.human_readable_name.upper()}"
        hint = f"give one of {', '.join(map(str, error.param.type.choices))}"
    click.echo(f"{command}: {text[:1].lower()}{text[1:].removesuffix('.')}", err=True)
    click.echo(hint, err=True)
