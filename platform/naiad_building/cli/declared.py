"""`naiad add`, `naiad remove` and `naiad lock`: the packages of one model, in its own file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from naiad.cli.click_options import json_option, progress_printer
from naiad.cli.json_output import print_json
from naiad.config.model.declared_environment import PYTHON_ENV, is_declaration
from naiad.core.errors import InterpreterNotFoundError, RepositoryError, ResolutionError
from naiad.core.quantities import size_text
from naiad.models.resolution.manifest import read_backend_manifest

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from naiad.config.model.model_config_pb2 import ModelConfig
    from naiad_building.declared.locking import LockCheck, LockedDeclaration, LockRequest
    from naiad_building.recipe import Recipe

_MODEL = click.argument("model", type=click.Path(exists=True, path_type=Path))
_PYTHON = click.option("--python", metavar="VERSION", help="Resolve with this version of Python, such as 3.12.")
_WHEELS = click.option(
    "--wheels",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of wheels to search; may be repeated.",
)
_OFFLINE = click.option("--offline", is_flag=True, help="Resolve from these folders only.")
_NAMED = 3
"""Packages of unknown sizes that are named."""
_CUDA = ("nvidia-", "cuda-", "triton")
"""Beginnings of the names of packages that PyTorch needs on GPUs alone."""
_PARAMETER = "EXECUTION_ENV_PATH"
_PYTHON_PARAMETER = "PYTHON_VERSION"


@click.command("add", short_help="Add packages to a model's own file, and lock them.")
@_MODEL
@click.argument("packages", nargs=-1, required=True)
@_PYTHON
@_WHEELS
@_OFFLINE
@json_option
def add_command(
    model: Path,
    packages: tuple[str, ...],
    python: str | None,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click passes options by name
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Add PACKAGES to the script block of MODEL, and write the lock beside it.

    MODEL is a model's directory, a shared backend's, or a Python file. PACKAGES are requirements as for pip, such as
    scikit-learn==1.5.*
    """
    from naiad_building.declared.locking import adding, lock_declaration

    file = _editable_script(model, removes=False)
    request = _request(file, model, python, wheels, offline=offline, json=json)
    locked = lock_declaration(request, adding(file, packages))
    if json:
        print_json({"file": file, "added": packages, **_facts(locked)})
        return
    click.echo(f"added {', '.join(packages)} to {file}")
    _print_locked(locked)


@click.command("remove", short_help="Remove packages from a model's own file, and lock the others.")
@_MODEL
@click.argument("packages", nargs=-1, required=True)
@_PYTHON
@_WHEELS
@_OFFLINE
@json_option
def remove_command(
    model: Path,
    packages: tuple[str, ...],
    python: str | None,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click passes options by name
    json: bool,  # noqa: FBT001 - click passes options by name
) -> None:
    """Remove PACKAGES from the script block of MODEL, and write the lock beside it.

    MODEL is a model's directory, a shared backend's, or a Python file. PACKAGES are names. What only they needed leaves
    the lock, too.
    """
    from naiad_building.declared.locking import lock_declaration, removing

    file = _editable_script(model, removes=True)
    request = _request(file, model, python, wheels, offline=offline, json=json)
    locked = lock_declaration(request, removing(file, packages))
    if json:
        print_json({"file": file, "removed": packages, **_facts(locked)})
        return
    click.echo(f"removed {', '.join(packages)} from {file}")
    _print_locked(locked)


@click.command("lock", short_help="Write the exact packages of a model, with digests.")
@_MODEL
@_PYTHON
@_WHEELS
@_OFFLINE
@click.option(
    "--download",
    type=click.Path(file_okay=False, path_type=Path),
    help="Download the wheels into this folder, for servers with --offline.",
)
@click.option("--upgrade", is_flag=True, help="Take the newest versions, also of packages that are locked already.")
@click.option(
    "--check", is_flag=True, help="Write nothing; show what would change. The exit code is 1 if anything would."
)
@json_option
def lock_command(
    model: Path,
    python: str | None,
    wheels: tuple[Path, ...],
    offline: bool,  # noqa: FBT001 - click passes options by name
    download: Path | None,
    upgrade: bool,  # noqa: FBT001 - click passes options by name
    check: bool,  # noqa: FBT001 - click passes options by name
    json: bool,  # noqa: FBT001 - click passes options by name
) -> int:
    """Resolve the packages that MODEL declares, and write them with their digests into a lock beside it.

    MODEL is a model's directory, a shared backend's, the folder of a recipe, or a file: a script with a block,
    requirements.txt, pyproject.toml or environment.yml. Servers and builds then install exactly these
    packages.
    """
    from naiad_building.declared.locking import check_lock, fetch_locked_wheels, lock_declaration

    if check and (upgrade or download is not None):
        raise click.UsageError(
            f"--check writes nothing, so it cannot be used with {'--upgrade' if upgrade else '--download'}"
        )
    request = _request(_declaration_of(model), model, python, wheels, offline=offline, json=json, is_upgrade=upgrade)
    if check:
        checked = check_lock(request)
        if json:
            print_json({"lock": checked.lock, "is_current": checked.is_current, "changes": checked.changes})
        else:
            _print_check(checked, model)
        return 0 if checked.is_current else 1
    locked = lock_declaration(request)
    if not json:
        _print_locked(locked)
    count = None
    if download is not None:
        count = fetch_locked_wheels(locked, download)
    if json:
        print_json({**_facts(locked), "download": download, "downloaded": count})
    elif download is not None:
        click.echo(f"{download} has {count} files for Python {locked.python}")
    return 0


