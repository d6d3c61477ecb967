"""Building an environment from a recipe: a copied interpreter with packages, which runs in any folder.

The order of steps matters:

1. Copy the interpreter and check that the copy runs, before any download.
2. Compile the standard library, and record the files as a conda package, so that conda-pack accepts the prefix.
3. Install packages, make their library paths relative, and compile them.
4. Copy the recipe, check glibc and the interpreter again.
5. Write conda's history, which marks the environment as complete. An interrupted build has none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from naiad.config.server.store_location import find_store
from naiad.core.errors import ConfigError, ExecutionEnvironmentError
from naiad.core.real_paths import real_path
from naiad.environments.archives.manifest import host_platform
from naiad.environments.bytecode import compile_environment
from naiad.environments.elf import newest_glibc
from naiad.environments.installed_packages import list_packages
from naiad.environments.post_link import run_post_link_scripts
from naiad.environments.store.opening import open_store
from naiad.environments.store.package_cache import conda_packages
from naiad.sources.interpreters.probe import probe_interpreter
from naiad_building.base_interpreter import BaseInterpreter, choose_base, copy_base, inspect_base
from naiad_building.collecting import record_interpreter, write_history
from naiad_building.declared.declaration import Declaration, find_lock, locked_pins, read_declaration
from naiad_building.recipe import Recipe, copy_recipe, read_recipe
from naiad_building.relocation import relocate_binaries
from naiad_building.uv_program import InstallOptions, Requirements, install, locked_requirements


@dataclass(frozen=True)
class BuiltEnvironment:
    """The result of a build: *base* was copied, and is no longer needed; its own if conda installed it."""

    prefix: Path
    python: Path
    version: str
    base: Path
    packages: tuple[tuple[str, str], ...]


def build(
    recipe_dir: Path, output_prefix: Path, *, python: str | None = None, options: InstallOptions | None = None
) -> BuiltEnvironment:
    """Build the environment of a recipe.

    Args:
        output_prefix: Folder to build in; must be missing or empty. It can be packed, or copied to another machine.
        python: Overrides the recipe: a version (`3.12`, `3.12.1`), or the path of an interpreter.

    Raises ExecutionEnvironmentError if the build fails; all created files are removed.
    """
    recipe = read_recipe(recipe_dir)
    prefix = output_prefix.resolve()
    if prefix.exists() and not (prefix.is_dir() and not any(prefix.iterdir())):
        raise ExecutionEnvironmentError(
            f"cannot build in {prefix}: it exists already; remove it or name another folder"
        )
    if recipe.platform not in ("", host_platform()):
        raise ExecutionEnvironmentError(
            f"cannot build '{recipe.name}' of {recipe.folder}: it is for {recipe.platform}, this machine is "
            f"{host_platform()}; build it on a machine of that kind"
        )
    options = options or InstallOptions()
    if recipe.conda is None:
        base = inspect_base(choose_base(recipe, _accepted_versions(recipe), python))
        # Raises if the lock is for another version, before a file is created.
        installed = requirements_to_install(recipe, base.version, options)
        make = partial(_build_in, recipe, base, prefix, installed, options)
    else:
        make = partial(_build_conda, recipe, prefix, python, options)
    created = _missing_folders(prefix)
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        return _describe_build(prefix, *make())
    except OSError as error:
        _remove(prefix, created)
        raise ExecutionEnvironmentError(f"cannot build '{recipe.name}' in {prefix}: {_reason(error)}") from error
    except BaseException:
        _remove(prefix, created)
        raise


def _accepted_versions(recipe: Recipe) -> SpecifierSet:
    """The versions of Python that the recipe, its declaration and its lock are for."""
    if recipe.requirements is None:
        return recipe.python
    declaration = read_declaration(recipe.requirements)
    lock = find_lock(declaration)
    versions = recipe.python & declaration.requires_python
    return versions if lock is None else versions & lock.requires_python


def requirements_to_install(
    recipe: Recipe, python: str, options: InstallOptions
) -> list[tuple[Requirements, InstallOptions]]:
    """What to install for a version of Python, each with its sources: what the lock selects, else the requirements."""
    if recipe.requirements is None:
        return []
    declaration = read_declaration(recipe.requirements)
    lock = find_lock(declaration)
    pins = locked_pins(declaration, lock, python, options.wheels)
    if pins is None:
        return [(_unlocked(declaration), options)]
    named_in = declaration.file if lock is None else lock.path
    return locked_requirements(pins, named_in, replace(options, indexes=declaration.indexes))


def _unlocked(declaration: Declaration) -> Requirements:
    if not declaration.is_requirements:
        raise ExecutionEnvironmentError(
            f"{declaration.file} has no lock; write it with `{declaration.lock_command}`, or list its dependencies in "
            "a requirements.txt"
        )
    if declaration.editable is not None:
        place, line, path = declaration.editable
        raise ConfigError(
            f"{place} requires '{line}': the code of an editable package stays outside the environment, so that it "
            f"cannot be packed; write {path} without --editable, which copies it"
        )
    # By path, because included files are relative to it.
    return Requirements(f"-r {real_path(declaration.file)}\n", declaration.file, is_locked=False)


def _build_conda(
    recipe: Recipe, prefix: Path, python: str | None, options: InstallOptions
) -> tuple[Path, BaseInterpreter]:
    """Build an environment of conda packages: those of its lock, else of a resolution."""
    # Here, because only these recipes need py-rattler.
    from naiad_building.declared.conda import (
        build_conda_environment,
        read_conda_declaration,
        read_conda_lock,
        resolve_conda,
    )

    assert recipe.conda is not None
    if python is not None and "/" in python:
        raise ConfigError(f"'{recipe.name}' gets its Python from conda: give a version instead of {python}")
    declaration = read_conda_declaration(recipe.conda)
    required = recipe.python & SpecifierSet(f"=={python}.*" if python else "")
    cache = conda_packages(open_store(find_store("", os.environ).path))
    # Beside the prefix, and renamed when it is complete: what a killed build leaves must not look like an environment.
    with tempfile.TemporaryDirectory(dir=prefix.parent, prefix=f".{prefix.name}.") as scratch:
        lock, built = declaration.lock, Path(scratch, "env")
        if not lock.is_file():
            lock = resolve_conda(declaration, Path(scratch), cache, required or None, options)
        packages = read_conda_lock(lock, declaration, required or None)
        built.mkdir()
        build_conda_environment(built, prefix, declaration, packages, cache, recipe.name, options)
        copy_recipe(replace(recipe, variables={**declaration.variables, **recipe.variables}), built)
        built.replace(prefix)
    try:
        run_post_link_scripts(prefix, f"the environment '{recipe.name}'")
    except BaseException:
        shutil.rmtree(prefix)
        raise
    executable = prefix / "bin" / "python"
    return executable, inspect_base(executable)


def _build_in(
    recipe: Recipe,
    base: BaseInterpreter,
    prefix: Path,
    installed: list[tuple[Requirements, InstallOptions]],
    options: InstallOptions,
) -> tuple[Path, BaseInterpreter]:
    python, progress = prefix / "bin" / f"python{base.minor}", options.progress
    progress(f"copying Python {base.version} from {base.prefix}")
    copy_base(base, prefix)
    # Checked early: an interpreter that cannot be copied should fail before any download.
    _require_self_contained(python, prefix, base)
    compile_environment(python, prefix, base.cache_tag)
    record_interpreter(prefix, base.version)
    for requirements, chosen in installed:
        progress(f"installing {requirements.named_in}")
        install(recipe.name, requirements, python, chosen)
    if installed:
        relocate_binaries(prefix, (base.prefix, prefix) if not base.is_system else (prefix,))
        progress("compiling")
        compile_environment(python, prefix, base.cache_tag)
    copy_recipe(recipe, prefix)
    _require_glibc(recipe, prefix)
    progress("checking that it runs by itself")
    _require_self_contained(python, prefix, base)
    # Last: a build that was killed midway must not look complete.
    write_history(prefix, base.version)
    return python, base


def _require_glibc(recipe: Recipe, prefix: Path) -> None:
    """Reject compiled files that need a newer glibc than the recipe allows."""
    if not recipe.glibc:
        return
    for path in sorted(path for path in prefix.rglob("*") if path.is_file() and not path.is_symlink()):
        needed = newest_glibc([path])
        if needed and Version(needed) > Version(recipe.glibc):
            raise ExecutionEnvironmentError(
                f"cannot build '{recipe.name}': it is to run with glibc {recipe.glibc}, and "
                f"{path.relative_to(prefix)} needs {needed}; take an interpreter built on an older system, such as "
                "one of uv (`uv python install`) or conda, or older versions of the package"
            )


def _require_self_contained(python: Path, prefix: Path, base: BaseInterpreter) -> None:
    """Reject a copy that still uses files of the original, because they are missing on other machines."""
    refusal = f"the Python {base.version} at {base.executable} cannot be made relocatable: its copy in {prefix}"
    advice = "use another interpreter of that version, such as one of pyenv or uv"
    try:
        itself = probe_interpreter(python)
    except ExecutionEnvironmentError as error:
        raise ExecutionEnvironmentError(f"{refusal} does not run by itself ({error.message}); {advice}") from error
    libraries = () if itself.libpython is None else (itself.libpython,)
    places = map(Path, (itself.prefix, itself.base_prefix, *itself.site_dirs, *libraries))
    outside = [str(place) for place in places if not place.resolve().is_relative_to(prefix)]
    if outside:
        raise ExecutionEnvironmentError(f"{refusal} still uses {', '.join(outside)}; {advice}")


def _reason(error: OSError) -> str:
    """The cause of a file error; the first one if copying a folder failed in several files."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])
    return str(error)


def _remove(prefix: Path, created: list[Path]) -> None:
    """Remove everything a failed build created."""
    for child in prefix.iterdir() if prefix.is_dir() else ():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.unlink(missing_ok=True)
    for folder in created:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _missing_folders(prefix: Path) -> list[Path]:
    """The folders that the build will create, innermost first: *prefix* and its missing parents."""
    return [folder for folder in (prefix, *prefix.parents) if not folder.exists()]


def _describe_build(prefix: Path, python: Path, base: BaseInterpreter) -> BuiltEnvironment:
    has_conda = base.prefix == prefix
    packages = tuple((one.name, one.version) for one in list_packages(prefix) if has_conda or one.source == "python")
    return BuiltEnvironment(prefix, python, base.version, base.executable, packages)
