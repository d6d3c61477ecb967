"""NVIDIA's own Python backend, `libtriton_python.so`, in naiad's native guest: it serves the examples, clients unchanged.

Needs an installed reference: NAIAD_BENCH_REFERENCE names its folder, as for `python -m bench`.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from examples.running import example_names, read_example
from support.server import ServerProcess

REFERENCE = Path(os.environ.get("NAIAD_BENCH_REFERENCE", "/nowhere"))
ON_TRITON = [name for name in example_names() if not read_example(name).is_ours]
"""The others need what NVIDIA's backend does not have, as their READMEs say."""
RUNTIME = '\nruntime: "libtriton_python.so"\n'

pytestmark = [
    pytest.mark.skipif(not (REFERENCE / "READY").exists(), reason="NAIAD_BENCH_REFERENCE names no installed Triton"),
]


@pytest.fixture(scope="module")
def server(work):
    for name in ON_TRITON:
        for model in read_example(name).models.iterdir():
            copied = work / "models" / model.name
            shutil.copytree(model, copied, ignore=shutil.ignore_patterns("__pycache__"))
            if any(copied.glob("*/model.py")):
                config = copied / "config.pbtxt"
                text = config.read_text() if config.exists() else 'backend: "python"'
                config.write_text(text + RUNTIME)
    (site,) = REFERENCE.glob("venv/lib/python3*/site-packages")
    environ = {
        "LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs"),
        "PATH": f"{REFERENCE / 'venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(site),
    }
    with ServerProcess(
        work / "models", f"--backend-directory={REFERENCE / 'backends'}", work=work, environ=environ
    ) as started:
        yield started


@pytest.mark.parametrize("name", ON_TRITON)
def test_an_example_prints_what_its_readme_shows(server, name):
    example = read_example(name)

    asked = example.ask(server)

    assert asked.returncode == 0, f"{asked.stdout}\n{asked.stderr}"
    assert asked.stdout == example.output


def test_the_library_of_the_reference_runs_and_not_naiads_own_backend(server):
    assert re.search(r"\| python +\| \S+/backends/python/libtriton_python\.so +\|", server.log)
    assert "is not a live" not in server.log
