"""A folder in another mount namespace, reached through `/proc/PID/root` as KServe's modelcars are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SCRIPT = 'mount --bind "$1" "$2" && echo mounted && exec cat'


@contextmanager
def mounted_elsewhere(content: Path, link: Path) -> Iterator[Path]:
    """*link*, which leads to the folder *content* by a path that this process cannot spell out."""
    hidden = link.with_name(f"{link.name}-in-its-own-namespace")
    hidden.mkdir(parents=True)
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    try:
        process = subprocess.Popen(
            ["unshare", "--mount", *user, "sh", "-c", _SCRIPT, "sh", content, hidden],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("needs unshare")
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if process.stdout.readline() != "mounted\n":
                pytest.skip(f"this system makes no mount namespaces: {process.stderr.read().strip()}")
            link.symlink_to(f"/proc/{process.pid}/root{hidden}")
            yield link
        finally:
            link.unlink(missing_ok=True)
            process.stdin.close()
