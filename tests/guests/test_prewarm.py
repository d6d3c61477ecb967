"""Guests forked from a process that has done their imports: as any other guest, or started as any other."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import textwrap
from pathlib import Path

import psutil
import pytest
from support.interpreters import each_interpreter, numpy_environment
from support.waiting import until_async

from naiad.core.errors import GuestExitedError
from naiad.guests.prewarm import ForkServerPool

from .guests import IDENTITY, guest, is_running, launch_spec, request, started

pytestmark = pytest.mark.server

MODEL = f"""
    def initialize(self, args):
        import numpy, random, threading
        sys.stderr.write(f"drew {{numpy.random.rand()}} {{random.random()}}\\n")
        print("modules", sorted(sys.modules.keys() & {{"slow_to_import", "asyncio"}}), sys.argv, flush=True)
        print("stdin", repr(sys.stdin.read()), "threads", threading.active_count() - 1, flush=True)
{IDENTITY}
"""
DIES = """
    def execute(self, requests):
        how = int(pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()[0])
        if how < 0:
            os.kill(os.getpid(), -how)
        os._exit(how)
"""


@contextlib.contextmanager
def borrowed(servers: ForkServerPool, *modules: str):
    prewarmed = servers.guests_with(modules)
    try:
        yield prewarmed
    finally:
        prewarmed.release()


def warm_spec(folder: Path, prewarmed, methods: str = MODEL, modules: str = "", **variables: str):
    """A model whose guests are forked; *modules* is the source of `slow_to_import` in its environment."""
    library = folder / "packages"
    library.mkdir(exist_ok=True)
    (library / "slow_to_import.py").write_text(textwrap.dedent(modules))
    spec = launch_spec(folder, methods)
    environ = {**spec.environ, "PYTHONPATH": str(library), **variables}
    return dataclasses.replace(spec, environ=environ, prewarm=prewarmed)


def parent_of(worker) -> psutil.Process:
    return psutil.Process(worker.pid).parent()


async def ended(*pids: int) -> None:
    await until_async(lambda: not any(map(is_running, pids)), f"{pids} to end")


async def test_guests_of_one_environment_come_from_one_process_and_are_apart(tmp_path):
    with borrowed(ForkServerPool(), "numpy", "slow_to_import") as prewarmed:
        spec = warm_spec(tmp_path, prewarmed)
        guests = await asyncio.gather(*(started(spec) for _ in range(3)))
        parents = {parent_of(worker).pid for worker, _ in guests}
        sessions = [os.getsid(worker.pid) for worker, _ in guests]
        assert sessions == [worker.pid for worker, _ in guests]
        assert len(parents) == 1
        assert parents.isdisjoint({os.getpid(), *sessions})
        for number, (worker, delegate) in enumerate(guests):
            worker.execute([(number, request(number, 2), None)], 1)
            await until_async(lambda delegate=delegate: delegate.answers, "the answer")
            assert delegate.outputs()[0].tolist() == [number, 2]
        drawn = []
        for worker, delegate in guests:
            await worker.stop(5)
            assert worker._process.exited.result() == 0
            assert ("stdout", "modules ['slow_to_import'] ['']") in delegate.lines
            assert ("stdout", "stdin '' threads 0") in delegate.lines
            drawn += [number for stream, line in delegate.lines if stream == "stderr" for number in line.split()[1:]]
        assert len(set(drawn)) == 6
    await ended(*parents)


async def test_a_timeout_that_a_module_sets_for_sockets_is_not_that_of_the_guests_own(tmp_path):
    methods = f"""
    def initialize(self, args):
        import threading
        threading.Timer(0.1, print, ["waited"], {{"flush": True}}).start()
{IDENTITY}
"""
    with borrowed(ForkServerPool(), "slow_to_import") as prewarmed:
        module = "import socket\nsocket.setdefaulttimeout(0.02)"
        worker, delegate = await started(warm_spec(tmp_path, prewarmed, methods, module))
        await until_async(lambda: ("stdout", "waited") in delegate.lines, "more time than the timeout to pass")
        worker.execute([(1, request(4), None)], 1)
        await until_async(lambda: delegate.answers, "the answer")
        assert delegate.outputs()[0].tolist() == [4]
        await worker.stop(5)


async def test_a_forked_guest_shows_its_instance_in_lists_of_processes(tmp_path):
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        worker, _ = await started(warm_spec(tmp_path, prewarmed, IDENTITY))
        shown = psutil.Process(worker.pid)
        assert shown.name() == "m_0_0"
        assert shown.cmdline()[2:4] == ["--instance", "m_0_0"]
        assert shown.cmdline()[:2] == parent_of(worker).cmdline()[:2]
        assert "NAIAD_GUEST_ID" in shown.environ()  # the sweeper reads it, in the memory behind the command line
        await worker.stop(5)


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        (7, 7, "exited with status 7"),
        (-int(signal.SIGSEGV), -11, "was killed by SIGSEGV"),
        (0, 0, "exited with status 0"),
    ],
)
async def test_the_exit_of_a_forked_guest_is_reported(tmp_path, how, status, words):
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        worker, delegate = await started(warm_spec(tmp_path, prewarmed, DIES))
        worker.execute([(1, request(how), None)], 1)
        await until_async(lambda: delegate.deaths, "the exit_report")
        (error,) = delegate.deaths
        assert error.exit_status == status
        assert f"pid {worker.pid} {words}" in error.message
        assert not psutil.pid_exists(worker.pid)


async def test_processes_started_by_a_forked_guest_end_with_it(tmp_path):
    methods = """
        def initialize(self, args):
            import subprocess
            print("child", subprocess.Popen(["sleep", "100"]).pid, flush=True)

        def execute(self, requests):
            os._exit(1)
    """
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        worker, delegate = await started(warm_spec(tmp_path, prewarmed, methods))
        await until_async(lambda: delegate.lines, "the child's number")
        child = int(delegate.lines[0][1].split()[1])
        worker.execute([(1, request(1), None)], 1)
        await until_async(lambda: delegate.deaths, "the exit_report")
        await ended(child)


async def test_guests_end_with_the_process_they_were_forked_from_and_others_come_from_a_new_one(tmp_path):
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        spec = warm_spec(tmp_path, prewarmed)
        guests = [await started(spec) for _ in range(2)]
        server = parent_of(guests[0][0])
        server.kill()
        for worker, delegate in guests:
            await until_async(lambda delegate=delegate: delegate.deaths, "the exit_report")
            (error,) = delegate.deaths
            assert error.exit_status == -signal.SIGKILL
            assert (
                f"pid {worker.pid} was killed: the process it was forked from is gone: the fork server ended: "
                f"pid {server.pid} was killed by SIGKILL"
            ) in error.message
        worker, _ = await started(spec)
        assert parent_of(worker).pid not in {server.pid, os.getpid()}
        await worker.kill()


NAME, ENDED = "slow_to_import", "the fork server ended: pid PID exited with status"
BUSY = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='busy', daemon=True).start()"
NATIVE = """
    import ctypes
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
"""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import no_such_module", f"{NAME} cannot be imported: ModuleNotFoundError: No module named 'no_such_mod"),
        ("import os; os._exit(3)", f"{ENDED} 3"),
        ("import os, time\nos.closerange(3, 50)\ntime.sleep(1.5)\nos._exit(3)", f"{ENDED} 3"),
        ("import sys; sys.exit('broken for good')", f"{ENDED} 1. Its last lines on stderr:\nbroken for good"),
        (BUSY, f"importing {NAME} left threads running: busy"),
        (NATIVE, f"importing {NAME} left threads of a native library running"),
    ],
    ids=["missing", "ends", "ends-slowly", "exits", "thread", "native-thread"],
)
async def test_a_guest_that_cannot_be_forked_is_started_as_any_other(tmp_path, caplog, module, reason):
    caplog.set_level(logging.INFO)
    with borrowed(ForkServerPool(), "numpy", "slow_to_import") as prewarmed:
        worker, _ = await started(warm_spec(tmp_path, prewarmed, modules=module))
        assert parent_of(worker).pid == os.getpid()
        await worker.kill()

    (record,) = [record for record in caplog.records if "without the prewarmed" in record.getMessage()]
    start = "'m_0_0' is started without the prewarmed numpy, slow_to_import: "
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(start)
    pid = record.getMessage().partition("pid ")[2].split(" ")[0]
    assert record.getMessage()[len(start) :].startswith(reason.replace("PID", pid))


async def test_a_start_that_is_given_up_leaves_no_guest(tmp_path):
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        spec = warm_spec(tmp_path, prewarmed)
        first, _ = await started(spec)
        server = parent_of(first)
        for _ in range(5):
            worker, _ = guest(spec)
            start = asyncio.ensure_future(worker.start())
            await asyncio.sleep(0)  # far enough for it to ask for the fork, and no further
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
        await until_async(lambda: [each.pid for each in server.children()] == [first.pid], "the others to go")
        await first.kill()


async def test_an_interpreter_that_is_not_there_is_the_guests_own_failure(tmp_path):
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        spec = dataclasses.replace(warm_spec(tmp_path, prewarmed), python=tmp_path / "python")
        worker, _ = guest(spec)
        with pytest.raises(GuestExitedError, match=r"cannot start 'm_0_0': .*No such file"):
            await worker.start()


async def test_a_guest_whose_fork_the_system_refuses_is_started_as_any_other(tmp_path, caplog):
    module = """
        import errno, os, sys

        fork = os.fork
        def fork_once():
            os.fork = refuse
            return fork()  # the one for trial
        def refuse():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        if "--fork-server" in sys.argv:
            os.fork = fork_once
    """
    with borrowed(ForkServerPool(), "slow_to_import") as prewarmed:
        worker, _ = await started(warm_spec(tmp_path, prewarmed, modules=module))
        assert parent_of(worker).pid == os.getpid()
        await worker.kill()

    assert "without the prewarmed slow_to_import: fork: Resource temporarily unavailable" in caplog.text


async def test_a_stub_that_knows_no_fork_servers_serves_all_the_same(tmp_path, caplog):
    own = tmp_path / "triton_python_backend_stub"
    refusal = "import sys\nif '--fork-server' in sys.argv: sys.exit('what is --fork-server?')\n"
    with borrowed(ForkServerPool(), "numpy") as prewarmed:
        spec = warm_spec(tmp_path, prewarmed)
        own.write_text(refusal + spec.stub.read_text())
        worker, _ = await started(dataclasses.replace(spec, stub=own))
        await worker.kill()

    assert "exited with status 1. Its last lines on stderr:\nwhat is --fork-server?" in caplog.text


@pytest.mark.parametrize(("version", "python"), each_interpreter())
async def test_guests_are_forked_under_every_interpreter(version, python, tmp_path, tmp_path_factory):
    environment = numpy_environment(tmp_path_factory, version, python)
    with borrowed(ForkServerPool(), "numpy", "asyncio") as prewarmed:
        spec = launch_spec(tmp_path, IDENTITY)
        environ = {**os.environ, "PYTHONWARNINGS": "error::DeprecationWarning:naiad_stub.forkserver"}
        python = environment / "bin" / "python"
        spec = dataclasses.replace(spec, python=python, environ=environ, prewarm=prewarmed, start_timeout=60)
        guests = [await started(spec) for _ in range(2)]
        for worker, delegate in guests:
            assert worker.python.startswith(".".join(map(str, version)))
            assert parent_of(worker).pid != os.getpid()
            worker.execute([(1, request(1, 2), None)], 1)
            await until_async(lambda delegate=delegate: delegate.answers, "the answer")
            await worker.stop(5)
            assert worker._process.exited.result() == 0
            assert delegate.lines == []
