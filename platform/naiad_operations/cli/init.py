"""`naiad init`: writes the first files of a project, which run without changes, or the model of a saved file."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from naiad.cli.click_options import OrderedGroup, json_option
from naiad.cli.json_output import print_json

if TYPE_CHECKING:
    from naiad_operations.scaffold.project import Scaffold

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


_link = click.option("--link", is_flag=True, help="Link to the file of --from instead of copying it.")


@click.command("model")
@click.argument("name")
@click.option(
    "--from",
    "origin",
    metavar="MODULE:FUNCTION|FILE",
    help="Serve this function, whose type hints are read, or a file or directory that a framework saved.",
)
@_link
@_repository
@_directory
@json_option
def _model(name: str, origin: str | None, link: bool, repository: str, root: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Write the model NAME: code, config.pbtxt, a client and a test.

    With a file or directory that a framework saved in --from, write config.pbtxt and that file.

    With --from at a terminal, ask for the number of dimensions of arrays, which no hint gives.
    """
    from naiad_operations.scaffold.templates import function_model, plain_model

    if origin is not None and not _is_code(origin):
        _write_saved(origin, name, repository, root, links=link, json=json)
        return
    ask = _ask_rank if sys.stdin.isatty() and sys.stdout.isatty() and not json else None
    if origin is None:
        scaffold = plain_model(name, repository)
    else:
        scaffold = function_model(name, repository, origin, [os.fspath(root), str(Path.cwd()), *sys.path], ask)
    _write(scaffold, root, json=json)


def _is_code(origin: str) -> bool:
    """Whether a value of --from is meant as a function, perhaps in a wrong form, rather than as a saved file."""
    path = Path(origin)
    return path.suffix == ".py" or (not path.exists() and (":" in origin or Path(f"{origin}.py").is_file()))


def _write_saved(origin: str, name: str, repository: str, root: Path, *, links: bool, json: bool) -> None:
    """Write the model of a file or directory that a framework saved; its name is that of the file if it is empty."""
    from naiad.models.repository.saved_files import read_saved_file
    from naiad_operations.scaffold.templates import saved_model

    file = read_saved_file(Path(origin))
    _write(saved_model(name or file.name, repository, file), root, json=json, links=links)


@click.command("backend", short_help="Write the shared backend NAME, and a model that uses it.")
@click.argument("name")
@click.option(
    "--backend-directory", "backends", default="backends", show_default=True, help="Folder of backends in the project."
)
@click.option("--native", is_flag=True, help="Write a backend in C, and the header that it needs.")
@_repository
@_directory
@json_option
def _backend(name: str, backends: str, native: bool, repository: str, root: Path, json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Write the shared backend NAME, and a model that uses it, with a client and a test.

    With --native, write a backend in C, the header with what it calls, and a model.
    """
    from naiad_operations.scaffold.templates import backend, native_backend

    _write((native_backend if native else backend)(name, repository, backends), root, json=json)


def _ask_rank(tensor: str) -> int:
    return int(click.prompt(f"number of dimensions of '{tensor}'", default=1, type=click.IntRange(1, 32)))


def _write(scaffold: Scaffold, root: Path, *, json: bool, links: bool = False) -> None:
    from naiad_operations.scaffold.project import write

    written = write(scaffold, root, links=links)
    if json:
        print_json({"folder": root, "files": written, "notes": scaffold.notes, "next": scaffold.commands})
        return
    for path in written:
        click.echo(f"wrote {path}")
    for note in scaffold.notes:
        click.echo(f"note: {note}")
    for name in scaffold.files:
        if name.startswith("clients/") and importlib.util.find_spec("tritonclient") is None:
            click.echo(f"note: {name} needs tritonclient: pip install 'tritonclient[http]'")
    click.echo(f"next{'' if root == Path() else f', in {root}'}:")
    for command in scaffold.commands:
        click.echo(f"    {command}")


@click.group("init", cls=OrderedGroup, invoke_without_command=True)
@click.option("--from", "origin", metavar="FILE", help="Write the model of a file or directory that a framework saved.")
@click.option("--name", default="", help="Name of the model; default: that of the file or its folder.")
@_link
@_repository
@_directory
@json_option
@click.pass_context
def init_group(
    context: click.Context,
    origin: str | None,
    name: str,
    link: bool,  # noqa: FBT001 - click passes options by name
    repository: str,
    root: Path,
    json: bool,  # noqa: FBT001 - likewise
) -> None:
    """Write the first files of a model or a backend.

    With --from, write the model of a file that a framework saved.
    """
    if context.invoked_subcommand is not None:
        if origin is not None:
            raise click.UsageError(f"--from is written after '{context.invoked_subcommand}' and its NAME")
        return
    if origin is None:
        click.echo(context.get_help())
        return
    if _is_code(origin):
        raise click.UsageError(
            f"--from={origin} does not name a file that a framework saved; for a function, use "
            "`naiad init model NAME --from MODULE:FUNCTION`"
        )
    _write_saved(origin, name, repository, root, links=link, json=json)


for _command in (_model, _backend):
    init_group.add_command(_command)
