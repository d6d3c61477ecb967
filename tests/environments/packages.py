"""A tiny package to install without any index, and recipes that use it."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from naiad_building.build import BuiltEnvironment, build

_METADATA = "Metadata-Version: 2.1\nName: greeter\nVersion: 1.2\n"
_FILES = {
    "greeter.py": 'def main():\n    print("hello")\n',
    "greeter-1.2.dist-info/METADATA": _METADATA,
    "greeter-1.2.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "greeter-1.2.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeter:main\n",
}


def offer_greeter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the wheel of `greeter` into a folder, and let pip use only this folder."""
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text)}\n"
        for name, text in _FILES.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "greeter-1.2-py3-none-any.whl", "w") as wheel:
        for name, text in _FILES.items():
            wheel.writestr(name, text)
        wheel.writestr("greeter-1.2.dist-info/RECORD", record + "greeter-1.2.dist-info/RECORD,,\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def write_recipe(folder: Path, requirements: str, *, more: str = 'prefer = "other-than-host"') -> Path:
    """Write a recipe with these requirements. Its Python is another one than the host's if the machine has one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requirements.txt").write_text(requirements)
    text = f'name = "{folder.name}"\npython = ">=3.8"\nrequirements = "requirements.txt"\n{more}\n'
    (folder / "env.toml").write_text(text)
    return folder


def run_alone(command: list[str], *hidden: Path | None) -> str:
    """The output of a command that runs with few variables, and with folders hidden if this user may mount."""
    folders = [str(folder) for folder in hidden if folder is not None]
    if folders and can_hide():
        # The mounts exist in a namespace of their own and end with the command.
        script = (
            'for folder; do shift; [ "$folder" = -- ] && break; mount -t tmpfs none "$folder" || exit; done; exec "$@"'
        )
        command = ["/usr/bin/env", "unshare", "--mount", "/bin/sh", "-c", script, "sh", *folders, "--", *command]
    run = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def can_hide() -> bool:
    """Whether this user may mount folders that only one command sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@functools.cache
def small_environment(base: Path) -> BuiltEnvironment:
    """An environment with `greeter` and a data file, of another Python than ours if the machine has one.

    Built once for all modules, in the session's own temporary folder.
    """
    folder = base / "small-environment"
    with pytest.MonkeyPatch.context() as monkeypatch:
        offer_greeter(folder / "wheels", monkeypatch)
        recipe = write_recipe(folder / "small", "greeter==1.2\n", more='prefer = "other-than-host"\nfiles = ["data"]')
        (recipe / "data").mkdir()
        (recipe / "data" / "labels.txt").write_text("good\nbad\n")
        return build(recipe, folder / "prefix")
