"""Installs real packages in folders of tests, from wherever the user's settings of pip say."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from naiad_building.uv_program import InstallOptions, uv_command


def install_packages(python: Path | str, target: Path, *packages: str, sources: Sequence[str] = ()) -> str:
    """Install wheels for an interpreter in a folder, from the indexes of the user's pip.

    Args:
        python: The interpreter.
        target: The folder, such as the site-packages of an environment of it.
        packages: Requirements.
        sources: Names of packages without wheels, in Python alone, which are built here.

    Returns:
        The last lines of the installer if the packages cannot be installed, else "".
    """
    arguments = ["pip", "install", "--quiet", "--link-mode=copy", "--only-binary=:all:", "--target", str(target)]
    arguments += [f"--no-binary={name}" for name in sources]
    command, environ = uv_command([*arguments, *packages], Path(python), InstallOptions())
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-300:] or "uv failed" if done.returncode else ""
