"""Regions of clients' memory in all processes: registered everywhere, unregistered where no request uses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest
from server.processes.pair import Pair, Sink, request

from naiad.core.errors import NaiadError
from naiad.frontends.regions import CUDA_HANDLE_BYTES, ClientRegions
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceUse, as_data, device_bytes
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.server.processes.region_use import join_regions, split_regions
from naiad.server.processes.shared_regions import RemoteRegions, SharedRegions

HANDLE = b"h" * CUDA_HANDLE_BYTES


@pytest.fixture
def key() -> Iterator[str]:
    """The name of an object of 4096 bytes in the system's shared memory."""
    memory = SharedMemory(create=True, size=4096)
    yield f"/{memory.name.lstrip('/')}"
    memory.close()
    memory.unlink()


class Processes:
    """Implements `FrontendProcesses`; *used* are the regions that one of them uses."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.used: list[str] = []

    def broadcast(self, *sent: Any) -> None:
        self.sent.append(sent)

    async def wait_sent(self) -> None:
        self.sent.append(("waited",))

    async def take_regions(self, names: Sequence[str]) -> Sequence[str]:
        self.sent.append(("take", sorted(names)))
        return [name for name in names if name in self.used]

    def take(self) -> list[tuple[Any, ...]]:
        sent, self.sent = self.sent, []
        return sent


def shared() -> tuple[SharedRegions, ClientRegions, Processes]:
    regions, processes = ClientRegions(is_allowed=True, find_gpu=lambda number: bytes([number] * 16)), Processes()
    return SharedRegions(regions, processes), regions, processes


async def test_a_region_is_registered_in_all_processes_before_its_client_is_told(key: str) -> None:
    made, _, processes = shared()
    await made.register("a", key, 0, 64)
    await made.register_cuda("b", HANDLE, 3, 128)
    system, cuda = ("a", key, 0, 64), ("b", HANDLE, 3, 128)
    assert processes.take() == [("region", *system), ("waited",), ("cuda_region", *cuda), ("waited",)]
    assert made.calls() == [("region", system), ("cuda_region", cuda)]
    assert [each.name for each in made.status()] == ["a"]
    assert [each.name for each in made.cuda_status()] == ["b"]
    made.check("a")
    made.check_allowed()


async def test_a_region_that_cannot_be_registered_is_announced_to_nobody() -> None:
    made, _, processes = shared()
    with pytest.raises(NaiadError, match="Unable to open shared memory region"):
        await made.register("a", "/naiad-none", 0, 64)
    assert processes.take() == []
    assert made.calls() == []


async def test_a_region_is_unregistered_where_nobody_uses_it(key: str) -> None:
    made, _, processes = shared()
    for name in ("a", "b"):
        await made.register(name, key, 0, 64)
    processes.take()
    processes.used = ["b"]
    with pytest.raises(NaiadError, match="b"):
        await made.unregister()
    returned = "return_regions", ["a", "b"], ["b"]
    assert processes.take() == [("take", ["a", "b"]), returned, ("waited",)]
    assert [each.name for each in made.status()] == ["b"]
    processes.used = []
    await made.unregister("b")
    assert made.status() == []
    processes.take()
    await made.unregister("b")
    assert processes.take() == [], "nothing has that name"


async def test_a_region_that_the_coordinator_uses_stays_everywhere(key: str) -> None:
    made, _, processes = shared()
    await made.register("a", key, 0, 64)
    part = made.part("a", 0, 8)
    processes.take()
    with pytest.raises(NaiadError):
        await made.unregister("a")
    assert processes.take()[1] == ("return_regions", ["a"], ["a"])
    part.release()
    await made.unregister("a")
    assert made.status() == []


class Engine:
    """What a process has of the coordinator: keeps what is sent, and takes in *announced* when somebody receives."""

    def __init__(self) -> None:
        self.called: list[tuple[Any, ...]] = []
        self.announced: list[tuple[Any, ...]] = []
        self.waited = self.received = 0
        self.regions: Any = None

    async def call(self, *arguments: Any, **more: Any) -> None:
        self.called.append((*arguments, more))

    def receive(self, *, wait: bool = False) -> None:
        self.waited += wait
        self.received += not wait
        if wait:
            name, *arguments = self.announced.pop(0)
            self.regions.services[name](*arguments)


def remote(*, is_allowed: bool = True) -> tuple[RemoteRegions, Engine]:
    engine: Any = Engine()
    engine.regions = RemoteRegions(engine, is_allowed=is_allowed)
    return engine.regions, engine


async def test_changes_by_clients_of_a_process_go_to_the_coordinator() -> None:
    regions, engine = remote()
    await regions.register("a", "/key", 1, 2)
    await regions.register_cuda("b", HANDLE, 3, 4)
    await regions.unregister("a", is_cuda=True)
    assert engine.called == [
        ("register_region", "a", "/key", 1, 2, {}),
        ("register_cuda_region", "b", HANDLE, 3, 4, {}),
        ("unregister_region", "a", {"is_cuda": True}),
    ]


async def test_a_process_without_shared_memory_asks_nobody() -> None:
    regions, engine = remote(is_allowed=False)
    for change in (regions.register("a", "/key", 1, 2), regions.register_cuda("b", HANDLE, 3, 4)):
        with pytest.raises(NaiadError, match="--allow-client-shm=true"):
            await change
    with pytest.raises(NaiadError, match="--allow-client-shm=true"):
        regions.check_allowed()
    assert engine.called == []


def test_a_process_takes_out_regions_that_it_does_not_use_and_puts_them_back_if_another_one_uses_them(key: str) -> None:
    regions, engine = remote()
    for name in ("a", "b", "c"):
        regions.services["region"](name, key, 0, 64)
    regions.services["cuda_region"]("d", HANDLE, 0, 64)
    regions.services["region"]("gone", "/naiad-none", 0, 64)
    part = regions.part("b", 8, 8)
    assert regions.services["take_regions"](["a", "b", "c", "unknown"]) == ["b"]
    engine.announced = [("return_regions", ["a", "b", "c", "unknown"], ["b", "c"])]
    assert [each.name for each in regions.status()] == ["b", "c"]
    assert engine.waited == 1, "the end of the unregistration was waited for"
    assert [each.name for each in regions.cuda_status()] == ["d"]
    assert [each.uuid for each in regions.cuda_status()] == [bytes(16)]
    with pytest.raises(NaiadError, match="Unable to find system shared memory region: 'a'"):
        regions.status("a")
    part.release()


def test_a_request_waits_for_the_end_of_an_unregistration_of_its_region_alone(key: str) -> None:
    regions, engine = remote()
    for name in ("a", "b"):
        regions.services["region"](name, key, 0, 64)
    regions.services["take_regions"](["a"])
    regions.check("b")
    assert engine.waited == 0
    assert len(regions.part("b", 0, 8)) == 8
    assert regions.status("b")[0].name == "b"
    with pytest.raises(NaiadError, match="registered as system shared memory"):
        regions.cuda_status("b")
    assert engine.received == 4, "each use takes in what was announced"
    engine.announced = [("return_regions", ["a"], ["a"])]
    regions.check("a")
    assert engine.waited == 1
    assert len(regions.part("a", 0, 8)) == 8


def test_a_region_is_forgotten_that_a_process_has_got_while_it_was_unregistered(key: str) -> None:
    regions, _ = remote()
    regions.services["region"]("a", key, 0, 64)
    regions.services["return_regions"](["a"], [])
    assert regions.status() == []


def test_tensors_in_gpu_memory_go_by_the_names_of_their_regions() -> None:
    regions = ClientRegions(is_allowed=True, find_gpu=lambda _: bytes(16))
    regions.add_cuda("in", HANDLE, 0, 1024)
    regions.add_cuda("out", HANDLE, 0, 1024)
    sent = request("m", 2)
    (tensor,) = sent.inputs
    sent.inputs = [tensor, request("m", 2).inputs[0]]
    sent.inputs[0].data = as_data(regions.part("in", 64, 8).device_bytes())
    use = DeviceUse(has_inputs=True, places={"Y": regions.part("out", 128, 16).device_bytes()})
    inputs, found = split_regions(sent, use)
    assert [bytes(each.data) for each in inputs] == [b"", bytes(8)]
    assert found.inputs == {0: ("in", 64, 8)}
    assert found.outputs == {"Y": ("out", 128, 16)}
    joined = join_regions(inputs, found, regions.part)
    assert joined.has_inputs
    device = device_bytes(inputs[0].data)
    assert device is not None
    assert (device.offset, len(device)) == (64, 8)
    assert (joined.places["Y"].offset, len(joined.places["Y"])) == (128, 16)
    assert bytes(inputs[1].data) == bytes(8)


async def test_a_request_with_tensors_in_gpu_memory_has_those_of_the_coordinator(pair: Pair) -> None:
    regions = ClientRegions(is_allowed=True, find_gpu=lambda _: bytes(16))
    regions.add_cuda("out", HANDLE, 0, 1024)
    pair.session._find_part = regions.part
    pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    sent, sink = request("m", 5_000), Sink()
    sent.device = DeviceUse(places={"Y": regions.part("out", 128, 16).device_bytes()})
    pair.engine.is_answering = False
    pair.remote.submit(sent, sink)
    await pair.settle(lambda: pair.engine.requests)
    (found,) = pair.engine.requests
    assert found.device is not None
    place = found.device.places["Y"]
    assert (place.offset, len(place)) == (128, 16)
    assert found.place is None, "it is not laid out as its template says"
    assert bytes(found.inputs[0].data) == bytes(20_000)
    outputs = [
        OutputTensor("Y", Datatype.UINT8, (16,), as_data(place)),
        OutputTensor("Z", Datatype.UINT8, (2,), b"ab"),
    ]
    pair.engine.sinks[0].send(InferResponse("m", 1, outputs=outputs, layout="known", is_on_device=True), True)
    await pair.settle(lambda: sink.responses)
    (response,) = sink.responses
    assert response is not None
    assert [(each.name, each.shape, bytes(each.data)) for each in response.outputs] == [
        ("Y", (16,), b""),
        ("Z", (2,), b"ab"),
    ]


async def test_a_request_whose_region_was_unregistered_meanwhile_is_rejected(pair: Pair) -> None:
    regions = ClientRegions(is_allowed=True, find_gpu=lambda _: bytes(16))
    regions.add_cuda("out", HANDLE, 0, 1024)
    pair.session._find_part = ClientRegions(is_allowed=True).part
    sent, sink = request("m"), Sink()
    sent.device = DeviceUse(places={"Y": regions.part("out", 128, 16).device_bytes()})
    pair.remote.submit(sent, sink)
    await pair.settle(lambda: sink.responses)
    (response,) = sink.responses
    assert response is not None
    assert response.error is not None
    assert "'out'" in response.error.message
    assert not pair.session.request_count
