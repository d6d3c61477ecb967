"""`pb_utils.Tensor` over GPU memory, in a real guest with a stand-in for the driver."""

from __future__ import annotations

import pytest
from serving.gpu.gpu_models import add_code_model, run_code
from serving.written import evaluate
from support.server import ServerProcess


@pytest.fixture(scope="module")
def server(work, shared_driver):
    add_code_model(work / "models")
    with ServerProcess(work / "models", work=work, environ=shared_driver.environ) as server:
        server.driver = shared_driver
        yield server


def test_as_numpy_copies_what_is_in_gpu_memory(server):
    code = "a = DeviceArray.of(np.arange(6, dtype=np.int16).reshape(2, 3)); t = T('X', a); c = t.as_numpy(); c[:] = 0"

    assert run_code(
        server, code, "t.is_cpu(), t.shape(), t.as_numpy().tolist(), t.__dlpack_device__(), t.triton_dtype()"
    ) == ("(False, [2, 3], [[0, 1, 2], [3, 4, 5]], (2, 0), 7)")
    assert run_code(
        server, "b = DeviceArray.from_dlpack(t.to_dlpack())", "b.address == a.address, b.numpy().tolist()"
    ) == ("(True, [[0, 1, 2], [3, 4, 5]])")
    assert run_code(server, "b = DeviceArray.from_dlpack(t)", "b.numpy().tolist()") == "[[0, 1, 2], [3, 4, 5]]"
    assert run_code(server, "del a, b, t; gc.collect()", "device_arrays.lent_count()") == "0"
    server.wait_for(lambda: not server.driver.allocations(), "the array to be freed")


def test_a_gpu_tensor_is_lent_to_the_cpu_as_a_copy(server):
    code = (
        "t = T('X', DeviceArray.of(np.arange(3))); n = pb_utils.Tensor.from_dlpack('N', t.__dlpack__(dl_device=(1, 0)))"
    )

    assert run_code(server, code, "n.is_cpu(), n.as_numpy().tolist()") == "(True, [0, 1, 2])"
    assert "BufferError: Tensor 'X' is in GPU memory and cannot be on the CPU without a copy." in evaluate(
        server, "code", "t.__dlpack__(dl_device=(1, 0), copy=False)"
    )
    assert "BufferError: Tensor 'X' is in GPU memory and is not moved to DLPack device (2, 1)." in evaluate(
        server, "code", "t.__dlpack__(dl_device=(2, 1))"
    )


def test_a_copy_on_the_gpu_does_not_share_the_memory(server):
    code = "a = DeviceArray.of(np.arange(3)); t = T('X', a); b = DeviceArray.from_dlpack(t.__dlpack__(copy=True))"

    assert run_code(server, code, "b.address != a.address, b.numpy().tolist()") == "(True, [0, 1, 2])"
    assert run_code(server, "del a, b, t; gc.collect()", "0") == "0"
    server.wait_for(lambda: not server.driver.allocations(), "the copy to be freed")


def test_part_of_an_allocation_is_a_tensor(server):
    assert run_code(server, "t = T('X', DeviceArray.of(np.arange(9))[3:5])", "t.as_numpy().tolist()") == "[3, 4]"


QUEUED = """
import ctypes
def queued(stream_flags):
    a = DeviceArray.of(np.zeros(4, np.uint8))
    s = ctypes.c_void_p()
    device_arrays.cuda("cuStreamCreate", ctypes.byref(s), stream_flags)
    device_arrays.cuda("standinFill", s, ctypes.c_uint64(a.address), ctypes.c_size_t(4), 7)
    a.stream = s
    return a
"""


@pytest.mark.parametrize("flags", [0, 1], ids=["blocking", "non-blocking"])
def test_work_that_is_queued_on_a_stream_is_complete_before_a_tensor_is_read(server, flags):
    """The stand-in runs a stream's work when something waits for it: forgetting to wait reads zeros."""
    run_code(server, QUEUED, "0")

    assert (
        run_code(server, f"a = queued({flags})", "T('X', a).as_numpy().tolist(), a.asked_streams")
        == "([7, 7, 7, 7], [1])"
    )
    assert evaluate(server, "code", f"T('X', queued({flags}).capsule()).as_numpy().tolist()") == "[7, 7, 7, 7]"
    lent = f"DeviceArray.from_dlpack(T('X', queued({flags}).capsule()).__dlpack__(stream=2)).numpy().tolist()"
    assert evaluate(server, "code", lent) == "[7, 7, 7, 7]"
    copied = f"DeviceArray.from_dlpack(T('X', queued({flags})).__dlpack__(stream=2, copy=True)).numpy().tolist()"
    assert evaluate(server, "code", copied) == "[7, 7, 7, 7]"


def test_an_array_on_the_default_stream_waits_for_no_other_work(server):
    before = server.driver.calls()["cuCtxSynchronize"]
    run_code(server, "t = T('X', DeviceArray.of(np.arange(3)))", "t.as_numpy().tolist()")

    assert server.driver.calls()["cuCtxSynchronize"] == before
    evaluate(server, "code", "T('X', DeviceArray.of(np.arange(3)).capsule()).as_numpy()")
    assert server.driver.calls()["cuCtxSynchronize"] == before + 1
