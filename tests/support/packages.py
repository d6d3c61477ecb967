"""Installs real packages in folders of tests, with uv: pip takes ten times as much of a processor for it."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from naiad_building.installers import clean_environ, find_uv, pip_settings, uv_command, uv_environ


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
    uv = find_uv()
    assert uv is not None, "uv is in the dependency group dev"
    settings = _settings()
    command = [*uv_command(uv, Path(python), settings), "--quiet", "--only-binary", ":all:", "--target", str(target)]
    command += [option for name in sources for option in ("--no-binary", name)]
    done = subprocess.run(
        [*command, *packages], env=uv_environ(clean_environ(os.environ), settings), capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.stderr.strip()[-300:] or "uv failed" if done.returncode else ""


@functools.cache
def _settings() -> dict[str, list[str]]:
    return pip_settings()
