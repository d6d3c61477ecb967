"""Tensors in clients' shared memory, created with tritonclient's utilities, over both protocols."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import queue
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.utils.shared_memory as shm
from fakes.engine import FakeEngine
from support.waiting import until
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from naiad.frontends.extensions import Extensions
from naiad.frontends.region_inputs import RegionReading
from naiad.frontends.regions import ClientRegions
from naiad.frontends.request_memory import RequestMemory
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InputTensor

FOUR = np.array([1, 2, 4, 8], np.float32)
HANDLE = base64.b64encode(bytes(64))
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


@pytest.fixture
def regions() -> ClientRegions:
    return ClientRegions(is_allowed=True)


@pytest.fixture
def both(serve, regions):
    return serve(Extensions(regions=regions))


@pytest.fixture
def client(connect, both):
    return connect(both)


@pytest.fixture
def region():
    """A region of 8 KiB of a client: its key and its handle."""
    key = f"/naiad_test_{secrets.token_hex(6)}"
    handle = shm.create_shared_memory_region("r", key, 8192)
    yield key, handle
    with contextlib.suppress(shm.SharedMemoryException):
        shm.destroy_shared_memory_region(handle)


def tensor_in(api, offset=0, size=16, region="r"):
    tensor = api.InferInput("INPUT0", [4], "FP32")
    tensor.set_shared_memory(region, size, offset)
    return tensor


def tensor_out(api, offset=0, size=16, region="r"):
    output = api.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory(region, size, offset)
    return output


def refusal(call, *arguments, **options) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value


def status_is(error, http, grpc):
    return error.status() in {str(http), f"StatusCode.{grpc}"}


def test_tensors_go_through_the_clients_region_both_ways(client, api, region):
    key, handle = region
    shm.set_shared_memory_region(handle, [FOUR])
    client.register_system_shared_memory("r", key, 8192)

    result = client.infer("identity", [tensor_in(api)], outputs=[tensor_out(api, offset=4096, size=64)])

    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [4], offset=4096), FOUR)
    output = result.get_output("OUTPUT0")
    assert (output["shape"] if isinstance(output, dict) else list(output.shape)) == [4]


def test_an_input_has_its_value_at_the_arrival_of_the_request(client, api, both, region):
    key, handle = region
    shm.set_shared_memory_region(handle, [FOUR])
    client.register_system_shared_memory("r", key, 8192)
    client.infer("identity", [tensor_in(api)])
    [request] = both.engine.requests

    shm.set_shared_memory_region(handle, [FOUR * 2])

    np.testing.assert_array_equal(np.frombuffer(request.inputs[0].data, np.float32), FOUR)


@pytest.mark.parametrize("size", [1 << 10, 200 << 10, 5 << 20])
def test_inputs_and_outputs_of_every_size_are_copied_whole(client, api, both, size):
    """At once, and in slices; into the place that the engine gives for long ones, if it gives one."""
    key = f"/naiad_test_{secrets.token_hex(6)}"
    handle = shm.create_shared_memory_region("r", key, 2 * size)
    try:
        data = np.random.default_rng(size).random(size // 4, np.float32)
        shm.set_shared_memory_region(handle, [data])
        client.register_system_shared_memory("r", key, 2 * size)
        given = api.InferInput("INPUT0", [size // 4], "FP32")
        given.set_shared_memory("r", size)
        for model in ("identity", "later"):
            client.infer(model, [given], outputs=[tensor_out(api, offset=size, size=size)])
            written = shm.get_contents_as_numpy(handle, np.float32, [size // 4], offset=size)
            np.testing.assert_array_equal(written, data)
            shm.set_shared_memory_region(handle, [np.zeros(size // 4, np.float32)], offset=size)
        client.unregister_system_shared_memory("r")
    finally:
        shm.destroy_shared_memory_region(handle)
    assert both.extensions.memory.budget.in_use == 0


def test_a_part_of_a_region_can_be_registered_at_any_offset(client, api, region):
    key, handle = region
    shm.set_shared_memory_region(handle, [FOUR], offset=5000)
    client.register_system_shared_memory("r", key, 100, offset=4990)

    result = client.infer("identity", [tensor_in(api, offset=10)])

    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FOUR)


def test_regions_are_listed_and_unregistered(client, api, both, region):
    key, _ = region
    client.register_system_shared_memory("two", key, 8092, offset=100)
    client.register_system_shared_memory("one", key, 100)

    status = both.http("GET", "/v2/systemsharedmemory/status")[1]
    assert status == [
        {"name": "one", "key": key, "offset": 0, "byte_size": 100},
        {"name": "two", "key": key, "offset": 100, "byte_size": 8092},
    ]
    told = client.get_system_shared_memory_status("two", **({} if api.__name__.endswith("http") else {"as_json": True}))
    assert "one" not in str(told)
    assert key in str(told)
    client.unregister_system_shared_memory("one")
    client.unregister_system_shared_memory("one")
    assert both.http("GET", "/v2/systemsharedmemory/status")[1] == status[1:]
    client.unregister_system_shared_memory()
    assert both.http("GET", "/v2/systemsharedmemory/status") == (200, [])
    error = refusal(client.get_system_shared_memory_status, "two")
    assert error.message() == "Unable to find system shared memory region: 'two'"
    assert status_is(error, 404, "NOT_FOUND")


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_region_that_a_request_uses_cannot_be_unregistered(client, api, both, region, place):
    key, handle = region
    shm.set_shared_memory_region(handle, [FOUR])
    client.register_system_shared_memory("r", key, 8192)
    client.register_system_shared_memory("other", key, 4096)
    client.register_system_shared_memory("free", key, 4096)
    port = both.http_port if api.__name__.endswith("http") else both.grpc_port

    def infer():
        with contextlib.closing(api.InferenceServerClient(f"127.0.0.1:{port}")) as own:
            used = {"input": {"region": "r"}, "output": {"region": "other"}}[place]
            return own.infer("held", [tensor_in(api, **used)], outputs=[tensor_out(api, offset=64, **used)])

    used = {"input": "r", "output": "other"}[place]
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(infer)
        both.loop.until(lambda: both.engine.held)
        error = refusal(client.unregister_system_shared_memory, used)
        assert error.message() == f"Cannot unregister shared memory region '{used}', it is currently in use."
        assert status_is(error, 500, "INTERNAL")
        error = refusal(client.unregister_system_shared_memory)
        assert error.message() == f"Failed to unregister the following system shared memory regions: {used} ,"
        assert status_is(error, 500, "INTERNAL")
        assert [each["name"] for each in both.http("GET", "/v2/systemsharedmemory/status")[1]] == [used]
        error = refusal(client.register_system_shared_memory, used, key, 100)
        assert error.message() == f"shared memory region '{used}' already in manager"
        both.loop.call(both.engine.release)
        pending.result(10)
    client.unregister_system_shared_memory(used)  # at once: the response was the last use
    assert both.http("GET", "/v2/systemsharedmemory/status") == (200, [])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [4], offset=64), FOUR)


@pytest.fixture
def without_collector():
    """No cycle is collected: what is in use because of one stays in use."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_no_failure_keeps_a_region_in_use(client, api, both, region):
    """Requests that are rejected, that fail, whose output does not fit, and whose client has left."""
    key, _ = region
    client.register_system_shared_memory("r", key, 8192)
    wrong = api.InferInput("NO_SUCH_INPUT", [4], "FP32")
    wrong.set_shared_memory("r", 16)
    missing = tensor_out(api, region="q")
    for model, inputs, outputs in (
        ("no_such_model", [tensor_in(api)], [tensor_out(api)]),
        ("not_ready", [tensor_in(api)], [tensor_out(api)]),
        ("failing", [tensor_in(api)], [tensor_out(api)]),
        ("add_sub", [wrong], [tensor_out(api)]),
        ("identity", [tensor_in(api)], [missing]),
        ("identity", [tensor_in(api)], [tensor_out(api, size=15)]),
        ("later", [tensor_in(api)], [tensor_out(api, size=15)]),
    ):
        refusal(client.infer, model, inputs, outputs=outputs)
        client.unregister_system_shared_memory("r")
        client.register_system_shared_memory("r", key, 8192)


