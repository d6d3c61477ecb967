"""Building an environment from a recipe's `environment.yml`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from naiad.environments.building.base import inspect_base
from naiad.environments.building.built import BuiltEnvironment, built_in
from naiad.environments.building.bytecode import compile_environment
from naiad.environments.building.conda_install import install_conda, python_spec
from naiad.environments.building.environment_yml import CondaWish, read_environment_yml
from naiad.environments.building.installing import InstallOptions, install
from naiad.environments.building.recipe import Recipe
from naiad.environments.building.recipe_files import copy_recipe
from naiad.environments.building.requirements import Wanted
from naiad.environments.progress import Reporter
from naiad.errors import ConfigError, ExecutionEnvironmentError
from naiad.interpreters.prefix import interpreter_of

__all__ = ["build_conda"]


def build_conda(
    recipe: Recipe,
    prefix: Path,
    *,
    python: str | None,
    options: InstallOptions,
    progress: Callable[[str], None],
    reporter: Reporter,
) -> BuiltEnvironment:
    """Build in the empty folder `prefix`.

    Raises:
        ConfigError: `environment.yml` is wrong, or naiad was installed without what this needs.
        ExecutionEnvironmentError: A package is not there, or could not be installed.
        OSError: A file cannot be copied.
    """
    assert recipe.conda is not None
    wish = read_environment_yml(recipe.conda)
    install_conda(recipe, _with_python(recipe, wish, python), prefix, offline=options.offline, progress=progress)
    # It comes back at the end: a build that was killed midway must not look like an environment.
    history = prefix / "conda-meta" / "history"
    text = history.read_bytes() if history.is_file() else b""
    history.unlink(missing_ok=True)
    executable = interpreter_of(prefix)
    if executable is None:
        raise ExecutionEnvironmentError(
            f"cannot build '{recipe.name}': {recipe.conda} names no Python; add 'python' to its dependencies"
        )
    base = inspect_base(executable)
    if wish.requirements:
        wanted = Wanted("\n".join(wish.requirements) + "\n", recipe.conda, complete=False, hashed=False)
        progress(f"installing {len(wish.requirements)} requirements with pip")
        install(recipe.name, wanted, base, executable, options, progress, reporter)
    progress("compiling")
    compile_environment(executable, prefix, base.cache_tag)
    copy_recipe(replace(recipe, variables={**wish.variables, **recipe.variables}), prefix)
    history.write_bytes(text)
    return built_in(prefix, executable, base)


def _with_python(recipe: Recipe, wish: CondaWish, python: str | None) -> CondaWish:
    """The wish with the recipe's own versions of Python, and the one that is asked for."""
    if python is not None and "/" in python:
        raise ConfigError(f"'{recipe.name}' gets its Python from conda: give a version instead of {python}")
    asked = ",".join(filter(None, (str(recipe.python), f"{python}.*" if python else "")))
    return replace(wish, specs=(*wish.specs, python_spec(asked))) if asked else wish
