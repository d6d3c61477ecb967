"""The click group `naiad`: the overview of all sub-commands, and those that click parses."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from naiad import __version__
from naiad.cli.command_line import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, EXIT_USAGE, exit_code_of
from naiad.cli.completion import TRITONSERVER, TRITONSERVER_VARIABLE, CompletedFlagCommand, completion_command
from naiad.cli.examples import examples_text
from naiad.cli.flag_commands import all_flag_commands
from naiad.core.errors import NaiadError
from naiad.core.extensions import command_modules, extension_of_command, load_from_extension

_ORDER = (
    *("init", "env"),
    *("serve", "run", "explain", "doctor", "bench", "tune", "bundle", "push", "pull", "verify", "deploy", "ray"),
    *("add", "remove", "lock", "top", "completion"),
)  # the order of the overview, whichever packages bring the commands


_ELSEWHERE = {
    "stop": "a server ends by Ctrl-C, by SIGTERM, or by what started it (systemctl stop, docker stop)",
    "restart": "what started a server restarts it (systemctl restart, docker restart)",
    "start": "did you mean serve?",
    "status": "`naiad top` shows what a running server does",
    "ps": "`naiad top` shows what a running server does",
    "logs": "a server writes its log to stderr, or to the file that --log-file names",
}  # what does the work of commands that other programs have, and that naiad lacks


class _AllCommands(click.Group):
    """All sub-commands, in the order of their registration. Those of a package that is not installed say so."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        extension = extension_of_command(cmd_name)
        if found is None and extension is not None:
            load_from_extension(f"{extension.package}.commands:click_commands", f"run `naiad {cmd_name}`")
        return found


@click.group(cls=_AllCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="naiad", message="%(prog)s %(version)s")
def naiad_group() -> None:
    """Serve models written in Python, each in its own Python.

    Flags without a command are those of `naiad serve`.
    """


def _installed_commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {
        name: CompletedFlagCommand(name, command) for name, command in all_flag_commands().items()
    }
    for module in command_modules():
        found.update(module.click_commands())
    found["completion"] = completion_command
    return found


def _with_examples(command: click.Command, name: str) -> click.Command:
    """The command, and those of a group, with examples at the end of their help."""
    if examples := examples_text(name):
        command.epilog = f"\b\n{examples}"  # click joins lines, unless this stands before them
    for word, each in command.commands.items() if isinstance(command, click.Group) else ():
        _with_examples(each, f"{name} {word}")
    return command


for _name, _command in sorted(_installed_commands().items(), key=lambda each: _ORDER.index(each[0])):
    naiad_group.add_command(_with_examples(_command, _name), _name)


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
        _print_usage_error(error, arguments[0] if arguments else "")
        return EXIT_USAGE
    except click.ClickException as error:
        error.show()
        return EXIT_FAILURE
    except NaiadError as error:
        click.echo(error.message, err=True)
        return exit_code_of(error)
    return result if isinstance(result, int) else 0


def complete_tritonserver() -> int:
    """Print what completes a command line of the program `tritonserver`, as the shell's script asks; the exit code."""
    command = naiad_group.commands["serve"]
    return shell_complete(command, {}, TRITONSERVER, TRITONSERVER_VARIABLE, os.environ[TRITONSERVER_VARIABLE])


def _groups_with(name: str) -> list[str]:
    """The commands that have a sub-command of this name, unless it is a command itself."""
    commands = naiad_group.commands
    groups = {group: found.commands for group, found in commands.items() if isinstance(found, click.Group)}
    return [] if name in commands else [group for group, below in groups.items() if name in below]


def _print_usage_error(error: click.UsageError, first: str) -> None:
    """Print what is wrong with a command line, and as the last line what to do, as `command_line` does."""
    command = "naiad" if error.ctx is None else error.ctx.command_path
    # Newer versions of click raise the help of a group that is called without a command.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    near = getattr(error, "possibilities", None)
    text = error.message if near else error.format_message()
    is_group = error.ctx is not None and isinstance(error.ctx.command, click.Group)
    listed = "commands and flags" if error.ctx is None or is_group else "arguments and flags"
    hint = f"did you mean {near[0]}?" if near else f"`{command} --help` lists {listed}"
    if error.ctx is None or error.ctx.parent is None:
        within = [f"naiad {group} {first}" for group in _groups_with(first)]
        hint = _ELSEWHERE.get(first) or (f"did you mean {' or '.join(within)}?" if within else hint)
    if isinstance(error, click.MissingParameter) and error.param and isinstance(error.param.type, click.Choice):
        # click lists the choices in separate lines.
        text = f"missing argument {error.param.human_readable_name.upper()}"
        hint = f"give one of {', '.join(map(str, error.param.type.choices))}"
    click.echo(f"{command}: {text[:1].lower()}{text[1:].removesuffix('.')}", err=True)
    click.echo(hint, err=True)
