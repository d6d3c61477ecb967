"""Outputs in blocks of their own, notices about them, and RESPONSES that are split."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from naiad_stub import exchange, layout, wire
from naiad_stub.blocks import OutputBlocks
from naiad_stub.channel import HostGoneError
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.exchange import (
    Batch,
    RequestRecord,
    ResponseWriter,
    TensorWriter,
    error_entry,
    mark_entry,
    responses_frame,
)
from naiad_stub.messages import ReleaseOutputs, WantRelease, pack
from naiad_stub.response import InferenceResponse
from naiad_stub.runtime import Runtime, install, uninstall
from naiad_stub.segment import Segment, create_memory
from naiad_stub.tensor import Tensor

from .hosts import FakeChannel, decoded

PAGE = 4096


@pytest.fixture
def channel():
    return FakeChannel()


@contextlib.contextmanager
def segment_of(size: int) -> Iterator[Segment]:
    with contextlib.ExitStack() as stack:
        descriptor, _ = create_memory("test", 1 << 28)
        made = Segment(descriptor, size)
        stack.callback(os.close, descriptor)
        stack.callback(made.close)
        yield made


@pytest.fixture
def segment():
    with segment_of(8 * PAGE) as made:
        yield made


@pytest.fixture
def blocks(segment, channel):
    return OutputBlocks(segment, channel)


@pytest.fixture
def runtime(blocks):
    """Where `Tensor.allocate` finds the blocks."""
    made = Runtime(allocate=blocks.allocate_for_model)
    install(made)
    yield made
    uninstall(made)


def bytes_tensor(name: str, size: int, fill: int = 1) -> Tensor:
    return Tensor(name, np.full(size, fill, np.uint8))


def own_tensor(name: str, size: int, fill: int = 1) -> Tensor:
    """A tensor that the model writes to the segment itself."""
    tensor = Tensor.allocate(name, [size], np.uint8)
    tensor.as_numpy()[:] = fill
    return tensor


def places(data: bytes) -> list[tuple[int, str, int, int]]:
    """Position, name, offset and size of each tensor of a layout."""
    return [(each.position, each.name, each.offset, each.size) for each in layout.unpack(data)[0]]


# -- blocks


def test_a_block_of_the_model_is_free_when_neither_model_nor_host_uses_it(blocks, segment, runtime):
    first = own_tensor("X", PAGE)
    assert segment.in_use == PAGE
    block = blocks.hand_over(first)
    assert block == 0
    assert blocks.hand_over(first) == -1  # from now on it is copied
    blocks._on_release(ReleaseOutputs([block]))
    assert segment.in_use == PAGE  # the model may still write to it
    del first
    blocks.trim()
    assert segment.in_use == 0

    second = own_tensor("X", PAGE)
    block = blocks.hand_over(second)
    del second
    blocks.trim()
    assert segment.in_use == PAGE  # the host reads it
    blocks._on_release(ReleaseOutputs([block]))
    assert segment.in_use == 0


def test_a_block_of_the_model_that_was_never_sent_is_free_with_its_last_array(blocks, segment, runtime):
    tensor = own_tensor("X", 10)
    array = tensor.as_numpy()
    del tensor
    blocks.trim()
    assert segment.in_use == PAGE
    del array
    assert blocks.allocate(PAGE) == 0  # an allocation finds it, too
    assert segment.in_use == PAGE


def test_an_array_without_elements_has_a_block_of_its_own(blocks, segment, runtime):
    tensor = own_tensor("X", 0)
    assert segment.in_use == PAGE
    assert tensor.as_numpy().size == 0


def test_a_forked_child_writes_to_memory_of_its_own(blocks, segment):
    blocks.detach()
    offset, view = blocks.allocate_for_model(10)
    assert offset is None
    assert len(view) == 10
    assert segment.in_use == 0
    with pytest.raises(HostGoneError, match="this process was forked from the model's"):
        blocks.allocate(1)


def test_several_blocks_are_taken_together_or_not_at_all(blocks, segment, channel):
    held = blocks.allocate_each([PAGE, PAGE])
    assert held == [0, PAGE]
    seen = []

    def release() -> None:
        seen.append(segment.in_use)
        channel.receive_from_host(ReleaseOutputs([held.pop()]))

    channel.on_wait = release
    assert blocks.allocate_each([3 * PAGE, 3 * PAGE]) == [2 * PAGE, 5 * PAGE]
    assert seen == []
    channel.receive_from_host(ReleaseOutputs([2 * PAGE, 5 * PAGE]))
    assert blocks.allocate_each([PAGE, 6 * PAGE, PAGE]) == [0, 2 * PAGE, PAGE]
    assert seen == [2 * PAGE, PAGE]
    assert [kind for kind, _ in channel.sent] == [WantRelease.kind] * 2


def test_blocks_of_an_earlier_load_do_not_fragment_a_segment_that_is_empty(blocks, segment):
    blocks.release(blocks.allocate_each([2 * PAGE, 3 * PAGE]))
    assert blocks.allocate_each([3 * PAGE, 4 * PAGE]) == [0, 3 * PAGE]
    assert segment.in_use == 7 * PAGE


def test_blocks_that_do_not_fit_after_each_other_are_refused(blocks, segment):
    """Each is rounded up, so that the sum of the bytes alone would fit."""
    with pytest.raises(
        TritonModelException, match=f"outputs of {8 * PAGE - 10} bytes do not fit into the output segment"
    ):
        blocks.allocate_each([1, 8 * PAGE - 11])
    assert segment.in_use == 0


def test_a_thread_that_waits_first_sends_what_is_ready(blocks, channel):
    order = []
    blocks.before_waiting = lambda: order.append(len(channel.sent))
    held = blocks.allocate(8 * PAGE)
    channel.on_wait = lambda: channel.receive_from_host(ReleaseOutputs([held]))
    assert blocks.allocate(1) == held
    assert order == [0]
    assert channel.sent == [(WantRelease.kind, pack(WantRelease())[wire.FRAME.size :])]


@pytest.mark.parametrize(
    ("size", "held", "more"), [(8 * PAGE + 1, 0, ""), (8 * PAGE, PAGE, f", of which the model itself holds {PAGE}")]
)
def test_outputs_for_which_nothing_can_become_free_are_refused(blocks, segment, runtime, size, held, more):
    text = f"outputs of {size} bytes do not fit into the output segment of {8 * PAGE} bytes{more}"
    kept = own_tensor("X", held) if held else None
    with pytest.raises(TritonModelException) as caught:
        blocks.allocate(size)
    assert str(caught.value) == text
    with pytest.raises(TritonModelException) as caught:
        blocks.allocate_each([size - PAGE, PAGE])
    assert str(caught.value) == text
    assert segment.in_use == held
    del kept


def test_what_the_model_holds_and_has_sent_can_become_free(blocks, channel, runtime):
    kept = own_tensor("X", 4 * PAGE)
    block = blocks.hand_over(kept)

    def release() -> None:
        nonlocal kept
        kept = None
        channel.receive_from_host(ReleaseOutputs([block]))

    channel.on_wait = release
    assert blocks.allocate(8 * PAGE) == block


def test_blocks_that_are_not_sent_after_all_wake_those_that_wait(blocks, channel):
    held = blocks.allocate_each([4 * PAGE, 4 * PAGE])
    channel.on_wait = lambda: blocks.release(held)
    assert blocks.allocate(8 * PAGE) == 0


def test_regions_of_gpu_memory_are_released_by_their_numbers(blocks, segment):
    released: list[int] = []
    blocks._exports = SimpleNamespace(release=released.append)
    block = blocks.allocate(PAGE)
    blocks._on_release(ReleaseOutputs([3 - wire.DEVICE_BLOCK, block]))
    assert (released, segment.in_use) == ([3], 0)
    blocks.release([5 + wire.DEVICE_BLOCK])
    assert released == [3, 5]


def test_trimming_sends_what_waits_for_a_message(blocks, channel):
    blocks.trim()
    assert channel.ways == ["post"]


# -- tensors


def test_small_outputs_travel_in_the_message(blocks, segment):
    writer = TensorWriter(blocks, ("A", "B"))
    flags, count, packed, data, inline, size = writer.write([bytes_tensor("B", 3, 2), bytes_tensor("A", 2, 1)])
    assert (flags, count, packed, size) == (0, 0, b"", 66)
    assert inline == b"\2\2\2" + bytes(61) + b"\1\1"
    assert places(data) == [(1, "", 0, 3), (0, "", 64, 2)]
    assert segment.in_use == 0


@pytest.mark.parametrize("size", [wire.INLINE_LIMIT, wire.INLINE_LIMIT + 1])
def test_larger_outputs_share_a_block(blocks, segment, size):
    writer = TensorWriter(blocks, ("A",))
    flags, count, packed, data, inline, total = writer.write([bytes_tensor("A", 1, 7), bytes_tensor("C", size - 64, 9)])
    assert total == size
    assert places(data) == [(0, "", 0, 1), (wire.OTHER_NAME, "C", 64, size - 64)]
    if size <= wire.INLINE_LIMIT:
        assert (flags, count, packed, len(inline), segment.in_use) == (0, 0, b"", size, 0)
    else:
        assert (flags, count, packed, inline, segment.in_use) == (0, 1, bytes(8), b"", PAGE)
        assert bytes(segment.view[:size]) == b"\7" + bytes(63) + b"\x09" * (size - 64)


def test_outputs_without_bytes_need_no_block(blocks):
    writer = TensorWriter(blocks, ())
    assert writer.write([bytes_tensor("A", 0), bytes_tensor("B", 0)])[4:] == (b"", 0)
    assert writer.write([])[4:] == (b"", 0)


def test_a_process_without_a_segment_writes_everything_to_the_message():
    writer = TensorWriter(None, ("A",))
    flags, count, packed, data, inline, size = writer.write_inline(
        [bytes_tensor("A", 5000, 1), bytes_tensor("B", 3, 2)]
    )
    assert (flags, count, packed, size) == (0, 0, b"", 5059)
    assert inline == b"\1" * 5000 + bytes(56) + b"\2\2\2"
    assert places(data) == [(0, "", 0, 5000), (wire.OTHER_NAME, "B", 5056, 3)]


def test_outputs_that_the_model_wrote_to_the_segment_are_handed_over(blocks, segment, runtime):
    writer = TensorWriter(blocks, ("A", "B", "C"))
    own, twice = own_tensor("A", 100, 1), own_tensor("C", 50, 3)
    tensors = [own, bytes_tensor("B", 10, 2), bytes_tensor("D", 0), twice, twice]
    flags, count, packed, data, inline, total = writer.write(tensors)
    assert (flags, count, inline, total) == (wire.OWN_BLOCKS, 4, b"", 210)
    first, second, third, fourth = np.frombuffer(packed, "<u8").tolist()
    # The model's own blocks; copies of the plain tensor and of the one that is returned twice.
    assert (first, third) == (0, PAGE)
    assert {second, fourth} == {2 * PAGE, 3 * PAGE}
    assert bytes(segment.view[second : second + 10]) == b"\2" * 10
    assert bytes(segment.view[fourth : fourth + 50]) == b"\3" * 50
    assert places(data) == [
        (0, "", 0, 100),
        (1, "", 0, 10),
        (wire.OTHER_NAME, "D", 0, 0),
        (2, "", 0, 50),
        (2, "", 0, 50),
    ]
    # The same shapes without blocks of the model are laid out behind each other.
    assert places(writer.write([bytes_tensor("A", 100), bytes_tensor("B", 10)])[3])[1][2] == 128


def test_copies_are_given_back_where_an_output_cannot_be_sent(blocks, segment, runtime):
    writer = TensorWriter(blocks, ())
    own = own_tensor("A", PAGE)
    deep = Tensor("B", np.zeros((1,) * 32, np.uint8))
    deep._shape = (1,) * 33
    with pytest.raises(TritonModelException) as caught:
        writer.write([own, deep])
    assert str(caught.value) == "output 'B' has 33 dimensions; tensors of at most 32 can be sent"
    assert segment.in_use == PAGE
    writer._copy_each = raise_(RuntimeError("a GPU that failed"))
    with pytest.raises(RuntimeError):
        writer.write([own, bytes_tensor("B", 10)])
    assert segment.in_use == PAGE
    assert blocks.hand_over(own) == 0  # it was not given away


def raise_(error: Exception) -> Any:
    def function(*_: object) -> None:
        raise error

    return function


# -- responses


class Notices:
    """A writer for a model with the outputs X and Y, and what it reports."""

    def __init__(self, **more: Any) -> None:
        self.found: list[str] = []
        self.writer = ResponseWriter(None, ("X", "Y"), self.found.append, **more)

    def write(self, *names: str, requested: tuple[str, ...] = ("X", "Y"), named: tuple[str, ...] = ()) -> list[str]:
        """The names of the outputs that are sent of a response with *names*."""
        record = RequestRecord(1, requested, Batch(1, -1, None))
        record.named = named
        response = InferenceResponse([bytes_tensor(name, 1) for name in names])
        entry, _ = self.writer.response(record, response, 0)
        *_, layout_size = wire.RESPONSE_HEAD.unpack_from(entry)
        data = entry[wire.RESPONSE_HEAD.size :][:layout_size]
        return [("X", "Y")[position] for position, *_ in places(data)]


def undeclared(name: str) -> str:
    return (
        f"a response has the output '{name}', which the configuration does not name, so that clients do not get it; "
        "declare it in config.pbtxt, or remove it from the response"
    )


def lacking(name: str) -> str:
    return (
        f"a response lacks the output '{name}', which its client requested by name, so that the client gets the other "
        "outputs and no error; return all requested outputs, or an error"
    )


def test_outputs_that_were_not_requested_are_dropped():
    notices = Notices()
    assert notices.write("X", "Y") == ["X", "Y"]
    assert notices.write("Y", "X", requested=("X",), named=("X",)) == ["X"]
    assert notices.write("X") == ["X"]
    assert notices.found == []


def test_an_output_that_is_not_declared_is_reported_once():
    notices = Notices()
    assert notices.write("X", "Z", "A") == ["X"]
    assert notices.write("Z", "B") == []
    assert notices.found == [undeclared("A"), undeclared("Z"), undeclared("B")]


def test_undeclared_outputs_are_reported_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(exchange, "_REPORTED_NAMES", 3)
    notices = Notices()
    notices.write("A", "B")
    notices.write("C", "D")
    notices.write("E")
    assert notices.found == [undeclared(name) for name in "ABC"]


def test_an_output_that_the_client_named_and_does_not_get_is_reported_once():
    notices = Notices()
    assert notices.write("X", requested=("X", "Y"), named=("X", "Y")) == ["X"]
    notices.write(requested=("X", "Y"), named=("X", "Y"))
    notices.write("Y", requested=("X", "Y"), named=("X", "Y"))
    assert notices.found == [lacking("Y"), lacking("X")]


def test_a_response_of_a_decoupled_model_may_have_a_part_of_the_outputs():
    notices = Notices(is_decoupled=True)
    notices.write("X", requested=("X", "Y"), named=("X", "Y"))
    notices.write("Z", requested=("X", "Y"), named=("X", "Y"))
    assert notices.found == [undeclared("Z")]


def test_parameters_have_a_limit():
    notices = Notices()
    record = RequestRecord(1, (), Batch(1, -1, None))
    response = InferenceResponse([])
    response._parameters = "é" * (wire.MAX_PARAMETERS // 2)
    entry, _ = notices.writer.response(record, response, wire.FINAL)
    assert len(entry) > wire.MAX_PARAMETERS
    response._parameters += "x"
    with pytest.raises(TritonModelException) as caught:
        notices.writer.response(record, response, wire.FINAL)
    assert str(caught.value) == (
        f"the parameters of a response have {wire.MAX_PARAMETERS + 1} bytes; at most {wire.MAX_PARAMETERS} can be sent"
    )


def test_long_texts_of_errors_lose_their_middle():
    entry = error_entry(1, TritonError.INTERNAL, "a" * wire.MAX_TEXT + "b" * wire.MAX_TEXT, 0)
    text = entry[wire.RESPONSE_HEAD.size :].decode()
    half = wire.MAX_TEXT // 2
    assert text == f"{'a' * half} ... [{wire.MAX_TEXT} characters are left out here] ... {'b' * half}"
    assert wire.bounded_text("a" * wire.MAX_TEXT) == "a" * wire.MAX_TEXT


def frames_of(data: bytes) -> list[tuple[list[int], int]]:
    """Keys and flags of each RESPONSES message."""
    found = []
    for kind, payload in wire.FrameReader().feed(data):
        assert kind == wire.Kind.RESPONSES
        message = decoded(payload)
        assert message.batch == 5
        found.append(([entry.key for entry in message.entries], message.flags))
    return found


def test_long_responses_are_split_and_the_last_message_has_the_flags(monkeypatch):
    size = len(mark_entry(1, 0))
    monkeypatch.setattr(exchange, "_MAX_BODY", 2 * size)
    batch = Batch(5, -1, None)
    entries = [mark_entry(key, 0) for key in range(5)]
    assert frames_of(responses_frame(batch, entries[:2], wire.DONE, 9)) == [([0, 1], wire.DONE)]
    assert frames_of(responses_frame(batch, entries, wire.DONE, 9)) == [([0, 1], 0), ([2, 3], 0), ([4], wire.DONE)]
    long = error_entry(9, 1, "x" * 100, 0)
    assert frames_of(responses_frame(batch, [long, *entries[:1], long], 0, 9)) == [([9], 0), ([0], 0), ([9], 0)]
    assert frames_of(responses_frame(batch, [], wire.DONE, 9)) == [([], wire.DONE)]


@pytest.mark.parametrize("count", [2, 5])
def test_reports_are_in_the_last_message_of_the_responses(monkeypatch, count):
    monkeypatch.setattr(exchange, "_MAX_BODY", 2 * len(mark_entry(1, 0)))
    entries = [mark_entry(key, 0) for key in range(count)]
    flags = wire.DONE | 1 << wire.REPORTS_SHIFT
    plain = wire.FrameReader().feed(responses_frame(Batch(5, -1, None), entries, flags, 9))
    frames = wire.FrameReader().feed(responses_frame(Batch(5, -1, None), entries, flags, 9, b"report"))
    assert frames[:-1] == plain[:-1]
    assert frames[-1] == (wire.Kind.RESPONSES, plain[-1][1] + b"report")


# -- GPU memory, of which the test plays the driver's part

LARGE = exchange._SMALL_DEVICE_BYTES + 1


class OnDevice:
    """A writer of tensors in GPU memory.

    Attributes:
        exported: The sizes of tensors that other processes can read.
        copied: The sizes of tensors that were copied to the CPU, and their blocks.
        released: Blocks that were given back without being sent.
        exports_left: How many can still be exported; others have to be copied.
        problem: Raised where a tensor is copied, and where none can be exported any more.
    """

    def __init__(self, blocks: OutputBlocks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exported: list[int] = []
        self.copied: list[tuple[int, int]] = []
        self.released: list[int] = []
        self.exports_left = 9
        self.problem: Exception | None = None
        monkeypatch.setattr(blocks, "export", self._export)
        monkeypatch.setattr(blocks, "copy_from_device", self._copy)
        monkeypatch.setattr(blocks, "release", self.released.extend)
        self.writer = TensorWriter(blocks, ("A", "B", "C"))

    def _export(self, memory: Any, *_: object) -> tuple[int, bytes] | None:
        if not self.exports_left:
            if self.problem is not None:
                raise self.problem
            return None
        self.exports_left -= 1
        self.exported.append(memory.size)
        return wire.DEVICE_BLOCK + len(self.exported), b"handle %d;" % len(self.exported)

    def _copy(self, memory: Any, block: int) -> None:
        if self.problem is not None:
            raise self.problem
        self.copied.append((memory.size, block))

    def tensor(self, name: str, size: int = LARGE) -> Tensor:
        return Tensor._on_device(name, 2, (size,), SimpleNamespace(size=size, index=0))


@pytest.fixture
def device(channel, monkeypatch):
    with segment_of(1 << 20) as made:
        yield OnDevice(OutputBlocks(made, channel), monkeypatch)


def test_outputs_stay_in_gpu_memory_where_the_request_allows_it(device):
    tensors = [device.tensor("A"), bytes_tensor("B", 10), device.tensor("C", LARGE + 1)]
    flags, count, packed, data, inline, total = device.writer.write(tensors, exchange.KEEPS_ALL)
    assert (flags, count, inline, total) == (wire.OWN_BLOCKS | wire.DEVICE, 3, b"", 2 * LARGE + 11)
    assert device.exported == [LARGE, LARGE + 1]
    blocks = np.frombuffer(packed[:24], "<u8").tolist()
    assert (blocks[0], blocks[2]) == (wire.DEVICE_BLOCK + 1, wire.DEVICE_BLOCK + 2)
    assert blocks[1] < wire.DEVICE_BLOCK
    assert packed[24:] == b"handle 1;handle 2;"
    assert [size for *_, size in places(data)] == [LARGE, 10, LARGE + 1]
    assert device.copied == []


@pytest.mark.parametrize(
    ("use", "exports_left", "kept"),
    [
        (None, 9, ""),
        (exchange.OutputUse(False, frozenset({"X"}), {}), 9, ""),
        (exchange.OutputUse(False, frozenset({"B"}), {}), 9, "B"),
        (exchange.KEEPS_ALL, 1, "A"),
    ],
    ids=["none is asked for", "another is asked for", "one is asked for", "only one can be exported"],
)
def test_outputs_are_copied_from_gpu_memory_unless_the_request_keeps_them_there(device, use, exports_left, kept):
    device.exports_left = exports_left
    sizes = {"A": LARGE, "B": LARGE + 1}
    flags, count, packed, *_ = device.writer.write([device.tensor(*each) for each in sizes.items()], use)
    assert (flags, count) == (wire.OWN_BLOCKS | (wire.DEVICE if kept else 0), 2)
    blocks = dict(zip(sizes, np.frombuffer(packed[:16], "<u8").tolist(), strict=True))
    assert device.copied == [(sizes[name], block) for name, block in blocks.items() if name != kept]
    assert device.exported == [sizes[each] for each in kept]
    assert blocks.get(kept, wire.DEVICE_BLOCK + 1) == wire.DEVICE_BLOCK + 1


@pytest.mark.parametrize(
    ("use", "exports_left", "released"),
    [
        (exchange.KEEPS_ALL, 1, [wire.DEVICE_BLOCK + 1]),
        (exchange.OutputUse(False, frozenset({"B"}), {}), 9, [0, wire.DEVICE_BLOCK + 1]),
    ],
    ids=["an export", "a copy"],
)
def test_a_gpu_that_fails_leaves_no_block_taken(device, use, exports_left, released):
    device.problem = RuntimeError("the GPU failed")
    device.exports_left = exports_left
    with pytest.raises(RuntimeError):
        device.writer.write([device.tensor("A"), device.tensor("B")], use)
    assert device.released == released
