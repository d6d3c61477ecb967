"""`naiad env build` and `naiad env pack`: from a recipe to an archive."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["MAKING_COMMANDS"]


@click.command("build")
@click.argument("recipe", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to build in.")
@click.option("--python", metavar="VERSION", help="A version of Python or an interpreter, instead of the recipe's.")
def _build(recipe: Path, output: Path, python: str | None) -> None:
    """Build an environment from the folder RECIPE."""
    from naiad.environments.build import build

    built = build(recipe, output, python=python, progress=click.echo)
    click.echo(f"built {built.prefix} with Python {built.version} and {len(built.packages)} packages")


@click.command("pack")
@click.argument("prefix", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The archive, ENV.tar.zst unless given.")
@click.option(
    "--format",
    "archive_format",
    type=click.Choice(["tar.zst", "tar.gz", "tar.bz2", "tar.xz", "tar", "zip"]),
    help="Its format, instead of the one its name says.",
)
@click.option("--force", is_flag=True, help="Replace an existing archive.")
def _pack(prefix: Path, output: Path | None, archive_format: str | None, force: bool) -> None:  # noqa: FBT001 - click's way
    """Pack the environment in PREFIX into an archive that any machine of the same kind can unpack.

    PREFIX may be a conda environment, a venv, what `naiad env build` made, or a Python with its packages.
    """
    from naiad.environments.pack import default_output, pack
    from naiad.environments.reporter import default_reporter

    archive = output or default_output(prefix, archive_format)
    packed = pack(prefix, archive, format=archive_format, force=force, reporter=default_reporter())
    for warning in packed.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"packed {packed.archive} ({packed.size / 1e6:.0f} MB), sha256:{packed.digest}")


MAKING_COMMANDS: tuple[click.Command, ...] = (_build, _pack)
"""In the order in which they are needed."""
