"""Tensors in clients' own GPU memory (CUDA shared memory), through real servers and guests, with a stand-in for the driver."""

from __future__ import annotations

import base64
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from serving.gpu.gpu_models import DOUBLES, ECHO, TAKES_GPU, WHERE, add_ensemble, add_model, answering
from support.client_inputs import input_of
from support.cuda import StandInDriver
from support.server import ServerProcess
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

DECOUPLED = "model_transaction_policy { decoupled: true }\n"
BATCHES = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }\n"
STRINGS = answering('pb_utils.Tensor("OUT", given.as_numpy())')
STREAMS = """
def execute(self, requests):
    for request in requests:
        given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        sender = request.get_response_sender()
        for factor in (1, 2, 3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given * factor)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WAITS = """
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN")
    open(GATE + ".begun", "w").close()
    while not os.path.exists(GATE):
        time.sleep(0.002)
    return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", given.to_dlpack())])
"""
KEEPS = """
def initialize(self, args):
    self.kept = []
def respond(self, request):
    given = pb_utils.get_input_tensor_by_name(request, "IN")
    self.kept[:] = [given] if given.shape()[0] > 1 else []
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(given.shape(), np.float32))])
"""
SIZES = (4, 1024, 40_000, 1 << 20, 5 << 20)
_names = itertools.count()


@pytest.fixture(scope="module", params=[(), ("--processes=2",)], ids=["one-process", "frontends"])
def server(request, tmp_path_factory):
    work = tmp_path_factory.mktemp("server")
    driver = StandInDriver(work / "cuda", has_management=True)
    repository = work / "models"
    add_model(repository, "echo", ECHO, config=TAKES_GPU)
    add_model(repository, "echo_cpu", ECHO)
    add_model(repository, "where", WHERE, config=TAKES_GPU)
    add_model(repository, "where_cpu", WHERE)
    add_model(repository, "doubles", DOUBLES)
    add_model(repository, "cached", DOUBLES, config="response_cache { enable: true }\n")
    add_model(repository, "sequence", DOUBLES, config="max_batch_size: 0\nsequence_batching { }\n")
    add_model(repository, "batches", DOUBLES, config="max_batch_size: 2\n" + BATCHES)
    add_model(repository, "strings", STRINGS, datatype="STRING")
    add_model(repository, "streams", STREAMS, config=DECOUPLED)
    add_model(repository, "waits", WAITS.replace("GATE", repr(str(work / "gate"))), config=TAKES_GPU)
    add_model(repository, "keeps", KEEPS, config=TAKES_GPU)
    add_ensemble(repository, "chain", "doubles", "echo", "doubles")
    add_ensemble(repository, "chain_on_gpu", "echo", "echo")
    options = ("--allow-client-shm=true", "--cache-config=local,size=1048576", *request.param)
    with ServerProcess(repository, *options, work=work, environ=driver.environ) as server, driver.client() as client:
        server.driver, server.client, server.gate = driver, client, work / "gate"
        yield server
    assert (driver.allocations(), driver.opened(), driver.pinned(), driver.contexts()) == ([], [], [], [])


@pytest.fixture(params=["http", "grpc"])
def api(request, server):
    """A module of tritonclient, with a client that is closed at the end, and is `api.client` meanwhile."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    url = server.http_url if request.param == "http" else server.grpc_url
    with module.InferenceServerClient(url) as client:
        yield Api(module, client)
        client.unregister_cuda_shared_memory()


class Api:
    """One of the two client libraries, and a client."""

    def __init__(self, module, client):
        self.module, self.client = module, client
        self.InferInput = module.InferInput
        self.InferRequestedOutput = module.InferRequestedOutput
        self.is_http = module is tritonclient.http

    def given(self, region, shape, size, offset=0, datatype="FP32"):
        tensor = self.InferInput("IN", shape, datatype)
        tensor.set_shared_memory(region, size, offset)
        return tensor

    def connected(self, server):
        """Another client."""
        return self.module.InferenceServerClient(server.http_url if self.is_http else server.grpc_url)

    def wanted(self, region, size, offset=0):
        output = self.InferRequestedOutput("OUT")
        output.set_shared_memory(region, size, offset)
        return output


class Region:
    """Memory of the client that is registered under a name."""

    def __init__(self, server, api, size):
        self.name = f"region{next(_names):04}"  # in their order where they are listed
        self.memory = server.client.allocate(size)
        api.client.register_cuda_shared_memory(self.name, self.memory.handle, 0, size)


def refusal(call, *arguments, **options) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return caught.value


