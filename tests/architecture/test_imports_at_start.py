"""What a server imports before it answers: each tenth of a second of that is one of every start."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.server import free_ports

import naiad

HEAVY = {"numpy", "rich", "prometheus_client", "fsspec", "virtualenv", "conda_pack", "naiad_llm.api"}


@pytest.mark.server
@pytest.mark.parametrize("module", ["naiad.cli.serve", "naiad.server.app", "naiad.server.listeners"])
def test_a_server_without_extras_starts_without_importing_for_them(module):
    code = f"import {module}, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert HEAVY & set(run.stdout.split()) == set()


@pytest.mark.server
@pytest.mark.parametrize("flag", ["--version", "-V", "version"])
def test_the_version_is_printed_without_importing_commands(flag):
    code = f"from naiad.cli.main import main; import sys; code = main([{flag!r}]); print(code, *sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, modules = run.stdout.splitlines()
    assert first == f"naiad {naiad.__version__}"
    assert modules.split()[0] == "0"
    assert {"click", "naiad.cli.commands", "naiad.config.server.options", "numpy"} & set(modules.split()) == set()


@pytest.mark.server
def test_numpy_is_imported_before_the_first_port_is_open(tmp_path):
    # A client may then use up the file descriptors, and an import of numpy that has failed cannot be repeated.
    code = """
import sys
from naiad.server import app, listeners
async def listen(*_):
    print("numpy" in sys.modules, "naiad.protocol.numpy_types" in sys.modules)
    raise SystemExit
listeners.listen = app.listen = listen
from naiad.cli.main import main_tritonserver
main_tritonserver()
"""
    command = [sys.executable, "-c", code, f"--model-repository={tmp_path}", "--model-control-mode=explicit"]
    ports = [f"--{each}-port={port}" for each, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
    run = subprocess.run([*command, *ports], capture_output=True, text=True, check=False, timeout=60)
    assert run.stdout.splitlines()[-1] == "True True", run.stderr
