"""A container or chroot in which /proc is not mounted."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from serving.repositories import repository
from support.server import TRITONSERVER

_UNSHARE = shutil.which("unshare")
_MAY = (
    _UNSHARE is not None and subprocess.run([_UNSHARE, "-m", "true"], capture_output=True, check=False).returncode == 0
)
_SAID = (
    "cannot run models: /proc/self/stat does not exist, and the server reads in /proc what guests do and which processes "
    "they started; mount it: mount -t proc proc /proc (a chroot or container without it hides it)"
)


@pytest.mark.skipif(not _MAY, reason="needs the right to make a mount namespace (unshare -m)")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["tritonserver", "--model-repository=models"], 1),
        (["naiad", "serve", "--model-repository=models", "--processes=2"], 1),
        (["naiad", "run", "models/identity"], 1),
        (["naiad", "doctor", "models"], 2),  # nothing could be examined
    ],
)
def test_commands_that_run_models_say_that_proc_is_missing(tmp_path, command, code):
    """They ended with a traceback of a library that reads the time of processors."""
    repository(tmp_path / "models", ["identity"])
    program = TRITONSERVER.with_name(command[0])
    done = subprocess.run(
        [str(_UNSHARE), "-m", "sh", "-c", 'umount -l /proc && exec "$0" "$@"', program, *command[1:]],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "NAIAD_STORE": str(tmp_path / "store")},
    )
    assert done.returncode == code, done
    assert _SAID in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
