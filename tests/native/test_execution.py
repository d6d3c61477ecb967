"""A batch on a native model, whose backend is played by functions of the test."""

from __future__ import annotations

import mmap

import pytest
from guest.hosts import FakeChannel
from naiad_stub import layout, wire
from naiad_stub.exchange import BatchReader, ResponseWriter
from naiad_stub.native.core import Core
from naiad_stub.native.execution import NativeExecution
from naiad_stub.native.functions.requests import RequestFunctions
from naiad_stub.native.functions.responses import FINAL, ResponseFunctions
from naiad_stub.native.memory import address_of, read_int64
from naiad_stub.sender import HostSenders

RELEASE_ALL = 1
ROOM = memoryview(bytearray(64))
LAYOUT = layout.pack([layout.Place(0, "", 11, (4,), 0, 16)], None)


class Backend:
    """Sends an empty response to each request, and releases it."""

    argtypes = None

    def __init__(self, requests: RequestFunctions, responses: ResponseFunctions) -> None:
        self.requests = requests
        self.responses = responses

    def __call__(self, instance: int, handles: list[int], count: int) -> int:
        for handle in list(handles)[:count]:
            out = address_of(ROOM)
            assert not self.requests.backend_request_input_by_index(handle, 0, out)
            assert not self.requests.backend_input_buffer(read_int64(out), 0, out, 0, 0, 0)
            assert not self.responses.backend_response_new(out, handle)
            assert not self.responses.backend_response_send(read_int64(out), FINAL, 0)
            assert not self.requests.backend_request_release(handle, RELEASE_ALL)
        return 0


@pytest.fixture
def channel():
    return FakeChannel()


@pytest.fixture
def execution(channel):
    core = Core(lambda *_: None, log_levels=0)
    writer = ResponseWriter(None, [], print)
    senders = HostSenders(channel, writer, "m", print, decoupled=False)
    requests = RequestFunctions(core, senders)
    made = NativeExecution(channel, writer, senders, core)
    made.open(Backend(requests, ResponseFunctions(core, None, "m", frozenset(), frozenset())), 1, requests)
    return made


def payload(keys: list[int], block: int) -> bytes:
    requests = [
        wire.REQUEST_HEAD.pack(key, 0, 0, 0, block + 64 * index, 0, wire.NO_STRING, 0, len(LAYOUT)) + LAYOUT
        for index, key in enumerate(keys)
    ]
    return wire.EXECUTE_HEAD.pack(1, len(keys), block) + b"".join(requests)


@pytest.mark.parametrize("keys", [[1], [1, 2, 3]], ids=len)
def test_inputs_in_the_segment_are_free_at_the_end_of_their_batch(channel, execution, keys):
    """Else each batch would cost a further message, which releases its block."""
    reader = BatchReader(memoryview(mmap.mmap(-1, 4096)), ["IN"], [])
    execution.begin(reader.read(payload(keys, 1024)))
    [responses] = channel.responses()
    assert [entry.key for entry in responses.entries] == keys
    assert responses.flags == wire.DONE
    assert channel.released == []
