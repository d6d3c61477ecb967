"""What the guest keeps of the answers to a request, whichever threads give them."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from naiad_stub import wire
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.exceptions import TritonError
from naiad_stub.exchange import Batch, RequestRecord, ResponseWriter
from naiad_stub.messages import CancelRequests, Credit, pack
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import WINDOW_RESPONSES, HostSenders, InferenceResponseSender
from support.threads import in_thread


@pytest.fixture
def eager_threads():
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_that_answer_at_once_share_one_account(eager_threads):
    """A second one, once dropped, would end the request without its answers."""
    senders = HostSenders(
        SimpleNamespace(add_handler=lambda message_class, handler: None), None, "m", print, decoupled=True
    )
    start = threading.Barrier(4)
    for key in range(300):
        record = RequestRecord(key, (), Batch(key, -1, None))

        def look(record: RequestRecord = record) -> object:
            start.wait()
            return senders.state_of(record)

        found = [in_thread(look) for _ in range(4)]
        assert {id(each.result(60)) for each in found} == {id(record.sender_state)}


class Line:
    """A channel whose host reads when the test says, and senders of requests on it."""

    def __init__(self, ours: socket.socket, hosts: socket.socket) -> None:
        self._ours = ours
        self.channel = Channel(ours)
        self.host = hosts
        self._senders = HostSenders(self.channel, ResponseWriter(None, (), print), "m", print, decoupled=True)
        self._records: list[RequestRecord] = []

    def shrink_buffer(self) -> None:
        """Let the channel keep as little as the system allows for a host that does not read."""
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def sender(self, key: int) -> InferenceResponseSender:
        self._records.append(RequestRecord(key, (), Batch(key, -1, None)))
        return InferenceResponseSender._of(self._senders, self._records[-1])

    def running_sender(self, key: int) -> InferenceResponseSender:
        """The sender of a request that `execute` works on: the host may cancel it."""
        sender = self.sender(key)
        batch = Batch(key, -1, None)
        batch.records.append(self._records[-1])
        self._senders.on_execute_start(batch)
        return sender

    def read(self, count: int) -> list[tuple[int, str]]:
        """Keys and texts of the next *count* responses."""
        reader, found = wire.FrameReader(), []
        while len(found) < count:
            for kind, payload in reader.feed(self.host.recv(1 << 16)):
                assert kind == wire.Kind.RESPONSES
                at = wire.RESPONSES_HEAD.size
                key = wire.RESPONSE_HEAD.unpack_from(payload, at)[0]
                found.append((key, payload[at + wire.RESPONSE_HEAD.size :].decode()))
        return found


@pytest.fixture
def line() -> Iterator[Line]:
    ours, hosts = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(hosts):
        yield Line(ours, hosts)


def saying(text: str) -> InferenceResponse:
    return InferenceResponse(error=TritonError(text))


def test_a_thread_that_sends_takes_along_what_others_send_meanwhile(line: Line):
    """They need not wait for it, and the order of each request's responses is kept."""
    line.shrink_buffer()
    long = "x" * (48 << 10)  # less than an error's text may have, more than the buffer
    busy, other, third = (line.sender(key) for key in (1, 2, 3))
    sending = in_thread(busy.send, saying(long))
    assert select.select([line.host], [], [], 20)[0], "it sends, and cannot go on before the host reads"
    for number in range(3):
        other.send(saying(f"other {number}"))
        third.send(saying(f"third {number}"))
    assert not sending.done()
    found = line.read(7)
    sending.result(20)
    assert found[0] == (1, long)
    assert [text for key, text in found if key == 2] == [f"other {number}" for number in range(3)]
    assert [text for key, text in found if key == 3] == [f"third {number}" for number in range(3)]
    for sender in (busy, other, third):
        sender.send(flags=1)


def test_nothing_is_sent_to_a_host_that_is_gone(line: Line):
    sender = line.sender(1)
    line.host.close()
    with pytest.raises(HostGoneError):
        line.channel.receive()
    with pytest.raises(HostGoneError):
        sender.send(saying("too late"))


CREDIT = 256
"""Responses for which the host gives credit at once."""


def cancel(line: Line, key: int) -> None:
    """Have the channel read that a request is cancelled."""
    line.host.sendall(pack(CancelRequests([key])))


def test_a_cancelled_request_sends_no_more_than_its_window_and_its_end(line: Line):
    """A model that does not ask whether it is cancelled fills no memory, and is never blocked."""
    sender = line.running_sender(1)
    cancel(line, 1)
    reading = in_thread(line.read, WINDOW_RESPONSES + 1)
    for number in range(3 * WINDOW_RESPONSES):
        sender.send(saying(str(number)))
    sender.send(saying("last"), flags=1)
    assert [text for _, text in reading.result(20)] == [*map(str, range(WINDOW_RESPONSES)), "last"]


def test_a_cancelled_request_whose_responses_are_read_sends_all_of_them(line: Line):
    sender = line.running_sender(1)
    cancel(line, 1)
    for number in range(3 * WINDOW_RESPONSES):
        sender.send(saying(str(number)))
        assert line.read(1) == [(1, str(number))]
        if not (number + 1) % CREDIT:
            line.host.sendall(pack(Credit(1, CREDIT)))
    sender.send(flags=1)


def test_a_thread_that_is_held_back_goes_on_when_its_request_is_cancelled(line: Line):
    sender = line.running_sender(1)
    reading = in_thread(line.read, WINDOW_RESPONSES + 1)
    for number in range(WINDOW_RESPONSES):
        sender.send(saying(str(number)))
    held = in_thread(sender.send, saying("too much"))
    cancel(line, 1)
    held.result(20)
    sender.send(flags=1)
    assert "too much" not in [text for _, text in reading.result(20)]
