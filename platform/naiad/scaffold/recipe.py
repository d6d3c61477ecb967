"""The first files of an environment's recipe."""

from __future__ import annotations

from naiad.scaffold.project import Scaffold, check_name

__all__ = ["recipe"]

_RECIPE = """name = "{name}"
description = "What models of {name} need"
# Versions of Python it works with; `naiad env build` takes the newest of them on this machine.
python = "{python}"
# As pip reads it. `naiad env lock {folder}/{name}` writes down what it comes to.
requirements = "requirements.txt"
# glibc = "2.28"     # the oldest that it has to run with
# files = ["data"]   # to bring along
"""

_REQUIREMENTS = """# Every guest needs numpy.
numpy
"""


def recipe(name: str, folder: str, python: str) -> Scaffold:
    """A recipe of an environment with numpy.

    Args:
        name: Of the recipe.
        folder: Where recipes are.
        python: Versions of Python it is for.

    Raises:
        ScaffoldError: If its name is none.
    """
    check_name(name, "recipe")
    return Scaffold(
        files={
            f"{folder}/{name}/env.toml": _RECIPE.format(name=name, folder=folder, python=python),
            f"{folder}/{name}/requirements.txt": _REQUIREMENTS,
        },
        commands=(
            f"naiad env build {folder}/{name} --output build/{name}",
            f"naiad env pack build/{name} --output {name}.tar.zst",
        ),
    )