@pytest.mark.parametrize("ends", [True, False], ids=["cancelled", "goes-on"])
def test_a_client_that_leaves_frees_its_region(client, api, both, region, ends):
    """Also where the model ignores that its request is cancelled."""
    key, _ = region
    if not ends:
        both.engine.cancel = both.engine.cancelled.append
    client.register_system_shared_memory("r", key, 8192)
    port = both.http_port if api.__name__.endswith("http") else both.grpc_port
    options = {"network_timeout": 0.2} if api.__name__.endswith("http") else {}
    with contextlib.closing(api.InferenceServerClient(f"127.0.0.1:{port}", **options)) as own, pytest.raises(Exception):  # noqa: B017 - each client has its own
        own.infer(
            "held",
            [tensor_in(api)],
            outputs=[tensor_out(api)],
            **({} if api.__name__.endswith("http") else {"client_timeout": 0.2}),
        )
    both.loop.until(lambda: both.engine.cancelled)
    client.unregister_system_shared_memory("r")
    both.loop.call(both.engine.release)


def test_a_stream_uses_its_region_until_the_last_response(both, region):
    key, _ = region
    with contextlib.closing(tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{both.grpc_port}")) as client:
        client.register_system_shared_memory("r", key, 8192)
        responses = queue.Queue()
        client.start_stream(lambda result, error: responses.put((result, error)))
        given = tritonclient.grpc.InferInput("IN", [1], "INT32")
        given.set_shared_memory("r", 4)
        client.async_stream_infer("repeat", [given])  # no response, and an end
        client.async_stream_infer("held", [tensor_in(tritonclient.grpc)], outputs=[tensor_out(tritonclient.grpc)])
        both.loop.until(lambda: both.engine.held)
        error = refusal(client.unregister_system_shared_memory, "r")
        assert error.message() == "Cannot unregister shared memory region 'r', it is currently in use."
        both.loop.call(both.engine.release)
        assert responses.get(timeout=10)[1] is None
        client.unregister_system_shared_memory("r")
        client.stop_stream()


def test_a_region_is_open_as_long_as_it_is_registered(client, region):
    key, _ = region

    def opened():
        found = []
        for each in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(each.readlink()))
        return found.count(f"/dev/shm{key}")

    before = opened()
    client.register_system_shared_memory("r", key, 8192)
    assert opened() == before + 1
    client.unregister_system_shared_memory("r")
    assert opened() == before


