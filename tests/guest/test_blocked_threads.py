"""A model that waits only for itself is recognised under every interpreter on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import triton_python_backend_utils
from support.interpreters import interpreters

STUBS = Path(triton_python_backend_utils.__file__).parent


@pytest.mark.parametrize(("version", "python"), interpreters(), ids=[f"{a}.{b}" for (a, b), _ in interpreters()])
def test_threads_are_seen_to_wait_for_each_other(version, python):
    script = Path(__file__).with_name("blocked_threads_check.py")
    done = subprocess.run([python, str(script), str(STUBS)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")
