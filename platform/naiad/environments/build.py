"""Building an environment from a recipe: a whole interpreter with packages, which runs wherever it is put.

The order matters: the interpreter is copied and compiled, then recorded for conda-pack, then packages come in.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from naiad.environments.base import BaseInterpreter, copy_base, inspect_base
from naiad.environments.bytecode import compile_environment
from naiad.environments.conda_meta import record_interpreter, write_history
from naiad.environments.installed import packages_in
from naiad.environments.interpreters import find_interpreter
from naiad.environments.pip_install import find_pip, install_requirements
from naiad.environments.probe import ask
from naiad.environments.recipe import Preference, Recipe, read_recipe
from naiad.environments.relocate import relocate_binaries
from naiad.errors import ExecutionEnvironmentError, InterpreterNotFoundError, OptionError

__all__ = ["BuiltEnvironment", "build"]


@dataclass(frozen=True)
class BuiltEnvironment:
    """A prefix that was built.

    Attributes:
        prefix: Where it lies; it may be packed, or copied to another machine as it is.
        python: Its interpreter.
        version: Full version of that interpreter.
        base: The interpreter it was copied from; no longer needed.
        packages: Name and version of everything installed in it.
    """

    prefix: Path
    python: Path
    version: str
    base: Path
    packages: tuple[tuple[str, str], ...]


def build(
    recipe_dir: Path,
    output_prefix: Path,
    *,
    python: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> BuiltEnvironment:
    """Build the environment of a recipe.

    Args:
        recipe_dir: Folder of the recipe.
        output_prefix: Folder to build in; must not exist yet, or be empty.
        python: A version (`3.12`, `3.12.1`) or the path of an interpreter, instead of what the recipe asks for.
        progress: Called with a line for each step.

    Raises:
        ConfigError: The recipe is wrong.
        InterpreterNotFoundError: No suitable interpreter is on this machine.
        ExecutionEnvironmentError: It could not be built; nothing is left of it.
    """
    recipe = read_recipe(recipe_dir)
    prefix = output_prefix.resolve()
    _require_free(prefix)
    base = inspect_base(_choose(recipe, python))
    created = _missing_folders(prefix)
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        return _build_in(recipe, base, prefix, progress)
    except OSError as error:
        _remove(prefix, created)
        raise ExecutionEnvironmentError(f"cannot build '{recipe.name}' in {prefix}: {_reason(error)}") from error
    except BaseException:
        _remove(prefix, created)
        raise


def _build_in(recipe: Recipe, base: BaseInterpreter, prefix: Path, progress: Callable[[str], None]) -> BuiltEnvironment:
    python = prefix / "bin" / f"python{base.minor}"
    progress(f"copying Python {base.version} from {base.prefix}")
    copy_base(base, prefix)
    # Before the long part: an interpreter that cannot be copied should not cost a download first.
    _require_hermetic(python, prefix, base)
    compile_environment(python, prefix, base.cache_tag)
    record_interpreter(prefix, base.version)
    if recipe.requirements is not None:
        progress(f"installing {recipe.requirements}")
        install_requirements(recipe, find_pip(base), python, progress)
        relocate_binaries(prefix, (base.prefix, prefix) if not base.is_system else (prefix,))
        progress("compiling")
        compile_environment(python, prefix, base.cache_tag)
    _copy_files(recipe, prefix)
    progress("checking that it runs by itself")
    _require_hermetic(python, prefix, base)
    # Last: a build that was killed midway must not look like an environment.
    write_history(prefix, base.version)
    return BuiltEnvironment(prefix, python, base.version, base.executable, _packages(prefix))


def _choose(recipe: Recipe, python: str | None) -> Path:
    """The interpreter to copy: the one asked for, or the newest of those the recipe takes, by its preference."""
    if python is not None and "/" in python:
        return Path(python)
    for wanted in _wishes(recipe, python, sys.version_info[:2]):
        try:
            return find_interpreter(wanted, _cache(), need_numpy=False).python
        except InterpreterNotFoundError as error:
            last = error
    raise InterpreterNotFoundError(f"cannot build '{recipe.name}' of {recipe.folder}: {last.message}") from last


def _wishes(recipe: Recipe, python: str | None, host: tuple[int, int]) -> list[SpecifierSet]:
    """Sets of versions to look for, the dearest first."""
    if python is not None:
        return [_exactly(python)]
    if recipe.prefer is Preference.NEWEST:
        return [recipe.python]
    sign = "==" if recipe.prefer is Preference.HOST else "!="
    return [recipe.python & SpecifierSet(f"{sign}{host[0]}.{host[1]}.*"), recipe.python]


def _exactly(version: str) -> SpecifierSet:
    try:
        return SpecifierSet(f"=={version}" if re.fullmatch(r"\d+\.\d+\.\d+.*", version) else f"=={version}.*")
    except InvalidSpecifier:
        raise OptionError(
            f"'{version}' is no version of Python; give one such as 3.12 or 3.12.1, or the path of an interpreter"
        ) from None


def _copy_files(recipe: Recipe, prefix: Path) -> None:
    for source in recipe.files:
        target = prefix / "share" / recipe.name / source.relative_to(recipe.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)


def _require_hermetic(python: Path, prefix: Path, base: BaseInterpreter) -> None:
    """Refuse a copy that still lives off the original: it would fail, or run other code, on the next machine."""
    refusal = f"the Python {base.version} at {base.executable} cannot be made relocatable: its copy in {prefix}"
    advice = "use another interpreter of that version, such as one of pyenv or uv"
    try:
        itself = ask(python)
    except ExecutionEnvironmentError as error:
        raise ExecutionEnvironmentError(f"{refusal} does not run by itself ({error.message}); {advice}") from error
    places = [itself.prefix, itself.base_prefix, *map(Path, itself.site_dirs)]
    if itself.libpython is not None:
        places.append(Path(itself.libpython))
    outside = [str(place) for place in places if not place.resolve().is_relative_to(prefix)]
    if outside:
        raise ExecutionEnvironmentError(f"{refusal} still uses {', '.join(outside)}; {advice}")


def _packages(prefix: Path) -> tuple[tuple[str, str], ...]:
    return tuple((one.name, one.version) for one in packages_in(prefix) if one.source == "python")


def _reason(error: OSError) -> str:
    """What went wrong with files; the first of many where a whole folder could not be copied."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][-1])
    return str(error)


def _require_free(prefix: Path) -> None:
    if prefix.is_dir() and not any(prefix.iterdir()):
        return
    if prefix.exists() or prefix.is_symlink():
        raise ExecutionEnvironmentError(
            f"cannot build in {prefix}: it exists already; remove it or name another folder"
        )


def _remove(prefix: Path, created: list[Path]) -> None:
    """Leave of a failed build what was there before it: nothing, or an empty folder."""
    for child in prefix.iterdir() if prefix.is_dir() else ():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.unlink(missing_ok=True)
    for folder in created:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _missing_folders(prefix: Path) -> list[Path]:
    """The folders that building creates, innermost first: `prefix` and its parents as far as they are missing."""
    return [folder for folder in (prefix, *prefix.parents) if not folder.exists()]


def _cache() -> Path:
    # The default store's own, so that what serving has asked is known here.
    return platformdirs.user_cache_path("naiad", appauthor=False) / "environments" / "interpreters"