RESERVED = "triton_python_backend_shm_region_1"
INVALID = "failed to register shared memory region '{}': invalid args"
BAD_REQUEST = (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("name", "key", "offset", "size", "text", "statuses"),
    [
        *(
            ("n", key, 0, 8, f"Unable to open shared memory region: '{key}'", (500, "INTERNAL"))
            for key in ("/no_such_region", "/../../etc/passwd", "/a\0b", "/k\0/x", "")
        ),
        *(
            ("n", None, offset, size, INVALID.format("n"), BAD_REQUEST)
            for offset, size in ((0, 8193), (8192, 1), (1 << 63, 1), (0, 0))
        ),
        ("r", None, 0, 8, "shared memory region 'r' already in manager", (400, "ALREADY_EXISTS")),
        (RESERVED, None, 0, 8, INVALID.format(RESERVED), BAD_REQUEST),
        ("n", f"/{RESERVED}", 0, 8, INVALID.format("n"), BAD_REQUEST),
        ("n", f"///{RESERVED}", 0, 8, INVALID.format("n"), BAD_REQUEST),
    ],
)
def test_an_invalid_registration_is_refused(client, region, name, key, offset, size, text, statuses):
    client.register_system_shared_memory("r", region[0], 8192)
    error = refusal(client.register_system_shared_memory, name, region[0] if key is None else key, size, offset=offset)
    assert error.message() == text
    assert status_is(error, *statuses)


@pytest.mark.parametrize(
    ("where", "text", "statuses"),
    [
        ({"region": "q"}, "Unable to find shared memory region: 'q'", (404, "NOT_FOUND")),
        ({"offset": 8192}, "Invalid offset for shared memory region: 'r'", BAD_REQUEST),
        ({"offset": 8190}, "Invalid offset + byte size for shared memory region: 'r'", BAD_REQUEST),
        ({"size": 8193}, "Invalid offset + byte size for shared memory region: 'r'", BAD_REQUEST),
    ],
)
def test_no_tensor_lies_outside_its_region(client, api, region, where, text, statuses):
    client.register_system_shared_memory("r", region[0], 8192)
    for inputs, outputs in (([tensor_in(api, **where)], []), ([tensor_in(api)], [tensor_out(api, **where)])):
        error = refusal(client.infer, "identity", inputs, outputs=outputs)
        assert error.message() == text
        assert status_is(error, *statuses)