@pytest.mark.parametrize("model", ["echo", "echo_cpu"])
@pytest.mark.parametrize("count", [size // 4 for size in SIZES])
def test_tensors_go_through_the_clients_gpu_memory_both_ways(server, api, model, count):
    size = 4 * count
    region = Region(server, api, 2 * size + 256)
    values = np.random.default_rng(count).random(count, np.float32)
    region.memory.write(values.tobytes(), 128)

    result = api.client.infer(
        model,
        [api.given(region.name, [count], size, 128)],
        outputs=[api.wanted(region.name, size + 64, 192 + size)],
    )

    assert region.memory.read(size, 192 + size) == values.tobytes()
    output = result.get_output("OUT")
    shape = output["shape"] if isinstance(output, dict) else list(output.shape)
    assert shape == [count]
    api.client.unregister_cuda_shared_memory(region.name)  # at once: the response was the last use


def test_a_model_that_takes_gpu_memory_reads_the_clients_without_a_copy_to_the_cpu(server, api):
    region = Region(server, api, 800_000)
    region.memory.write(np.arange(100_000, dtype=np.float32).tobytes())
    before = [server.driver.bytes_of(name).count(400_000) for name in ("cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2")]

    places = [api.given(region.name, [100_000], 400_000)], [api.wanted(region.name, 400_000, 400_000)]
    api.client.infer("echo", places[0], outputs=places[1])

    after = [server.driver.bytes_of(name).count(400_000) for name in ("cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2")]
    assert after == before
    assert region.memory.read(400_000, 400_000) == np.arange(100_000, dtype=np.float32).tobytes()


@pytest.mark.parametrize(
    ("model", "count", "is_cpu"), [("where", 1 << 16, 0), ("where", 64, 1), ("where_cpu", 1 << 16, 1)]
)
def test_inputs_are_on_the_gpu_where_the_model_takes_them_there_and_they_are_large(server, api, model, count, is_cpu):
    region = Region(server, api, 4 * count)
    result = api.client.infer(model, [api.given(region.name, [count], 4 * count)])
    assert result.as_numpy("OUT").tolist() == [is_cpu]


@pytest.mark.parametrize("model", ["cached", "sequence", "chain", "chain_on_gpu"])
def test_every_kind_of_model_reads_and_writes_gpu_memory_of_clients(server, api, model):
    factor = {"chain": 4, "chain_on_gpu": 1}.get(model, 2)
    options = {"sequence_id": 7, "sequence_start": True, "sequence_end": True} if model == "sequence" else {}
    region = Region(server, api, 800_000)
    for step in range(3):
        values = np.arange(step, 100_000 + step, dtype=np.float32)
        region.memory.write(values.tobytes())
        api.client.infer(
            model,
            [api.given(region.name, [100_000], 400_000)],
            outputs=[api.wanted(region.name, 400_000, 400_000)],
            **options,
        )
        assert region.memory.read(400_000, 400_000) == (values * factor).tobytes()
    result = api.client.infer(model, [api.given(region.name, [100_000], 400_000)], **options)
    np.testing.assert_array_equal(result.as_numpy("OUT"), values * factor)


def test_a_cached_response_is_not_taken_for_that_of_other_bytes_in_the_same_memory(server, api):
    region = Region(server, api, 16)
    answers = []
    for value in (1, 2, 1):
        region.memory.write(np.full(4, value, np.float32).tobytes())
        answers.append(api.client.infer("cached", [api.given(region.name, [4], 16)]).as_numpy("OUT").tolist()[0])
    assert answers == [2, 4, 2]


def test_strings_are_read_from_gpu_memory_and_written_to_it(server, api):
    values = np.array([b"one", b"", b"three and more"], object)
    data = serialize_byte_tensor(values).item()
    region = Region(server, api, 512)
    region.memory.write(data)
    given = api.given(region.name, [3], len(data), datatype="BYTES")
    api.client.infer("strings", [given], outputs=[api.wanted(region.name, 256, 256)])
    assert region.memory.read(len(data), 256) == data

    region.memory.write(b"\xff\xff\xff\xff")
    error = refusal(api.client.infer, "strings", [given])
    assert error.message() == f"input 'IN': A BYTES tensor of 3 elements in {len(data)} bytes ends early."


def test_each_response_of_a_stream_is_written_to_the_clients_gpu_memory(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        api = Api(tritonclient.grpc, client)
        region = Region(server, api, 800_000)
        values = np.arange(100_000, dtype=np.float32)
        region.memory.write(values.tobytes())
        answers = []
        client.start_stream(lambda result, error: answers.append((result, error)))
        client.async_stream_infer(
            "streams",
            [api.given(region.name, [100_000], 400_000)],
            outputs=[api.wanted(region.name, 400_000, 400_000)],
        )
        server.wait_for(lambda: len(answers) == 3, "three responses")
        client.stop_stream()
        assert [error for _, error in answers] == [None] * 3
        assert region.memory.read(400_000, 400_000) == (values * 3).tobytes()
        client.unregister_cuda_shared_memory(region.name)


def test_a_batch_has_requests_from_gpu_memory_and_others(server, api):
    region = Region(server, api, 400)
    region.memory.write(np.full(100, 3, np.float32).tobytes())
    plain = input_of(api, "IN", np.full((1, 100), 5, np.float32))

    def infer(tensor):
        with api.connected(server) as own:
            return own.infer("batches", [tensor]).as_numpy("OUT")

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(infer, [api.given(region.name, [1, 100], 400), plain]))
    assert [answer[0, 0] for answer in answers] == [6, 10]


def test_a_request_whose_gpu_memory_cannot_be_read_fails_alone(server, api):
    bad = f"region{next(_names)}"
    api.client.register_cuda_shared_memory(bad, base64.b64encode(b"x" * 64), 0, 400)
    plain = input_of(api, "IN", np.full((1, 100), 5, np.float32))

    def infer(tensor):
        with api.connected(server) as own:
            try:
                return float(own.infer("batches", [tensor]).as_numpy("OUT")[0, 0])
            except InferenceServerException as error:
                return error.message()

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(infer, [api.given(bad, [1, 100], 400), plain]))
    assert answers == [
        (
            "input 'IN': cannot read a tensor of 400 bytes in GPU memory: cannot open memory of GPU 0 that another process "
            "has sent: cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_INVALID_CONTEXT (201); register the region again, with "
            "the handle and the size of memory that is still allocated"
        ),
        10.0,
    ]


def test_memory_that_is_smaller_than_its_registration_is_not_read_beyond_its_end(server, api):
    memory = server.client.allocate(4096)
    name = f"region{next(_names)}"
    api.client.register_cuda_shared_memory(name, memory.handle, 0, 8192)
    advice = "register the region again, with the handle and the size of memory that is still allocated"
    problem = f"the memory has 4096 bytes and the tensor ends at byte 8192 of it; {advice}"
    error = refusal(api.client.infer, "echo", [api.given(name, [2048], 8192)])
    assert error.message() == f"input 'IN': cannot read a tensor of 8192 bytes in GPU memory: {problem}"
    tensor = input_of(api, "IN", np.zeros(2048, np.float32))
    error = refusal(api.client.infer, "echo", [tensor], outputs=[api.wanted(name, 8192)])
    assert error.message() == f"output 'OUT': cannot write an output of 8192 bytes in GPU memory: {problem}"


@pytest.mark.parametrize("model", ["echo", "chain"])
def test_an_output_that_is_larger_than_its_place_is_an_error(server, api, model):
    region = Region(server, api, 400)
    tensor = input_of(api, "IN", np.zeros(100, np.float32))
    error = refusal(api.client.infer, model, [tensor], outputs=[api.wanted(region.name, 396)])
    assert error.message().endswith(
        "shared memory size specified with the request for output 'OUT' (396 bytes) should be at least 400 bytes to hold "
        "the results"
    )
    api.client.unregister_cuda_shared_memory(region.name)


def test_regions_are_listed_and_unregistered(server, api):
    first, second = Region(server, api, 400), Region(server, api, 800)
    answer = server.get("/v2/cudasharedmemory/status").json()
    assert answer == [
        {"name": first.name, "device_id": 0, "byte_size": 400},
        {"name": second.name, "device_id": 0, "byte_size": 800},
    ]
    told = api.client.get_cuda_shared_memory_status(second.name)
    assert "800" in str(told)
    assert first.name not in str(told)
    error = refusal(api.client.get_system_shared_memory_status, first.name)
    assert error.message() == (
        f"The region named '{first.name}' is registered as CUDA shared memory, not system shared memory"
    )
    error = refusal(api.client.register_cuda_shared_memory, first.name, first.memory.handle, 0, 8)
    assert error.message() == f"shared memory region '{first.name}' already in manager"
    api.client.unregister_system_shared_memory(first.name)
    api.client.unregister_system_shared_memory()
    assert server.get("/v2/cudasharedmemory/status").json() == answer, "they are of the other kind"
    api.client.unregister_cuda_shared_memory(first.name)
    assert server.get("/v2/cudasharedmemory/status").json() == answer[1:]
    api.client.unregister_cuda_shared_memory()
    api.client.unregister_cuda_shared_memory()
    assert server.get("/v2/cudasharedmemory/status").json() == []
    error = refusal(api.client.get_cuda_shared_memory_status, first.name)
    assert error.message() == f"Unable to find cuda shared memory region: '{first.name}'"


NO_GPU = "; the server finds no GPU 7 on its machine: give the number that the GPU has for the server, or use system shared memory"


@pytest.mark.parametrize(("device", "size", "text"), [(7, 8, NO_GPU), (0, 0, "; the region has no bytes")])
def test_an_invalid_registration_is_refused(server, api, device, size, text):
    handle = base64.b64encode(bytes(64))
    error = refusal(api.client.register_cuda_shared_memory, "r", handle, device, size)
    assert error.message() == f"failed to register shared memory region: invalid args{text}"
    assert error.status() in {"400", "StatusCode.INVALID_ARGUMENT"}


def test_a_handle_of_another_length_is_refused(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        error = refusal(client.register_cuda_shared_memory, "r", base64.b64encode(bytes(63)), 0, 8)
    assert error.message() == "failed to register shared memory region: invalid args; the handle has 63 bytes"


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_region_that_a_request_uses_cannot_be_unregistered(server, api, place):
    begun = server.gate.with_name("gate.begun")
    for path in (server.gate, begun):
        path.unlink(missing_ok=True)
    region = Region(server, api, 800_000)
    values = np.arange(100_000, dtype=np.float32)
    region.memory.write(values.tobytes())
    tensor = input_of(api, "IN", values)
    given = api.given(region.name, [100_000], 400_000) if place == "input" else tensor
    outputs = [api.wanted(region.name, 400_000, 400_000)] if place == "output" else None

    def infer():
        with api.connected(server) as own:
            return own.infer("waits", [given], outputs=outputs)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(infer)
        server.wait_for(begun.exists, "the request")
        error = refusal(api.client.unregister_cuda_shared_memory, region.name)
        assert error.message() == f"Cannot unregister shared memory region '{region.name}', it is currently in use."
        error = refusal(api.client.unregister_cuda_shared_memory)
        assert error.message() == f"Failed to unregister the following cuda shared memory regions: {region.name} ,"
        server.gate.touch()
        pending.result(20)
    api.client.unregister_cuda_shared_memory(region.name)
    if place == "output":
        assert region.memory.read(400_000, 400_000) == values.tobytes()


def test_a_tensor_that_the_model_keeps_keeps_the_region_in_use(server, api):
    region = Region(server, api, 400_000)
    api.client.infer("keeps", [api.given(region.name, [100_000], 400_000)])
    error = refusal(api.client.unregister_cuda_shared_memory, region.name)
    assert error.message() == f"Cannot unregister shared memory region '{region.name}', it is currently in use."
    tensor = input_of(api, "IN", np.zeros(1, np.float32))
    api.client.infer("keeps", [tensor])
    server.wait_for(lambda: is_unregistered(api, region), "the region to be free")


def is_unregistered(api, region):
    try:
        api.client.unregister_cuda_shared_memory(region.name)
    except InferenceServerException:
        return False
    return True


def test_guests_close_the_memory_of_a_region_that_is_unregistered(server, api):
    region = Region(server, api, 400_000)
    api.client.infer("echo", [api.given(region.name, [100_000], 400_000)])
    assert server.driver.opened()
    api.client.unregister_cuda_shared_memory(region.name)
    server.wait_for(lambda: not server.driver.opened(), "guests to close it")
    region.memory.free()


def test_the_server_itself_has_no_context(server, api):
    region = Region(server, api, 400_000)
    api.client.infer("echo", [api.given(region.name, [100_000], 400_000)])
    guests = {int(name.split("-")[1]) for name in server.driver.contexts()}
    assert server.pid not in guests


def test_client_memory_is_refused_unless_the_flag_allows_it(tmp_path):
    driver = StandInDriver(tmp_path / "cuda", has_management=True)
    add_model(tmp_path / "models", "echo", ECHO)
    with (
        ServerProcess(tmp_path / "models", work=tmp_path, environ=driver.environ) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        error = refusal(client.register_cuda_shared_memory, "r", base64.b64encode(bytes(64)), 0, 8)
    assert error.message() == (
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    )


def test_a_guest_without_the_driver_says_what_is_missing(tmp_path):
    """The server sees the GPU, and the model's environment does not."""
    driver = StandInDriver(tmp_path / "cuda", has_management=True)
    driver.library.rename(tmp_path / "cuda" / "hidden.so")
    add_model(tmp_path / "models", "echo", ECHO)
    with (
        ServerProcess(tmp_path / "models", "--allow-client-shm=true", work=tmp_path, environ=driver.environ) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        client.register_cuda_shared_memory("r", base64.b64encode(bytes(64)), 0, 400)
        api = Api(tritonclient.http, client)
        text = refusal(client.infer, "echo", [api.given("r", [100], 400)]).message()
    assert text.startswith(
        "input 'IN': cannot read a tensor of 400 bytes in GPU memory: cannot use a tensor in GPU memory: NVIDIA's driver "
        "is missing (libcuda.so.1:"
    )
