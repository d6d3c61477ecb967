"""`naiad env lock`, `download`, `build` and `pack`: from a recipe to an archive."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["MAKING_COMMANDS"]


_RECIPE = click.argument("recipe", type=click.Path(exists=True, file_okay=False, path_type=Path))
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("lock", short_help="Write down, with digests, what a recipe comes to.")
@_RECIPE
@click.option(
    "--python", "pythons", metavar="VERSION", multiple=True, help="Resolve for this version alone; may be repeated."
)
def _lock(recipe: Path, pythons: tuple[str, ...]) -> None:
    """Write down, with digests, what the folder RECIPE comes to under each Python it is for.

    Without --python that is every version on this machine that the recipe takes. Builds then install exactly this.
    """
    from naiad.environments.building.locking import lock

    file, chosen = lock(recipe, pythons=pythons, progress=click.echo)
    held = ", ".join(f"{len(pins)} packages for Python {python}" for python, pins in chosen.items())
    click.echo(f"wrote {file}: {held}")


@click.command("build")
@_RECIPE
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to build in.")
@click.option("--python", metavar="VERSION", help="A version of Python or an interpreter, instead of the recipe's.")
@click.option("--wheels", multiple=True, type=_FOLDER, help="A folder of wheels to look in; may be repeated.")
@click.option("--offline", is_flag=True, help="Look nowhere but in these folders.")
@click.option(
    "--installer",
    type=click.Choice(["auto", "pip", "uv"]),
    default="auto",
    help="What installs packages; uv where it is installed unless given.",
)
def _build(
    recipe: Path,
    output: Path,
    python: str | None,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click's way
    installer: str,
) -> None:
    """Build an environment from the folder RECIPE."""
    from naiad.environments.building.build import build
    from naiad.environments.building.installers import InstallOptions
    from naiad.environments.progress import default_reporter

    options = InstallOptions(installer=installer, wheels=wheels, offline=offline)
    built = build(recipe, output, python=python, options=options, progress=click.echo, reporter=default_reporter())
    click.echo(f"built {built.prefix} with Python {built.version} and {len(built.packages)} packages")


@click.command("download", short_help="Fetch a recipe's wheels, to build without a network.")
@_RECIPE
@click.option("-o", "--output", required=True, type=_FOLDER, help="Directory for the wheels.")
@click.option("--python", metavar="VERSION", help="A version of Python or an interpreter, instead of the recipe's.")
def _download(recipe: Path, output: Path, python: str | None) -> None:
    """Fetch the wheels of the folder RECIPE, for `naiad env build --offline --wheels` elsewhere."""
    from naiad.environments.building.build import fetch_wheels
    from naiad.environments.progress import default_reporter

    version = fetch_wheels(recipe, output, python=python, progress=click.echo, reporter=default_reporter())
    click.echo(f"fetched {len(list(output.iterdir()))} files for Python {version} into {output}")


@click.command("pack", short_help="Pack an environment into an archive.")
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
    from naiad.environments.building.pack import default_output, pack
    from naiad.environments.progress import default_reporter

    archive = output or default_output(prefix, archive_format)
    packed = pack(prefix, archive, format=archive_format, force=force, reporter=default_reporter())
    for warning in packed.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"packed {packed.archive} ({packed.size / 1e6:.0f} MB), sha256:{packed.digest}")


MAKING_COMMANDS: tuple[click.Command, ...] = (_lock, _download, _build, _pack)
"""In the order in which they are needed."""
