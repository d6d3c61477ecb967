"""Histories of many seeds: nothing of what must not happen happens."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from naiad_stub.segment import Segment
from simulation.checking import check
from simulation.histories import make, make_processes
from simulation.run import run

from naiad.engine.serving.version import ModelVersion
from naiad.guests.worker import Worker

ROOT = Path(__file__).parents[2]
DIGESTS = """
import warnings
warnings.simplefilter("ignore")
from simulation.histories import make, make_processes
from simulation.run import run
print(*[run(made(seed)).digest for made in (make, make_processes) for seed in range(60, 68)])
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 300, 30))
def test_nothing_goes_wrong_in_histories_of_fixed_seeds(first):
    check(range(first, first + 30))


@pytest.mark.parametrize("made", [make, make_processes])
def test_nothing_of_a_history_is_left_in_the_process(made):
    def kept() -> tuple[int, int]:
        gc.collect()
        objects = sum(isinstance(each, (Worker, ModelVersion, Segment)) for each in gc.get_objects())
        return objects, len(list(Path("/proc/self/fd").iterdir()))

    run(made(9))
    of_the_last = kept()  # whose loop is the process's, until there is another one
    for seed in range(10):
        run(made(seed))

    assert kept() == of_the_last


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(10_000, 12_700, 300))
def test_nothing_goes_wrong_in_many_histories(first):
    check(range(first, first + 300))


@pytest.mark.endurance
@pytest.mark.timeout(7200)
def test_nothing_goes_wrong_in_an_hour_of_histories_of_new_seeds():
    seconds = float(os.environ.get("NAIAD_SIMULATION_SECONDS", "3600"))
    check(itertools.count(time.time_ns() // 1_000_000), seconds)


@pytest.mark.timeout(600)
def test_a_seed_gives_the_same_history_in_every_process():
    def digests(hash_seed: str) -> str:
        environ = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("platform", "stubs", "tests")),
        }
        return subprocess.run(
            [sys.executable, "-c", DIGESTS], env=environ, check=True, capture_output=True, text=True
        ).stdout

    assert digests("1") == digests("2")
