"""The sub-commands of `naiad` that click parses, and the overview of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from naiad import __version__
from naiad.cli.env_fetch import FETCHING_COMMANDS
from naiad.cli.env_making import MAKING_COMMANDS
from naiad.cli.env_store import STORE_COMMANDS
from naiad.cli.init import INIT_COMMANDS
from naiad.errors import NaiadError

__all__ = ["run"]

_PASS_ON = {"ignore_unknown_options": True, "help_option_names": []}


class _Group(click.Group):
    """A group that lists its commands in the order in which they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="naiad", message="%(prog)s %(version)s")
def _naiad() -> None:
    """Serve models written in Python, each in its own Python.

    Flags without a command are those of `naiad serve`.
    """


@_naiad.group("init", cls=_Group)
def _init() -> None:
    """Write the first files of a model, a shared backend or a recipe."""


for _command in INIT_COMMANDS:
    _init.add_command(_command)


@_naiad.command("serve", context_settings=_PASS_ON)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def _serve(flags: tuple[str, ...]) -> int:
    """Serve the models of a repository; the same as `tritonserver`."""
    from naiad.cli.serve import serve

    return serve(flags, "naiad serve")


@_naiad.command("explain", context_settings=_PASS_ON)
@click.argument("flags", metavar="MODEL [FLAGS]...", nargs=-1, type=click.UNPROCESSED)
def _explain(flags: tuple[str, ...]) -> int:
    """Say what would run a model, and why."""
    from naiad.cli.explain import explain

    return explain(flags)


@_naiad.command("doctor", context_settings=_PASS_ON)
@click.argument("flags", metavar="MODEL_REPOSITORY [FLAGS]...", nargs=-1, type=click.UNPROCESSED)
def _doctor(flags: tuple[str, ...]) -> int:
    """Say what would go wrong with a repository here."""
    from naiad.cli.doctor import doctor

    return doctor(flags)


@_naiad.command("bundle", context_settings=_PASS_ON)
@click.argument("flags", metavar="[FLAGS]...", nargs=-1, type=click.UNPROCESSED)
def _bundle(flags: tuple[str, ...]) -> int:
    """Put a server and its models into one file or image."""
    from naiad.cli.bundle import bundle

    return bundle(flags)


@_naiad.command("deploy", context_settings=_PASS_ON)
@click.argument("flags", metavar="systemd|kubernetes|kserve [FLAGS]...", nargs=-1, type=click.UNPROCESSED)
def _deploy(flags: tuple[str, ...]) -> int:
    """Write a unit of systemd, or what Kubernetes or KServe needs."""
    from naiad.cli.deploy import deploy

    return deploy(flags)


@_naiad.command("run", context_settings=_PASS_ON)
@click.argument("flags", metavar="MODEL_DIR [FLAGS]...", nargs=-1, type=click.UNPROCESSED)
def _run_once(flags: tuple[str, ...]) -> int:
    """Load one model, give it one request, print what comes back."""
    from naiad.cli.run import run as run_once

    return run_once(flags)


@_naiad.group("env", cls=_Group)
def _env() -> None:
    """Build, pack, check and clean up execution environments."""


for _command in (*MAKING_COMMANDS, *FETCHING_COMMANDS, *STORE_COMMANDS):
    _env.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line of `naiad`; the exit code."""
    try:
        result = _naiad.main(args=list(arguments), prog_name="naiad", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except NaiadError as error:
        click.echo(error.message, err=True)
        return 1
    return result if isinstance(result, int) else 0
