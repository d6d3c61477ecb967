"""`naiad init model | backend`: writes the first files of a project; they run without changes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from naiad.cli.click_options import OrderedGroup, json_option
from naiad.cli.json_output import print_json

if TYPE_CHECKING:
    from naiad_operations.scaffold.project import Scaffold

__all__ = ["init_group"]

_directory = click.option(
    "--directory",
    "root",
    default=".",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the project; default: the current folder.",
)
_repository = click.option(
    "--model-repository", "repository", default="models", show_default=True, help="Model repository in the project."
)


@click.command("model")
@click.argument("name")
@click.option("--from", "function", metavar="MODULE:FUNCTION", help="Serve this function; its type hints are read.")
@_repository
@_directory
@json_option
def _model(name: str, function: str | None, repository: str, root: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Write the model NAME: code, config.pbtxt, a client and a test.

    With --from at a terminal, ask for the number of dimensions of arrays, which no hint gives.
    """
    from naiad_operations.scaffold.templates import function_model, plain_model

    ask = _ask_rank if sys.stdin.isatty() and sys.stdout.isatty() and not json else None
    if function is None:
        scaffold = plain_model(name, repository)
    else:
        scaffold = function_model(name, repository, function, [os.fspath(root), str(Path.cwd()), *sys.path], ask)
    _write(scaffold, root, json=json)


@click.command("backend", short_help="Write the shared backend NAME, and a model that uses it.")
@click.argument("name")
@click.option(
    "--backend-directory", "backends", default="backends", show_default=True, help="Folder of backends in the project."
)
@_repository
@_directory
@json_option
def _backend(name: str, backends: str, repository: str, root: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Write the shared backend NAME, and a model that uses it, with a client and a test."""
    from naiad_operations.scaffold.templates import backend

    _write(backend(name, repository, backends), root, json=json)


def _ask_rank(tensor: str) -> int:
    return int(click.prompt(f"number of dimensions of '{tensor}'", default=1, type=click.IntRange(1, 32)))


def _write(scaffold: Scaffold, root: Path, *, json: bool) -> None:
    from naiad_operations.scaffold.project import write

    written = write(scaffold, root)
    if json:
        print_json({"folder": root, "files": written, "notes": scaffold.notes, "next": scaffold.commands})
        return
    for path in written:
        click.echo(f"wrote {path}")
    for note in scaffold.notes:
        click.echo(f"note: {note}")
    click.echo(f"next{'' if root == Path() else f', in {root}'}:")
    for command in scaffold.commands:
        click.echo(f"    {command}")


@click.group("init", cls=OrderedGroup)
def init_group() -> None:
    """Write the first files of a model or a backend."""


for _command in (_model, _backend):
    init_group.add_command(_command)
