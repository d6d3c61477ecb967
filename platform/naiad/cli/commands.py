"""The sub-commands of `naiad` that click parses, and the overview of all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from naiad import __version__
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

    Without a command, flags are those of `naiad serve`: `naiad --model-repository=models`.
    """


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


@_naiad.command("run", context_settings=_PASS_ON)
@click.argument("flags", metavar="MODEL_DIR [FLAGS]...", nargs=-1, type=click.UNPROCESSED)
def _run_once(flags: tuple[str, ...]) -> int:
    """Load one model, give it one request, print what comes back."""
    from naiad.cli.run import run as run_once

    return run_once(flags)


@_naiad.group("env", cls=_Group)
def _env() -> None:
    """Build, pack and list execution environments."""


@_env.command("build")
@click.argument("recipe", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to build in.")
@click.option("--python", metavar="VERSION", help="A version of Python or an interpreter, instead of the recipe's.")
def _build(recipe: Path, output: Path, python: str | None) -> None:
    """Build an environment from the folder RECIPE."""
    from naiad.environments.build import build

    built = build(recipe, output, python=python, progress=click.echo)
    click.echo(f"built {built.prefix} with Python {built.version} and {len(built.packages)} packages")


@_env.command("pack")
@click.argument("prefix", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The archive to write.")
@click.option(
    "--format",
    "archive_format",
    type=click.Choice(["tar.gz", "tar.bz2", "tar.xz", "tar.zst", "tar", "zip"]),
    help="Its format, instead of the one its name says.",
)
@click.option("--force", is_flag=True, help="Replace an existing archive.")
def _pack(prefix: Path, output: Path, archive_format: str | None, force: bool) -> None:  # noqa: FBT001 - click's way
    """Pack the environment in PREFIX into an archive that any machine of the same kind can unpack."""
    from naiad.environments.pack import pack

    packed = pack(prefix, output, format=archive_format, force=force)
    for warning in packed.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"packed {packed.archive} ({packed.size / 1e6:.0f} MB)")


@_env.command("list")
@click.option("--env-store", default="", help="The store, instead of $NAIAD_STORE or the one in the user's cache.")
def _list(env_store: str) -> None:
    """List the environments that were unpacked for servers."""
    from naiad.cli.env_list import list_environments
    from naiad.config.options import environment_store

    click.echo(list_environments(environment_store(env_store, os.environ)), nl=False)


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
