"""Models that change the process they run in: its threads, its descriptors, its process group."""

from __future__ import annotations

import pytest
from serving.written import RUNS_CODE, evaluate, send_code, write_model
from support.server import ServerProcess

IS_READY = """
def is_ready(self):
    return True
"""
SLOW_START = """
def initialize(self, args):
    time.sleep(1.2)  # longer than two beats of the guest
"""
COUNT_ONE = """
family = pb_utils.MetricFamily(name="patched", description="d", kind=pb_utils.MetricFamily.COUNTER)
metric = family.Metric(labels={})
metric.increment(1)
"""
CALL = (
    "pb_utils.InferenceRequest(model_name='other', inputs=[pb_utils.Tensor('CODE', np.array([b'1+1'], object))], "
    "requested_output_names=['OUT']).exec().output_tensors()[0].as_numpy()[0]"
)
ALIVE = "1 + 1"


def test_model_may_replace_threads_by_greenlets(tmp_path):
    pytest.importorskip("gevent")
    file = write_model(tmp_path / "models", "patches", RUNS_CODE + IS_READY + SLOW_START)
    file.write_text(f"from gevent import monkey\nmonkey.patch_all()\n{file.read_text()}")
    write_model(tmp_path / "models", "other")

    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert evaluate(server, "patches", "bool(monkey.saved)") == "True"
        assert server.get("/v2/models/patches/ready").status == 200
        assert evaluate(server, "patches", COUNT_ONE) == "done"
        assert evaluate(server, "patches", "time.sleep(0.2)") == "None"  # other greenlets run meanwhile
        assert evaluate(server, "patches", CALL) == "b'2'"
        assert evaluate(server, "patches", "from gevent.pool import Pool") == "done"
        assert evaluate(server, "patches", f"Pool(4).map(lambda _: {CALL}, range(8))") == repr([b"2"] * 8)
        assert "\npatched 1\n" in server.metrics()
        assert "Exception ignored" not in server.log


@pytest.mark.parametrize(
    "changes",
    [
        (
            "[os.close(each) for each in range(3, 4096) if os.path.exists(f'/proc/self/fd/{each}')] and None",
            "os.closerange(3, 4096)",
            "os.closerange(3, os.sysconf('SC_OPEN_MAX'))",
            "(os.setsid(), os.setpgrp(), os.setpgid(0, 0), os.setpgid(os.getpid(), os.getpid())) and None",
        ),
        (
            "os.close(1) or print('after', flush=True)",
            "os.close(2) or print('after', file=__import__('sys').stderr, flush=True)",
        ),
        ("os.close(1) or __import__('sys').stdout.buffer.write(b'after') and None",),
    ],
)
def test_model_may_close_descriptors_and_ask_for_a_session_of_its_own(tmp_path, changes):
    write_model(tmp_path / "models", "changes", RUNS_CODE + IS_READY)

    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        before = evaluate(server, "changes", "os.getpid()")
        for code in changes:
            assert evaluate(server, "changes", code) == "None", code
            assert evaluate(server, "changes", ALIVE) == "2", code
            assert server.get("/v2/models/changes/ready").status == 200, code
            assert evaluate(server, "changes", "os.getpid()") == before, code


def test_children_of_a_model_may_not_ask_twice_for_a_session(tmp_path):
    """In a child the kernel's answer holds: it tells launchers whether they lead a session."""
    write_model(tmp_path / "models", "forks")
    child = "import sys\npid = os.fork()\nif not pid:\n    os.setsid()\n    try:\n        os.setsid()\n"
    child += "    except PermissionError:\n        os._exit(7)\n    os._exit(0)\n"

    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        assert evaluate(server, "forks", child) == "done"
        assert evaluate(server, "forks", "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])") == "7"


def test_model_that_closes_its_connection_is_named_as_the_cause(tmp_path):
    write_model(tmp_path / "models", "closes")
    code = "import stat\nfor each in map(int, os.listdir('/proc/self/fd')):\n"
    code += "    if os.path.exists(f'/proc/self/fd/{each}') and stat.S_ISSOCK(os.fstat(each).st_mode):\n        os.close(each)"

    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        reply = send_code(server, "closes", code)
        assert reply.status == 500
        assert "the connection of its process to the server; close only descriptors that" in reply.error
