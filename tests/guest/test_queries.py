"""What a guest asks and tells its host: metrics, control of models, readiness. Other interpreters: `test_interpreters`."""

import subprocess
import sys
from pathlib import Path

import triton_python_backend_utils


def test_queries_and_messages_of_a_guest_are_those_that_the_host_expects():
    command = [
        sys.executable,
        Path(__file__).with_name("queries_check.py"),
        Path(triton_python_backend_utils.__file__).parent,
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