def test_a_missing_region_is_reported_before_any_other_fault(both):
    nowhere = {"shared_memory_region": "q"}
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [4]}
    for document in (
        {"inputs": [{**tensor, "parameters": nowhere}]},
        {"inputs": [{**tensor, "data": [1, 2, 3, 4]}], "outputs": [{"name": "OUTPUT0", "parameters": nowhere}]},
    ):
        status, answer = both.http("POST", "/v2/models/identity/infer", document)
        assert (status, answer) == (404, {"error": "Unable to find shared memory region: 'q'"})


def test_an_output_that_does_not_fit_is_an_error_and_writes_nothing(client, api, region):
    key, handle = region
    shm.set_shared_memory_region(handle, [FOUR])
    client.register_system_shared_memory("r", key, 8192)
    error = refusal(client.infer, "identity", [tensor_in(api)], outputs=[tensor_out(api, offset=64, size=15)])
    assert error.message() == (
        "shared memory size specified with the request for output 'OUTPUT0' (15 bytes) should be at least 16 bytes to "
        "hold the results"
    )
    assert status_is(error, 500, "INTERNAL")
    assert not shm.get_contents_as_numpy(handle, np.float32, [4], offset=64).any()


def test_a_region_that_shrank_is_an_error_and_no_crash(client, api, region):
    key, _ = region
    client.register_system_shared_memory("r", key, 8192)
    os.truncate(f"/dev/shm{key}", 0)
    error = refusal(client.infer, "identity", [tensor_in(api)])
    assert error.message().startswith(
        f"cannot use shared memory region 'r': '{key}' has shrunk and ends before byte 16; "
    )
    assert client.is_server_live()


def test_a_region_that_shrank_while_its_request_was_computed_gets_no_output(client, api, both, region):
    key, _ = region
    client.register_system_shared_memory("r", key, 8192)
    port = both.http_port if api.__name__.endswith("http") else both.grpc_port

    def infer():
        with contextlib.closing(api.InferenceServerClient(f"127.0.0.1:{port}")) as own:
            return refusal(own.infer, "held", [tensor_in(api)], outputs=[tensor_out(api, offset=4096)])

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(infer)
        both.loop.until(lambda: both.engine.held)
        os.truncate(f"/dev/shm{key}", 100)
        both.loop.call(both.engine.release)
        error = pending.result(10)
    assert error.message() == (
        f"cannot use shared memory region 'r': '{key}' has shrunk and ends before byte 4112; "
        "unregister the region and register it again"
    )
    assert Path(f"/dev/shm{key}").stat().st_size == 100
    client.unregister_system_shared_memory("r")


def test_inputs_longer_than_all_requests_may_be_are_refused(serve, connect, api, region):
    key, _ = region
    extensions = Extensions(regions=ClientRegions(is_allowed=True), memory=RequestMemory(limit=4096))
    client = connect(serve(extensions))
    client.register_system_shared_memory("r", key, 8192)
    given = api.InferInput("INPUT0", [2048], "FP32")
    given.set_shared_memory("r", 8192)
    error = refusal(client.infer, "identity", [given])
    assert error.message() == (
        "input in shared memory of 8192 bytes exceeds the 4096 bytes that all requests in flight may use together; "
        "send smaller requests, or set --memory-limit-requests"
    )
    client.unregister_system_shared_memory("r")


def test_long_messages_with_inputs_that_are_too_long_are_refused_and_leave_nothing_open(serve, region):
    """The message is read in an offload process, and its input in shared memory afterwards."""
    key, _ = region
    os.truncate(f"/dev/shm{key}", 2 << 20)
    both = serve(Extensions(regions=ClientRegions(is_allowed=True), memory=RequestMemory(limit=1 << 20)))
    assert both.http("POST", "/v2/systemsharedmemory/region/r/register", {"key": key, "byte_size": 2 << 20})[0] == 200
    message = service_pb2.ModelInferRequest(model_name="add_sub")
    typed = message.inputs.add(name="INPUT0", datatype="FP32", shape=[40_000])
    typed.contents.fp32_contents.extend([1.5] * 40_000)
    shared = message.inputs.add(name="INPUT1", datatype="FP32", shape=[1 << 19])
    shared.parameters["shared_memory_region"].string_param = "r"
    shared.parameters["shared_memory_byte_size"].int64_param = 2 << 20
    with grpc.insecure_channel(f"127.0.0.1:{both.grpc_port}") as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        counts = []
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as failed:
                infer(message, timeout=20)
            assert failed.value.code().name == "INVALID_ARGUMENT"
            assert failed.value.details().startswith(
                "input in shared memory of 2097152 bytes exceeds the 1048576 bytes"
            )
            counts.append(len(_open_memory()))
    # A message may still be in its last turn when its client has the response.
    until(lambda: len(_open_memory()) <= counts[0], "what the messages used to be closed")