def _request(
    file: Path,
    model: Path,
    python: str | None,
    wheels: tuple[Path, ...],
    *,
    offline: bool,
    json: bool,
    is_upgrade: bool = False,
) -> LockRequest:
    from packaging.specifiers import SpecifierSet

    from naiad.environments.store.opening import open_store_of
    from naiad_building.base_interpreter import choose_base, inspect_base
    from naiad_building.declared.declaration import read_declaration
    from naiad_building.declared.locking import LockRequest
    from naiad_building.uv_program import InstallOptions

    if python is None and (recipe := _recipe_of(model)) is not None and recipe.conda is None:
        # The one that a build takes: downloaded wheels are for one Python.
        with contextlib.suppress(InterpreterNotFoundError):  # uv may fetch one
            accepted = recipe.python & read_declaration(file).requires_python
            python = inspect_base(choose_base(recipe, accepted, None)).minor
    required, origin = _required_python(model)
    if required is None:
        required, origin = _required_python(file)
    return LockRequest(
        file=file,
        cache=open_store_of("", os.environ) / "interpreters",
        python=python,
        required=SpecifierSet() if required is None else required,
        required_by=origin,
        options=InstallOptions(
            wheels=tuple(folder.absolute() for folder in wheels), offline=offline, progress=progress_printer(json=json)
        ),
        is_upgrade=is_upgrade,
    )


def _facts(locked: LockedDeclaration) -> dict[str, Any]:
    packages = [{"name": name, "version": version} for name, version in sorted(locked.versions.items())]
    return {"lock": locked.lock, "python": _minor(locked), "packages": packages}


def _minor(locked: LockedDeclaration) -> str:
    return ".".join(locked.python.split(".")[:2])


def _print_locked(locked: LockedDeclaration) -> None:
    click.echo(f"wrote {locked.lock}: {len(locked.versions)} packages for Python {_minor(locked)}")
    for name, version in sorted(locked.versions.items()):
        click.echo(f"    {name} {version}")
    if lacking := [pin.name for pin in locked.pins if not pin.has_file_for(locked.python)]:
        click.echo(
            f"note: the lock has no file of {', '.join(lacking)} for Python {_minor(locked)} on this machine; the "
            "model needs another Python here, which `naiad run` and servers look for"
        )
    sizes = {pin.name: pin.size_for(locked.python) for pin in locked.pins if locked.base is not None}
    if total := sum(sizes.values()):
        unknown = sorted(name for name, size in sizes.items() if not size)
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        others = f"; no size is known of {', '.join(unknown[:_NAMED])}{more}" if unknown else ""
        click.echo(f"an environment of these downloads {'at least ' if unknown else ''}{size_text(total)}{others}")
    if cuda := sum(size for name, size in sizes.items() if name.startswith(_CUDA)):
        click.echo(
            f"{size_text(cuda)} of this is for GPUs of NVIDIA; for processors alone, assign torch with "
            "[tool.uv.sources] to an index of its builds for these, and run `naiad lock` again"
        )


def _print_check(checked: LockCheck, model: Path) -> None:
    if checked.is_current:
        click.echo(f"{checked.lock} is up to date")
        return
    what = f"{checked.resolved.file} has no lock" if checked.lock is None else f"{checked.lock} is not up to date"
    click.echo(f"{what}: `naiad lock {model}` would write, for Python {_minor(checked.resolved)}:")
    for change in checked.changes:
        if change.before and change.after:
            click.echo(f"    {change.name} {change.before} -> {change.after}")
        else:
            click.echo(f"    {'+' if change.after else '-'} {change.name} {change.after or change.before}")
    if not checked.changes:
        click.echo("    the same versions, with other entries: files of packages, or other platforms and Pythons")


