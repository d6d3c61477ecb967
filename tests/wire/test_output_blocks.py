"""A guest whose output segment is full waits for the host, which hands blocks back."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest
from naiad_stub import wire
from naiad_stub.blocks import OutputBlocks
from naiad_stub.channel import Channel
from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import Finalize, ReleaseOutputs, Trim, WantRelease, pack
from naiad_stub.segment import Segment, create_memory
from naiad_stub.wire import Kind, frame


@pytest.fixture
def full():
    """Blocks of a segment of two pages, both taken; the guest's channel; the host's socket."""
    with contextlib.ExitStack() as stack:
        host, guest = socket.socketpair()
        stack.enter_context(host)
        stack.enter_context(guest)
        guest.settimeout(60)  # a wait in vain fails instead of hanging
        descriptor, _ = create_memory("test", 1 << 28)
        segment = Segment(descriptor, 8192)
        stack.callback(os.close, descriptor)
        stack.callback(segment.close)
        channel = Channel(guest)
        blocks = OutputBlocks(segment, channel)
        assert [blocks.allocate(4096), blocks.allocate(4096)] == [0, 4096]
        yield blocks, channel, host


def execute(number: int) -> bytes:
    return frame(Kind.EXECUTE, wire.EXECUTE_HEAD.pack(number, 0, -1))


def test_a_guest_without_room_sends_want_release_and_continues_once_blocks_are_released(full):
    blocks, _, host = full
    host.sendall(pack(ReleaseOutputs([4096])))
    assert blocks.allocate(1) == 4096
    assert host.recv(100) == pack(WantRelease())


def test_other_messages_keep_their_order(full):
    blocks, channel, host = full
    host.sendall(pack(Trim()) + execute(7) + pack(ReleaseOutputs([0])) + pack(Finalize()))
    assert blocks.allocate(1) == 0
    assert [channel.receive()[0] for _ in range(3)] == [Kind.TRIM, Kind.EXECUTE, Kind.FINALIZE]


def test_an_output_larger_than_the_segment_is_refused_once_all_blocks_are_released(full):
    blocks, _, host = full
    host.sendall(pack(ReleaseOutputs([0])) + pack(ReleaseOutputs([4096])))
    with pytest.raises(
        TritonModelException, match="outputs of 8193 bytes do not fit into the output segment of 8192 bytes"
    ):
        blocks.allocate(8193)
