"""What a server imports before it answers: each tenth of a second of that is one of every start."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"numpy", "rich", "prometheus_client", "fsspec", "virtualenv", "conda_pack", "naiad_llm.api"}


@pytest.mark.parametrize("module", ["naiad.cli.serve", "naiad.server.app", "naiad.server.listeners"])
def test_a_server_without_extras_starts_without_importing_for_them(module):
    code = f"import {module}, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY & set(run.stdout.split()) == set()
