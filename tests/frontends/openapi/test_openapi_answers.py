"""Runs `answers_check.py` in a process of its own.

Importing schemathesis takes seconds, and in a parallel run each process collects all files of tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .document import DOCUMENT

CHECK = Path(__file__).with_name("answers_check.py")


@pytest.mark.server
def test_answers_are_as_documented() -> None:
    """Every operation of the document is requested, and every response conforms to it."""
    plugins = ["-p", "schemathesis.pytest.plugin", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", "--quiet", *plugins, str(CHECK)]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    operations = [name for path in DOCUMENT["paths"].values() for name in path if name != "parameters"]
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert passed is not None, done.stdout
    assert int(passed[1]) == len(operations)
