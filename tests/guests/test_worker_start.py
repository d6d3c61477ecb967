"""Guests start, are stopped and are killed: what is left of them, and what is said."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from pathlib import Path

import psutil
import pytest
from naiad_stub.process_title import process_name
from support.waiting import until_async

from naiad.core.errors import GuestExitedError, ModelError

from .guests import IDENTITY, guest, is_running, launch_spec, started

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("self.x = lorem_ipsum", "NameError: name 'lorem_ipsum' is not defined"),
        (
            "import not_installed_here",
            (
                "ModuleNotFoundError: No module named 'not_installed_here' (in Python "
                f"{platform.python_version()}: {sys.executable}, chosen by a flag)"
            ),
        ),
    ],
    ids=["an error", "an import, with the interpreter and why it was chosen"],
)
async def test_model_that_fails_to_initialize_says_why_with_its_traceback(tmp_path, statement, error):
    methods = f"def initialize(self, args):\n    {statement}\n"
    worker, _ = guest(launch_spec(tmp_path, methods, environment="chosen by a flag"))
    with pytest.raises(ModelError) as caught:
        await worker.start()
    assert caught.value.message.splitlines()[0] == error
    assert "model.py" in caught.value.traceback_text
    assert statement in caught.value.traceback_text
    assert not is_running(worker.pid)


async def test_lists_of_processes_show_the_instance_and_the_model(tmp_path):
    spec = launch_spec(tmp_path, IDENTITY)
    worker, _ = await started(spec)
    process = psutil.Process(worker.pid)
    assert process.name() == "m_0_0"
    assert process.cmdline()[2:6] == ["--instance", "m_0_0", "--model", spec.load.code.file]
    await worker.stop(5)


@pytest.mark.parametrize(
    ("instance", "name"),
    [
        ("m_0_0", "m_0_0"),
        ("a_rather_long_model_0_12", "a_rather_l_0_12"),
        ("a_rather_long_model_3", "a_rather_long_3"),
        ("a_rather_long_model", "a_rather_long_m"),
        ("\u00fc" * 8 + "_0_0", "\u00fc" * 5 + "_0_0"),
    ],
)
def test_the_name_of_a_process_keeps_the_number_of_its_instance(instance, name):
    assert process_name(instance) == name


@pytest.mark.parametrize(
    ("methods", "end", "after"),
    [
        ("def initialize(self, args):\n    print('so long', file=sys.stderr); os._exit(3)", "exited with status 3", ()),
        (
            "def initialize(self, args):\n    print('so long', file=sys.stderr); os.abort()",
            "was killed by SIGABRT",
            ("Fatal Python error: Aborted", ""),  # Python's stack follows
        ),
    ],
)
async def test_guest_that_dies_while_it_starts_is_reported_with_its_last_lines(tmp_path, methods, end, after):
    worker, delegate = guest(launch_spec(tmp_path, methods))
    with pytest.raises(
        GuestExitedError, match=rf"Stub process 'm_0_0' is not healthy. Reason: pid \d+ {end}"
    ) as caught:
        await worker.start()
    lines = caught.value.last_lines
    assert lines[: 1 + len(after)] == ("so long", *after)
    assert bool(after) == (len(lines) > 1)
    assert caught.value.message.endswith("while it started. Its last lines on stderr:\n" + "\n".join(lines))
    assert delegate.deaths == []


async def test_guest_that_makes_no_progress_is_killed_after_the_start_timeout(tmp_path):
    methods = "def initialize(self, args):\n    os.kill(os.getpid(), signal.SIGSTOP)"
    worker, _ = guest(launch_spec(tmp_path, methods, start_timeout=0.7))
    text = r"Stub process 'm_0_0' is not healthy. Reason: it made no progress for 0\.7 s .*stub-timeout-seconds.* was killed"
    with pytest.raises(GuestExitedError, match=text):
        await worker.start()
    assert not is_running(worker.pid)


async def test_start_that_is_cancelled_leaves_no_process(tmp_path):
    worker, delegate = guest(launch_spec(tmp_path, "def initialize(self, args):\n    print('in'); time.sleep(60)"))
    task = asyncio.ensure_future(worker.start())
    await until_async(lambda: delegate.lines, "initialize to be running")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not is_running(worker.pid)


async def test_stopping_runs_finalize_and_exit_handlers(tmp_path):
    """Also exit handlers: a guest that closes its channel while it ends is not cut short."""
    methods = f"""