def _open_memory() -> list[str]:
    """The shared memory that this process has open; its clients open and close other files as they like."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(descriptor.readlink()))
    return [link for link in links if link.startswith(("/dev/shm/", "/memfd:"))]


def test_a_reading_that_the_budget_refuses_counts_no_further(loop, region):
    """Its next slice must not be read: nobody would free what it counts."""
    key, _ = region
    os.truncate(f"/dev/shm{key}", 4 << 20)
    extensions = Extensions(regions=ClientRegions(is_allowed=True), memory=RequestMemory(limit=8 << 20))
    budget, failures = extensions.memory.budget, []

    def start():
        extensions.regions.add("r", key, 0, 4 << 20)
        part = extensions.regions.part("r", 0, 4 << 20)
        request = InferRequest("identity", -1, [InputTensor("INPUT0", Datatype.FP32, (1 << 20,), part)])
        reading = RegionReading(request, RequestedOutputs(has_region_inputs=True), FakeEngine(), extensions)
        reading.start(lambda _: failures.append(None), failures.append)
        reading.refuse("no room")

    loop.call(start)
    assert [str(error) for error in failures] == ["no room"]
    # What was in the loop's queue then has run.
    for _ in range(20):
        loop.run(asyncio.sleep(0))
    assert budget.in_use == 0


def test_regions_are_refused_unless_the_flag_allows_them(serve, connect, api, region):
    client = connect(serve(Extensions()))
    for error in (
        refusal(client.register_system_shared_memory, "r", region[0], 8192),
        refusal(client.register_cuda_shared_memory, "c", HANDLE, 0, 8),
        refusal(client.infer, "identity", [tensor_in(api)]),
        refusal(client.infer, "identity", [tensor_in(api)], outputs=[tensor_out(api)]),
    ):
        assert error.message() == DISABLED
        assert status_is(error, 501, "UNIMPLEMENTED")
    for kind in ("system", "cuda"):
        listed = getattr(client, f"get_{kind}_shared_memory_status")
        assert not listed() or not listed().regions
        error = refusal(listed, "r")
        assert error.message() == f"Unable to find {kind} shared memory region: 'r'"
        assert status_is(error, 404, "NOT_FOUND")
        for names in ((), ("r",)):
            getattr(client, f"unregister_{kind}_shared_memory")(*names)


def test_cuda_regions_are_refused_on_a_server_without_a_gpu(client, region):
    client.register_system_shared_memory("r", region[0], 8192)
    error = refusal(client.register_cuda_shared_memory, "c", HANDLE, 0, 8)
    assert error.message() == (
        "failed to register shared memory region: invalid args; the server finds no GPU 0 on its machine: give the number "
        "that the GPU has for the server, or use system shared memory"
    )
    assert status_is(error, *BAD_REQUEST)
    error = refusal(client.register_cuda_shared_memory, "r", HANDLE, 0, 8)
    assert error.message() == "shared memory region 'r' already in manager"
    error = refusal(client.get_cuda_shared_memory_status, "c")
    assert error.message() == "Unable to find cuda shared memory region: 'c'"
    error = refusal(client.get_cuda_shared_memory_status, "r")
    assert error.message() == "The region named 'r' is registered as system shared memory, not CUDA shared memory"
    client.unregister_cuda_shared_memory("r")
    client.unregister_cuda_shared_memory()
    assert client.get_system_shared_memory_status("r")


NOT_STRING = "attempt to access JSON non-string as string"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"classification": 1}, 400, "Output can't set both 'shared_memory_region' and 'classification'"),
        ({"binary_data": True}, 400, "Output can't set both 'shared_memory_region' and 'binary_data'"),
        ({"shared_memory_region": 1}, 500, f"Unable to parse 'shared_memory_region': {NOT_STRING}"),
        ({"shared_memory_byte_size": -1}, 500, f"Unable to parse 'shared_memory_byte_size': {NOT_UNSIGNED}"),
    ],
)
def test_an_output_in_json_has_one_place_and_form(both, parameters, status, text):
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    body = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}],
        "outputs": [{"name": "OUTPUT0", "parameters": {**place, **parameters}}],
    }
    assert both.http("POST", "/v2/models/identity/infer", body) == (status, {"error": text})
