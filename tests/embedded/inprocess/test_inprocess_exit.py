"""However a program ends, its guests end with it, and the end is quiet."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest
from serving.repositories import repository
from support.waiting import until

START = """
import os, sys, naiad, numpy as np
server = naiad.Server(model_repository=sys.argv[1], flags=["--env-store=" + sys.argv[2]]).start()
responses = server.model("identity").infer(inputs={"IN": np.array([1], np.float32)})
import psutil
print(*[child.pid for child in psutil.Process().children()], flush=True)
"""
WAIT = """
import threading
inputs = {"IN": np.array([1e9, 0], np.float32)}
responses = server.model("repeats").infer(inputs=inputs, raise_on_error=False)
threading.Thread(target=lambda: [None for _ in responses], daemon=True).start()
"""
FORK = """
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
assert server.ready()
"""
ENDS = {
    "falls off its end": ("", 0),
    "exits": ("sys.exit(3)", 3),
    "exits from a block": ("with server: raise SystemExit(4)", 4),
    "leaves a thread waiting for a response": (WAIT, 0),
    "forks a child that ends": (FORK, 0),
    "exits at once": ("os._exit(5)", 5),
    "is killed": ("os.kill(os.getpid(), 9)", -9),
    "gets a signal": ("os.kill(os.getpid(), 15)", -15),
}


MORE = {"exits from a block", "exits at once", "forks a child that ends"}
"""Ends that are much like another one."""


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.endurance] if how in MORE else []) for how in ENDS]
)
def test_guests_end_with_their_program_in_whichever_way_it_ends(how, tmp_path, store):
    code, status = ENDS[how]
    names = ["identity", "repeats"] if code == WAIT else ["identity"]
    models = repository(tmp_path / "models", names)
    flags = ["-W", "error", "-W", "ignore:This process"]  # 3.12 warns of forks of programs with threads

    done = subprocess.run(
        [sys.executable, *flags, "-c", START + code, models, store],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert (done.returncode, done.stderr) == (status, "")
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == len(names) + 1  # guests, and the sweeper that ends what they leave behind
    until(lambda: not any(_runs(pid) for pid in pids), "the end of the guests")


def test_an_interrupted_start_leaves_nothing(tmp_path, store):
    models = repository(tmp_path / "models", ["hangs_in_initialize"])
    code = (
        "import signal, sys, naiad\n"
        # A shell has what it starts in the background ignore Ctrl-C, and so what that starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "naiad.Server(model_repository=sys.argv[1], flags=['--env-store=' + sys.argv[2]]).start()"
    )
    with subprocess.Popen([sys.executable, "-c", code, models, store], stderr=subprocess.PIPE, text=True) as program:
        until(lambda: psutil.Process(program.pid).children(), "the guest")
        children = psutil.Process(program.pid).children()
        program.send_signal(signal.SIGINT)
        _, stderr = program.communicate(timeout=110)

    assert program.returncode == -signal.SIGINT, stderr
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    until(lambda: not any(_runs(child.pid) for child in children), "the end of the guest")


@pytest.mark.server
def test_importing_naiad_loads_nothing_of_the_server():
    code = (
        "import naiad, sys; print(sorted(name for name in sys.modules if name.startswith(('naiad', 'numpy', 'grpc'))))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=True)

    assert done.stdout.strip() == "['naiad']"


def test_unknown_names_are_attribute_errors_as_in_any_module():
    import naiad

    assert {"Server", "Tensor", "__version__"} <= set(dir(naiad))
    with pytest.raises(AttributeError, match=r"module 'naiad' has no attribute 'Nothing'"):
        _ = naiad.Nothing


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
