"""Installing packages into a prefix with a pip that does not stay there, and asking it what it would install."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version
from virtualenv.seed.wheels.embed import get_embed_wheel

from naiad.environments.building.base import BaseInterpreter
from naiad.errors import ExecutionEnvironmentError

__all__ = ["clean_environ", "find_pip", "install_command", "pip_command", "pip_settings"]

# A user's settings for other places must not send packages there.
_UNWANTED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON", "PIP_EDITABLE")
_QUIET = (
    *("--no-input", "--disable-pip-version-check", "--root-user-action", "ignore", "--no-warn-script-location"),
    *("--no-compile", "--no-user"),
)
# Since then pip can tell how far a download is in a way that programs can read.
_RAW_PROGRESS = Version("24.1")
_SETTING = re.compile(r"^[\w:.]+\.([\w-]+)=(.*)$")


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


def pip_command(pip: Path, python: Path, verb: str) -> list[str]:
    """How a pip in a wheel is started under an interpreter."""
    return [str(python), "-I", f"{pip}/pip", verb, *(_QUIET if verb == "install" else _QUIET[:2])]


def install_command(pip: Path, python: Path) -> list[str]:
    """How it installs, telling how far it is."""
    return [*pip_command(pip, python, "install"), "--progress-bar", "raw" if _tells_progress(pip) else "off"]


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for an installer: the user's, without those that would lead it elsewhere."""
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON") and name not in _UNWANTED}
    # Debian's Python would put packages and scripts under <prefix>/local, where nobody looks for scripts.
    return {**kept, "DEB_PYTHON_INSTALL_LAYOUT": "deb"}


def pip_settings() -> dict[str, list[str]]:
    """What the user's settings say about indexes and the like, for installers that do not read them.

    Asked under our own interpreter: one that is being built may be too old, or too bare, for questions.

    Raises:
        ExecutionEnvironmentError: pip does not answer. Going on would mean to ask other indexes than the user's.
    """
    pip = get_embed_wheel("pip", f"{sys.version_info.major}.{sys.version_info.minor}")
    run = subprocess.run(
        [sys.executable, "-I", f"{pip.path if pip is not None else ''}/pip", "config", "list"],
        env=clean_environ(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise ExecutionEnvironmentError(f"pip does not tell its settings: {run.stderr.strip()[-500:]}")
    matches = filter(None, map(_SETTING.match, run.stdout.splitlines()))
    # Variables come last, and win, as with pip.
    return {match[1]: str(ast.literal_eval(match[2])).split() for match in matches}


def _tells_progress(pip: Path) -> bool:
    try:
        return Version(pip.name.split("-")[1]) >= _RAW_PROGRESS
    except (IndexError, InvalidVersion):
        return False
