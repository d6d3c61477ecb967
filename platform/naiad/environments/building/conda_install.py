"""Installing conda packages into a folder with py-rattler: no conda, and nothing of it stays there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from naiad.config.server.store_location import find_store
from naiad.environments.building.environment_yml import CondaWish
from naiad.environments.building.recipe import Recipe
from naiad.errors import ConfigError, ExecutionEnvironmentError

__all__ = ["install_conda", "python_spec"]


def install_conda(
    recipe: Recipe, wish: CondaWish, prefix: Path, *, offline: bool, progress: Callable[[str], None]
) -> None:
    """Solve what is wished for, and install it into a new folder.

    Raises:
        ConfigError: py-rattler is not installed, or a channel cannot be used.
        ExecutionEnvironmentError: There is no such package, or it could not be fetched.
    """
    try:
        import rattler
    except ImportError:
        raise ConfigError(
            f"building '{recipe.name}' from {recipe.conda} needs conda's part of naiad: `pip install naiad[conda]`"
        ) from None
    if offline:
        _require_here(recipe, wish)

    async def solve_and_install() -> None:
        progress(f"solving for {len(wish.specs)} conda packages from {', '.join(wish.channels)}")
        records = await rattler.solve(
            list(wish.channels),
            list(wish.specs),
            platforms=[rattler.Subdir.current(), "noarch"],
            virtual_packages=list(rattler.VirtualPackage.detect()),
        )
        progress(f"installing {len(records)} conda packages")
        await rattler.install(
            records,
            prefix,
            # conda-pack takes files from this cache, so it must last as long as what is built.
            cache_dir=find_store("", {}).path.with_name("conda-packages"),
            show_progress=sys.stderr.isatty(),
        )

    try:
        asyncio.run(solve_and_install())
    except Exception as error:  # rattler's errors have no class in common
        raise ExecutionEnvironmentError(
            f"cannot install conda packages for '{recipe.name}', named in {recipe.conda}: {str(error).strip()}"
        ) from error


def python_spec(versions: str) -> str:
    """A package of conda for a set of versions of Python."""
    return f"python {versions}"


def _require_here(recipe: Recipe, wish: CondaWish) -> None:
    for channel in wish.channels:
        if not channel.startswith("file:"):
            raise ExecutionEnvironmentError(
                f"cannot build '{recipe.name}' offline: {recipe.conda} names the channel {channel}, which is not on "
                "this machine; name a folder with a channel"
            )
