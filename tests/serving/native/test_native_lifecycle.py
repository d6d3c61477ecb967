"""A backend of seven functions with two instances: from its load to its end, and what a crash leaves behind."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import psutil
import pytest
from serving.native.test_native_backends import DYNAMIC, TWO, ask, data
from support.model_files import python_config, write_files
from support.native import add_model, compiled
from support.server import ServerProcess
from support.threads import in_thread
from support.waiting import until


def guests(server: ServerProcess) -> list[psutil.Process]:
    """The guests of the server, which serve models: a completed configuration's guest has exited."""
    found = []
    for child in psutil.Process(server.pid).children():
        try:
            if "--inputs" in child.cmdline():
                found.append(child)
        except psutil.Error:  # it is exiting
            continue
    return found


def test_load_request_batch_unload_reload_kill_and_restart(tmp_path):
    repository = tmp_path / "models"
    folder = add_model(repository, "served", "complete.c", backend="custom", config=DYNAMIC + TWO, max_batch_size=4)
    with ServerProcess(repository, "--model-control-mode=explicit", work=tmp_path) as server:

        def control(action: str) -> None:
            reply = server.post(f"/v2/repository/models/served/{action}")
            assert reply.status == 200, reply.body

        control("load")
        assert data(ask(server, "served", 1)) == [1]
        assert len(guests(server)) == 2
        control("unload")
        until(lambda: not guests(server), "the end of the guests")
        control("load")
        for guest in guests(server):
            guest.send_signal(signal.SIGKILL)
        until(lambda: "SIGKILL" in server.log, "the report of the kill")
        until(lambda: server.get("/v2/models/served/ready").status == 200, "the restart")
        assert data(ask(server, "served", 2)) == [2]
        # A new library beside the model: loading again takes it.
        shutil.copy(compiled("batching.c"), folder / "libtriton_custom.so.new")
        (folder / "libtriton_custom.so.new").rename(folder / "libtriton_custom.so")
        control("load")
        assert ask(server, "served", 3).json()["parameters"] == {"batch": 1}


def segments(server: ServerProcess) -> int:
    """The shared segments that the server has open: anonymous files, which no folder lists."""
    found = 0
    for descriptor in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            found += str(descriptor.readlink()).startswith("/memfd:")
        except FileNotFoundError:  # closed since it was listed
            continue
    return found


@pytest.mark.parametrize("instances", [1, 2])
def test_a_crash_under_load_fails_only_its_own_requests_and_leaves_nothing_behind(tmp_path, instances):
    repository = tmp_path / "models"
    several = f"instance_group {{ count: {instances} }}\n"
    add_model(repository, "faults", "faults.c", max_batch_size=1, config=several)
    add_model(repository, "echo", "echo.c")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with ServerProcess(repository, work=tmp_path, environ={"TMPDIR": str(temporary)}) as server:
        until(lambda: len(guests(server)) == instances + 1, "the guests")
        descriptors, files = segments(server), set(temporary.rglob("*"))
        stop, counts = threading.Event(), [0, 0]

        def load(number: int, model: str, *values: float) -> None:
            while not stop.is_set():
                reply = ask(server, model, *values)
                assert reply.status == 200, reply
                counts[number] += 1

        loads = in_thread(load, 0, "echo", 5), in_thread(load, 1, "faults", 0, 3)
        try:
            for _ in range(3):
                crashed = ask(server, "faults", 6)
                assert crashed.status == 500
                assert "was killed by SIGSEGV" in crashed.error
                before = counts[1]
                until(lambda before=before: counts[1] > before + 1, "answers of the model that crashed")
                until(lambda: len(guests(server)) == instances + 1, "the restart")
        finally:
            stop.set()
        for each in loads:
            each.result(60)
        assert counts[0] > 0
        until(lambda: segments(server) == descriptors, "the end of the segments of guests that crashed")
        assert set(temporary.rglob("*")) == files


def test_a_backend_sees_a_change_of_the_logs_level(tmp_path):
    add_model(tmp_path / "models", "faults", "faults.c", max_batch_size=1)
    with ServerProcess(tmp_path / "models", work=tmp_path) as server:
        for level, seen in ((0, "terse"), (1, "verbose"), (0, "terse")):
            assert server.post("/v2/logging", {"log_verbose_level": level}).status == 200
            until(lambda seen=seen: ask(server, "faults", 16).error == seen, f"a {seen} log")
        begin = len(server.log)
        assert ask(server, "faults", 16).error == "terse"
        assert "all about it" in server.log[:begin]
        assert "all about it" not in server.log[begin:]


def test_a_backend_knows_which_levels_are_logged(tmp_path):
    add_model(tmp_path / "models", "echo", "echo.c")
    add_model(tmp_path / "models", "asks", "asks.c")

    def levels() -> str:
        reply = ask(server, "asks", 1)
        assert reply.status == 200, reply.body
        told: str = reply.json()["parameters"]["log levels -1 to 4"]
        return told

    with ServerProcess(tmp_path / "models", "--log-info=false", "--log-warning=false", work=tmp_path) as server:
        assert levels() == "000100"
        for changes, expected in (
            ({"log_warning": True, "log_error": False}, "001000"),
            ({"log_info": True, "log_error": True, "log_verbose_level": 1}, "011110"),
        ):
            assert server.post("/v2/logging", changes).status == 200
            until(lambda expected=expected: levels() == expected, f"the levels {expected}")


def test_a_library_that_cannot_be_loaded_is_an_error_that_names_the_cause(tmp_path):
    repository = tmp_path / "models"
    for name in ("text", "other"):
        config = python_config("IN FP32 1", "OUT FP32 1", "max_batch_size: 1\n").replace("python", "own")
        write_files(repository, name, config)
    (repository / "text" / "libtriton_own.so").write_text("not a library")
    from naiad_stub.native.elf import write_library

    (repository / "other" / "libtriton_own.so").write_bytes(write_library(["other"], "libtriton_own.so"))
    with ServerProcess(repository, "--exit-on-error=false", work=tmp_path, wait="loaded") as server:

        def reasons() -> dict[str, str]:
            return {entry["name"]: entry.get("reason", "") for entry in server.post("/v2/repository/index").json()}

        until(lambda: all(reasons().values()), "both failures")
        found = reasons()
    assert "unable to load shared library: " in found["text"]
    assert "invalid ELF header" in found["text"] or "file too short" in found["text"]
    assert (
        "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library: " in found["other"]
    )
