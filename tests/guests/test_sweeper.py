"""The sweeper process: what it kills, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from support.waiting import until

from naiad.guests.sweeper import ProcessSweeper

from .guests import is_running

pytestmark = pytest.mark.server


@pytest.fixture
def sweeper() -> Iterator[ProcessSweeper]:
    made = ProcessSweeper()
    yield made
    made.close()


@pytest.fixture
def daemon():
    """Starts a process with an id in its environment, in a session of its own."""
    started = []

    def start(guest_id: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(["sleep", "600"], env={"NAIAD_GUEST_ID": guest_id}, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_processes_of_a_guest_that_has_exited_are_killed_and_no_others(sweeper, daemon, caplog):
    ids = [sweeper.new_id() for _ in range(2)]
    for guest_id in ids:
        sweeper.watch(guest_id, "m_0")
    first, second, other = daemon(ids[0]), daemon(ids[1]), daemon(ProcessSweeper().new_id())
    sweeper.on_exit(ids[0])
    assert first.wait(60) == -signal.SIGKILL
    until(lambda: "'m_0' left 1 processes behind, which were killed" in caplog.text, "the line in the log")
    sweeper.close()  # a guest runs: it is not ended
    assert second.poll() is None
    sweeper.on_exit(ids[1])
    sweeper.close()
    assert second.wait(60) == -signal.SIGKILL
    assert other.poll() is None


def test_a_fork_of_the_host_leaves_the_sweeper_to_the_host(sweeper, daemon):
    guest_id = sweeper.new_id()
    sweeper.watch(guest_id, "m_0")
    process = daemon(guest_id)
    pid = os.fork()
    if pid == 0:
        sweeper.on_exit(guest_id)
        sweeper.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert process.poll() is None
    assert is_running(sweeper._process.pid)