def initialize(self, args):
    import atexit
    atexit.register(lambda: (time.sleep(0.3), open({str(tmp_path / "after")!r}, "w").close()))

def finalize(self):
    print("finalized")
    open({str(tmp_path / "final")!r}, "w").close()
{IDENTITY}"""
    worker, delegate = await started(launch_spec(tmp_path, methods))
    await worker.stop(60)
    assert delegate.deaths == []
    assert ("stdout", "finalized") in delegate.lines
    assert (tmp_path / "final").exists()
    assert (tmp_path / "after").exists()


async def test_finalize_that_hangs_is_cut_short(tmp_path):
    worker, _ = await started(launch_spec(tmp_path, "def finalize(self):\n    time.sleep(60)"))
    await worker.stop(0.2)
    assert not is_running(worker.pid)


async def test_killing_a_guest_ends_the_processes_that_the_model_started(tmp_path):
    methods = """
def initialize(self, args):
    import subprocess
    child = subprocess.Popen(["sh", "-c", "sleep 300 & echo $!; wait"])
    print(child.pid)
"""
    worker, delegate = await started(launch_spec(tmp_path, methods))
    await until_async(lambda: len(delegate.lines) == 2, "both pids")
    pids = [worker.pid, *(int(line) for _, line in delegate.lines)]
    assert all(map(is_running, pids))
    await worker.kill()
    await until_async(lambda: not any(map(is_running, pids)), "all processes to end")


async def test_model_may_terminate_processes_it_started(tmp_path):
    """The guest itself outlives SIGTERM; what it starts must not inherit that."""
    methods = """
def initialize(self, args):
    import multiprocessing, subprocess
    fork = multiprocessing.get_context("fork")
    forked = fork.Process(target=time.sleep, args=(300,))
    forked.start()
    started = subprocess.Popen(["sleep", "300"])
    forked.terminate()
    started.terminate()
    forked.join()
    print(forked.exitcode, started.wait())
"""
    worker, delegate = guest(launch_spec(tmp_path, methods))
    await asyncio.wait_for(worker.start(), 60)
    os.kill(worker.pid, signal.SIGTERM)
    os.kill(worker.pid, signal.SIGINT)
    await until_async(lambda: ("stdout", "-15 -15") in delegate.lines, "exit codes")
    await worker.stop(60)
    assert delegate.deaths == []


async def test_a_fork_that_is_terminated_at_once_ends(tmp_path):
    """A signal may reach it before it has its own handlers back."""
    methods = """
def initialize(self, args):
    import signal
    ends = set()
    for _ in range(200):
        pid = os.fork()
        if not pid:
            time.sleep(300)
            os._exit(0)
        os.kill(pid, signal.SIGTERM)
        ends.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(ends)
"""
    worker, delegate = guest(launch_spec(tmp_path, methods))
    await asyncio.wait_for(worker.start(), 30)
    await until_async(lambda: ("stdout", "{-15}") in delegate.lines, "exit codes")
    await worker.stop(60)


OWN_OOM_SCORE = int(Path("/proc/self/oom_score_adj").read_text())
OOM_SCORE = """
    def initialize(self, args):
        import subprocess
        print(open("/proc/self/oom_score_adj").read().strip(), flush=True)
        subprocess.run(["cat", "/proc/self/oom_score_adj"])
"""


async def test_the_kernel_ends_a_guest_rather_than_the_host_when_memory_runs_out(tmp_path):
    worker, delegate = await started(launch_spec(tmp_path, OOM_SCORE))
    await until_async(lambda: len(delegate.lines) == 2, "both values")
    await worker.kill()
    assert [int(line) for _, line in delegate.lines] == [min(OWN_OOM_SCORE + 200, 1000)] * 2
