"""The demonstration of registries shows what it is to show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.endurance
def test_push_pull_serve_and_tamper_are_demonstrated():
    script = Path(__file__).with_name("registry_demo.py")

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=110, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout
    assert "model 'add_sub': " in printed
    assert "'SUM': [2.0, 4.0, 6.0, 8.0]" in printed
    assert "is signed by 'build'" in printed
    assert printed.count("unchanged since a trusted key signed it") == 1
    assert "is refused: model 'add_sub' was changed: signed as sha256:" in printed
    assert "not as a trusted key signed it" in printed