def _script_of(model: Path) -> Path:
    if model.is_file():
        return model
    config = _config_of(model)
    name = config.default_model_filename if config is not None and config.default_model_filename else "model.py"
    versions = sorted((path for path in model.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    for folder in (model, *reversed(versions)):
        if (folder / name).is_file():
            return folder / name
    raise RepositoryError(
        f"cannot find the code of '{model}': neither it nor a version in it has a {name}; if it runs on a shared "
        f"backend, list its packages in a requirements.txt, name that in {_PARAMETER}, and run `naiad lock`"
    )


def _editable_script(model: Path, *, removes: bool) -> Path:
    """The script whose block declares the environment of a model or backend, whose packages are to be changed."""
    named = _named_environment(model)
    if named is None:
        return _script_of(model)
    origin, source = named
    if isinstance(source, Path) and source.suffix == ".py":
        return source
    action, preposition, whose = ("remove", "from", "without") if removes else ("add", "to", "with")
    advice = f"{action} them {preposition} {source}, and run `naiad lock {source}`"
    if not (isinstance(source, Path) and is_declaration(source)):
        advice = f"build '{source}' {whose} them, or name no environment there"
    raise RepositoryError(
        f"cannot {action} packages {preposition} {model}: its environment is '{source}', named by {origin}, which wins "
        f"over a script block; {advice}"
    )


def _declaration_of(model: Path) -> Path:
    """The file that declares a model's packages: what is named as its environment, its code, or a file it brings."""
    if (recipe := _recipe_of(model)) is not None:
        if recipe.declaration is None:
            raise RepositoryError(f"nothing to lock in {model}: its env.toml names neither 'requirements' nor 'conda'")
        return recipe.declaration
    named = _named_environment(model) if model.is_dir() else None
    if named is not None and isinstance(named[1], Path) and is_declaration(named[1]):
        return named[1]
    try:
        return _script_of(model)
    except RepositoryError:
        # A model of a shared backend has no code; one that MLflow saved brings what it requires.
        brought = (model / str(_version_of(model)) / name for name in (PYTHON_ENV, f"model/{PYTHON_ENV}"))
        file = next((file for file in brought if file.is_file()), None)
        if file is None:
            raise
        return file


def _named_environment(model: Path) -> tuple[str, Path | str] | None:
    """What names the environment of a model or backend, or of the one that a file is the code of, and the environment.

    None if nothing does, so that a script block counts. An environment that is not here is returned as it is written.
    """
    from naiad.models.resolution.environment import (
        DEFAULT_ENVIRONMENT,
        EnvironmentSearch,
        locate_environment,
        names_environment,
    )
    from naiad.models.resolution.files import Files

    folder = _folder_of(model)
    version = _version_of(model)
    config, manifest = _config_of(folder), read_backend_manifest(folder, Files())
    search = EnvironmentSearch(base=folder, model_dir=folder, version=version)
    parameters = {} if config is None else {name: one.string_value for name, one in config.parameters.items()}
    origin = f"{_PARAMETER}.{version}" if parameters.get(f"{_PARAMETER}.{version}") else _PARAMETER
    text, origin = parameters.get(origin, ""), f"{origin} in {folder / 'config.pbtxt'}"
    if not text and names_environment(python := parameters.get(_PYTHON_PARAMETER, "")):
        text, origin = python, f"{_PYTHON_PARAMETER} in {folder / 'config.pbtxt'}"
    if not text and manifest is not None:
        text, origin = manifest.environment, str(manifest.path)
    if not text and (folder / DEFAULT_ENVIRONMENT).exists():
        text, origin = DEFAULT_ENVIRONMENT, f"the archive of that name in {folder}"
    if not text:
        return None
    try:
        source, _ = locate_environment(text, origin, search, Files())
    except ResolutionError:
        return origin, text
    return origin, source if isinstance(source, Path) else text


def _recipe_of(folder: Path) -> Recipe | None:
    from naiad_building.recipe import RECIPE_FILE, read_recipe

    return read_recipe(folder) if (folder / RECIPE_FILE).is_file() else None


def _required_python(model: Path) -> tuple[SpecifierSet | None, str]:
    """The versions of Python that a model, its backend or a recipe requires, None for any; and where it says so."""
    from naiad.models.resolution.environment import names_environment
    from naiad.models.resolution.files import Files
    from naiad.models.resolution.manifest import parse_python_version
    from naiad_building.recipe import RECIPE_FILE

    if (recipe := _recipe_of(model)) is not None:
        return recipe.python, f"'python' in {model / RECIPE_FILE}"
    folder = _folder_of(model)
    config, manifest = _config_of(folder), read_backend_manifest(folder, Files())
    if config is not None and _PYTHON_PARAMETER in config.parameters:
        text = config.parameters[_PYTHON_PARAMETER].string_value
        origin = f"{_PYTHON_PARAMETER} in {folder / 'config.pbtxt'}"
        return (None, "") if names_environment(text) else (parse_python_version(text, origin), origin)
    return (None, "") if manifest is None else (manifest.requires_python, f"requires-python in {manifest.path}")


def _folder_of(model: Path) -> Path:
    """The directory of a model or backend that a directory or a file belongs to."""
    if model.is_dir():
        return model
    folder = model.absolute().parent
    return folder.parent if folder.name.isdecimal() else folder


def _version_of(model: Path) -> int:
    """The version that a file is the code of, else the highest one."""
    if not model.is_dir():
        name = model.absolute().parent.name
        return int(name) if name.isdecimal() else 0
    return max((int(path.name) for path in model.iterdir() if path.name.isdecimal()), default=0)


def _config_of(model: Path) -> ModelConfig | None:
    from naiad.config.model.text import parse_text

    file = model / "config.pbtxt"
    return parse_text(file.read_text(encoding="utf-8"), str(file)) if file.is_file() else None
