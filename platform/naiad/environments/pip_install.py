"""Installing a recipe's requirements into a prefix, with a pip that does not stay there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from virtualenv.seed.wheels.embed import get_embed_wheel

from naiad.environments.base import BaseInterpreter
from naiad.environments.recipe import Recipe
from naiad.errors import ExecutionEnvironmentError

__all__ = ["blamed_package", "find_pip", "install_requirements"]

# A user's settings for other places must not send packages there.
_UNWANTED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON", "PIP_EDITABLE")
_LAST_LINES = 12
_BLAME = (
    re.compile(r"No matching distribution found for (\S+)"),
    re.compile(r"satisfies the requirement (\S+)"),
    re.compile(r"Failed to build '?([A-Za-z0-9._-]+)'?"),
    re.compile(r"Failed building wheel for (\S+)"),
    re.compile(r"Package '?([A-Za-z0-9._-]+)'? requires a different Python"),
    re.compile(r"Invalid requirement: ['\"]?([^'\":]+)"),
    re.compile(r"Cannot install (.+?) because"),
)


def find_pip(base: BaseInterpreter) -> Path:
    """A wheel of pip that runs under an interpreter: of virtualenv, or else the interpreter's own.

    Raises:
        ExecutionEnvironmentError: There is neither.
    """
    wheel = get_embed_wheel("pip", base.minor)
    if wheel is not None:
        return Path(wheel.path)
    own = sorted(base.stdlib.glob("ensurepip/_bundled/pip-*.whl"))
    if own:
        return own[-1]
    raise ExecutionEnvironmentError(
        f"no pip for Python {base.version}: virtualenv brings none for it and {base.stdlib}/ensurepip has none either"
    )


def install_requirements(recipe: Recipe, pip: Path, python: Path, progress: Callable[[str], None]) -> None:
    """Install what a recipe requires into the prefix of `python`.

    Indexes, certificates and the like are those pip is configured for.

    Raises:
        ExecutionEnvironmentError: pip failed; names the package and ends with pip's last lines.
    """
    assert recipe.requirements is not None
    command = [
        *(str(python), "-I", f"{pip}/pip", "install", "--requirement", str(recipe.requirements.resolve())),
        *("--no-compile", "--no-user", "--no-input", "--no-warn-script-location", "--disable-pip-version-check"),
        *("--progress-bar", "off", "--root-user-action", "ignore"),
        *(["--no-deps"] if recipe.locked else []),
    ]
    with subprocess.Popen(
        command,
        env=_environ(os.environ),
        cwd=recipe.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.startswith(("Collecting ", "Installing ")):
                    progress(line.partition(" (from ")[0].strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise _failure(recipe, lines)


def blamed_package(lines: list[str]) -> str | None:
    """The requirement that pip's output says it failed on, if it says so."""
    output = "\n".join(lines)
    for pattern in _BLAME:
        match = pattern.search(output)
        if match:
            return match[1].rstrip(",;:")
    return None


def _failure(recipe: Recipe, lines: list[str]) -> ExecutionEnvironmentError:
    what = blamed_package(lines) or "the requirements"
    # Warnings about unused indexes would push out what matters.
    telling = [line for line in lines if line.strip() and not line.startswith("WARNING:")]
    last = "\n  ".join(telling[-_LAST_LINES:])
    return ExecutionEnvironmentError(
        f"cannot install {what} for '{recipe.name}', named in {recipe.requirements}; pip said last:\n  {last}"
    )


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") and name not in _UNWANTED}
    # Debian's Python would put packages and scripts under <prefix>/local, where nobody looks for scripts.
    return {**kept, "DEB_PYTHON_INSTALL_LAYOUT": "deb"}
