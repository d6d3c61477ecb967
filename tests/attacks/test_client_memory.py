"""Clients that change the files of their shared memory regions while a server reads and writes them."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from attacks.conftest import warm_up
from attacks.watching import attacked_server, watched
from support.server import ServerProcess
from support.threads import in_thread

SIZE = 24 << 20
ROUNDS = 12
APIS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, id="one process"),
        pytest.param(2, id="2 frontends", marks=pytest.mark.endurance),
    ],
)
def server(repository: Path, work: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server that clients share memory with."""
    options = ("--allow-client-shm=true", f"--processes={request.param}", "--memory-limit-requests=1GB")
    with attacked_server(repository, *options, work=work) as started:
        warm_up(started)
        yield started


@contextlib.contextmanager
def shared_file(size: int) -> Iterator[tuple[str, int]]:
    """A file of shared memory: its key and its descriptor."""
    key = f"/naiad_test_{secrets.token_hex(6)}"
    descriptor = os.open(f"/dev/shm{key}", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(descriptor, size)
        yield key, descriptor
    finally:
        os.close(descriptor)
        Path(f"/dev/shm{key}").unlink()


def connect(server: ServerProcess, protocol: str):
    if protocol == "grpc":
        return contextlib.closing(tritonclient.grpc.InferenceServerClient(server.grpc_url))
    return contextlib.closing(tritonclient.http.InferenceServerClient(server.http_url, network_timeout=240))


def tensors(api, size: int, *, region: str, is_input: bool, is_output: bool):
    """An input and an output of *size* bytes of the model `bytes`, each in the region or in the message."""
    given = api.InferInput("INPUT0", [size], "UINT8")
    wanted = api.InferRequestedOutput("OUTPUT0")
    if is_input:
        given.set_shared_memory(region, size)
    else:
        given.set_data_from_numpy(np.zeros(size, np.uint8))
    if is_output:
        wanted.set_shared_memory(region, size)
    return [given], [wanted]


@pytest.mark.parametrize(
    ("protocol", "place"),
    [
        ("http", "input"),
        ("grpc", "output"),
        pytest.param("http", "output", marks=pytest.mark.endurance),
        pytest.param("grpc", "input", marks=pytest.mark.endurance),
    ],
)
def test_a_region_that_is_truncated_all_the_time_ends_no_process(
    server: ServerProcess, protocol: str, place: str
) -> None:
    api, stop = APIS[protocol], threading.Event()
    before = [process.pid for process in server.serving()]
    outcomes: set[str] = set()
    with shared_file(SIZE) as (key, descriptor), connect(server, protocol) as client:

        def resize() -> None:
            while not stop.is_set():
                os.ftruncate(descriptor, 0)
                os.ftruncate(descriptor, SIZE)

        client.register_system_shared_memory("r", key, SIZE)
        inputs, outputs = tensors(api, SIZE, region="r", is_input=place == "input", is_output=place == "output")
        resizing = in_thread(resize)
        try:
            with watched(server) as seen:
                for _ in range(ROUNDS):
                    try:
                        client.infer("bytes", inputs, outputs=outputs)
                        outcomes.add("served")
                    except Exception as error:  # any other text fails the test below
                        outcomes.add(
                            str(error).partition(" has shrunk and ends before byte ")[0].partition("cannot")[2]
                        )
        finally:
            stop.set()
            resizing.result(60)
        client.unregister_system_shared_memory("r")
    seen.assert_others_served()
    assert [process.pid for process in server.serving()] == before
    assert outcomes <= {"served", f" use shared memory region 'r': '{key}'"}, outcomes


@pytest.mark.endurance
def test_regions_of_gigabytes_count_as_memory_of_requests(server: ServerProcess) -> None:
    """Requests of 300 bytes that name a region with 400 MB wait for each other: the limit is 1 GB for all."""
    size, count = 400_000_000, 8
    with shared_file(size) as (key, _), connect(server, "grpc") as client:
        client.register_system_shared_memory("r", key, size)
        inputs, outputs = tensors(tritonclient.grpc, size, region="r", is_input=True, is_output=True)
        ended = threading.Semaphore(0)
        problems: list[object] = []

        def on_end(result: object, error: object) -> None:
            problems.append(error)
            ended.release()

        with watched(server) as seen:
            for _ in range(count):
                client.async_infer("bytes", inputs, on_end, outputs=outputs)
            for _ in range(count):
                assert ended.acquire(timeout=240)
        client.unregister_system_shared_memory("r")
    seen.assert_others_served()
    seen.assert_memory(2_400_000_000)  # inputs up to the limit, and outputs of a few requests
    texts = {str(problem) for problem in problems if problem is not None}
    assert all("requests in flight" in text for text in texts), texts
    assert None in problems or server.others()  # each process has half of the limit
