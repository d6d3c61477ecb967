"""Variables that say how many threads numpy and its like start in a guest."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from naiad_stub.process_limits import usable_processors
from serving.written import evaluate, write_model
from support.server import ServerProcess

NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT")
UNSET = dict.fromkeys(NAMES)


@pytest.mark.parametrize("instances", [1, 2])
def test_instances_share_the_cores_and_their_idle_threads_soon_sleep(tmp_path, instances):
    write_model(tmp_path / "models", "shares", config=f"instance_group [{{ kind: KIND_CPU count: {instances} }}]\n")

    with ServerProcess(tmp_path / "models", work=tmp_path, environ=UNSET) as server:
        found = evaluate(server, "shares", f"[os.environ.get(name) for name in {NAMES}]")

    threads = str(max(1, usable_processors() // instances))
    assert found == repr([threads, threads, "20"])


def test_a_server_has_no_threads_for_linear_algebra():
    code = (
        "import os; from naiad.cli.serve import _limit_blas_threads; _limit_blas_threads()\n"
        "import numpy; print(len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    environ = {name: value for name, value in os.environ.items() if name not in UNSET}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert run.stdout == "1 None\n"
