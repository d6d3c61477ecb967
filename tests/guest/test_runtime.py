"""The runtime: which one the API uses, by context, thread and process."""

from __future__ import annotations

import asyncio
import threading

import pytest
from naiad_stub import runtime
from naiad_stub.exceptions import TritonModelException
from naiad_stub.runtime import Runtime
from support.threads import in_thread


@pytest.fixture
def installed():
    made = Runtime(model_dir="installed")
    runtime.install(made)
    yield made
    runtime.uninstall(made)


def test_outside_a_server_the_runtime_raises_errors_that_name_the_missing_server(capsys):
    outside = runtime.current()
    outside.log(1, "/somewhere/model.py", 3, "text")
    assert outside.model_dir == ""
    assert outside.allocate(3)[0] is None
    assert len(outside.allocate(3)[1]) == 3
    assert capsys.readouterr().err.endswith(" model.py:3]  text\n")
    for use in (
        lambda: outside.calls.exec(None, False),
        lambda: outside.senders.sender_of(None),
        lambda: outside.control.load_model("m", "", None),
        lambda: outside.control.unload_model("m", False),
        lambda: outside.control.is_model_ready("m", ""),
        lambda: outside.metrics.new_family("f", "", None),
    ):
        with pytest.raises(TritonModelException):
            use()


def test_the_runtime_installed_last_is_that_of_the_process(installed):
    other = Runtime()
    runtime.install(other)
    assert runtime.current() is other
    runtime.uninstall(installed)
    assert runtime.current() is other
    runtime.install(installed)
    assert runtime.current() is installed
    runtime.uninstall(other)
    assert runtime.current() is installed


def test_an_activated_runtime_comes_before_the_installed_one(installed):
    outer, inner = Runtime(), Runtime()
    with runtime.activate(outer):
        with runtime.activate(inner):
            assert runtime.current() is inner
        assert runtime.current() is outer
    assert runtime.current() is installed


def test_a_thread_of_the_model_has_the_installed_runtime(installed):
    with runtime.activate(Runtime()):
        assert in_thread(runtime.current).result(60) is installed


def test_a_coroutine_keeps_its_runtime_on_the_thread_of_a_loop(installed):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def look():
        await asyncio.sleep(0)
        return runtime.current()

    activated = Runtime()
    with runtime.activate(activated):
        future = asyncio.run_coroutine_threadsafe(look(), loop)
    assert future.result(10) is activated
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
