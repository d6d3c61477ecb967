"""What the host writes to guests and reads of their calls, byte by byte: heads, places in memory, GPU memory, traces."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from naiad_stub import layout, wire
from naiad_stub.layout import Place

from naiad.core.errors import Code, NaiadError, OutOfMemoryError, ProtocolError
from naiad.guests.calls import CallDecoder, error_result, result_block, write_result
from naiad.guests.exchange import (
    ModelInterface,
    bridge_places,
    check_sendable,
    pack_released,
    read_single,
    shared_places,
    write_execute,
    write_forwarded,
)
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE
from naiad.guests.tensors import TensorLayout, check_layout, copy_or_borrow, read_blocks
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceBytes, DeviceUse, Exporter, WrittenBytes, as_data, device_bytes
from naiad.protocol.inference import InferRequest, InferResponse, InputPlace, InputTensor, OutputTensor
from naiad.protocol.request_plan import RequestPlan

UUID, HANDLE = b"\1" * 16, b"\2" * 64
LONG = wire.INLINE_LIMIT + 1


@pytest.fixture
def memory():
    made = InstanceMemory("test", capacity=1 << 28)
    yield made
    made.close()


@pytest.fixture
def interface() -> ModelInterface:
    return ModelInterface(
        RequestPlan(model_name="m", model_version=3, input_names=("A", "B"), output_names=("X", "Y"), packs_inputs=True)
    )


def tensor(name: str = "A", data: Any = b"abcd") -> InputTensor:
    return InputTensor(name, Datatype.UINT8, (len(data),), data)


def on_gpu(size: int = LONG, exporter: Exporter | None = None) -> DeviceBytes:
    return DeviceBytes(UUID, HANDLE, 64, size, exporter or Exporter(), None)


def ask(*tensors: InputTensor, **more: Any) -> InferRequest:
    return InferRequest("m", 3, tensors or [tensor()], **more)


def sent(frame: bytes, *, places: int = 0) -> list[dict[str, Any]]:
    """The requests of EXECUTE, each as its fields."""
    head = wire.EXECUTE_FRAME.size
    length, kind, _, number, count, block = wire.EXECUTE_FRAME.unpack_from(frame)
    assert (kind, length) == (wire.Kind.EXECUTE, len(frame) - wire.FRAME.size)
    at = head + max(0, -1 - block)
    found = []
    for _ in range(count):
        names = ("key", "correlation", "timeout", "flags", "base", "id", "text", "parameters", "layout")
        fields: dict[str, Any] = dict(zip(names, wire.REQUEST_HEAD.unpack_from(frame, at), strict=True))
        at += wire.REQUEST_HEAD.size
        for name in ("id", "text", "parameters"):
            size = 0 if fields[name] == wire.NO_STRING else fields[name]
            fields[name], at = frame[at : at + size], at + size
        end = at + places if places else len(frame) if count == 1 else at + fields["layout"]
        fields["rest"], at = frame[at:end], end
        found.append({**fields, "number": number, "block": block})
    assert at == len(frame)
    return found


def place_of(exporter: Exporter, at: int) -> bytes:
    return wire.DEVICE_PLACE.pack(at, UUID, HANDLE, exporter.number, 64)


# -- EXECUTE ----------------------------------------------------------------------------------------------------------


class Traced:
    def __init__(self, context: bytes | None) -> None:
        self.context = context


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"correlation": 0, "timeout": 0, "flags": 0, "id": b"", "text": b"", "parameters": b""}),
        ({"request_id": "\u00e4"}, {"id": "\u00e4".encode()}),
        ({"parameters": {"a": 1}}, {"parameters": b'{"a":1}'}),
        ({"correlation_id": 7, "flags": 3, "timeout_us": 9}, {"correlation": 7, "flags": 3, "timeout": 9, "text": b""}),
        ({"correlation_id": "me"}, {"correlation": 0, "text": b"me"}),
        ({"trace": Traced(None)}, {"flags": 0, "before": b""}),
        ({"trace": Traced(b"")}, {"flags": wire.TRACED, "before": wire.TRACE_SIZE.pack(0)}),
        ({"trace": Traced(b'{"t":"1"}')}, {"flags": wire.TRACED, "context": {"t": "1"}}),
        ({"propagated": {"p": "1"}}, {"flags": wire.TRACED, "context": {"p": "1"}}),
        ({"propagated": {"p": "1"}, "trace": Traced(b"")}, {"flags": wire.TRACED, "context": {"p": "1"}}),
        ({"propagated": {"p": "1", "t": "2"}, "trace": Traced(b'{"t":"1"}')}, {"context": {"p": "1", "t": "1"}}),
    ],
)  # fmt: skip
def test_a_request_is_packed_with_what_it_has(memory, interface, given, expected):
    request = ask(**given)
    packed = interface.plan.pack_inputs(request)[0]
    frame, block = write_execute(7, [(5, request, None)], interface, memory)
    [fields] = sent(frame)
    assert (fields["key"], fields["number"], fields["block"], block) == (5, 7, -5, -5)
    assert frame[wire.EXECUTE_FRAME.size :].startswith(b"abcd")
    assert fields["layout"] == len(packed)
    assert fields["rest"].endswith(packed)
    before = fields["rest"][: -len(packed)]
    if "context" in expected:
        (size,) = wire.TRACE_SIZE.unpack_from(before)
        assert size == len(before) - wire.TRACE_SIZE.size
        fields["context"] = orjson.loads(before[wire.TRACE_SIZE.size :])
    fields["before"] = before
    assert {name: fields[name] for name in expected} == expected


def test_what_a_request_has_to_do_with_gpu_memory_comes_before_its_layout(memory, interface):
    owner, reads = Exporter(), memory.regions.importer
    one, no_place = on_gpu(exporter=owner), wire.OUTPUT_PLACE.pack(1, b"", b"", 0, 0, 0)
    written = wire.OUTPUT_PLACE.pack(0, UUID, HANDLE, owner.number, 64, LONG)
    readers = wire.DEVICE_COUNT.pack(2) + b"\1" * 16 + b"\3" * 16
    gpus = frozenset([b"\3" * 16, b"\1" * 16])
    count = wire.DEVICE_COUNT.pack(1)
    for use, flags, before in [
        (DeviceUse(), 0, b""),
        (DeviceUse(keeps_outputs=True), wire.DEVICE_OUTPUTS, b""),
        (DeviceUse(keeps_outputs=True, readers=gpus), wire.DEVICE_OUTPUTS | wire.GPU_READERS, readers),
        (DeviceUse(readers=gpus), 0, b""),
        (DeviceUse(kept=frozenset("YZ")), wire.OUTPUT_PLACES, count + no_place),
        (DeviceUse(kept=frozenset("Y"), readers=gpus), wire.OUTPUT_PLACES | wire.GPU_READERS, count + no_place + readers),
        (DeviceUse(places={"X": one, "Z": one}, kept=frozenset("X")), wire.OUTPUT_PLACES, count + written),
    ]:  # fmt: skip
        owner.end()
        reads.ended.clear()
        frame, _ = write_execute(1, [(1, ask(device=use), None)], interface, memory)
        [fields] = sent(frame)
        packed = interface.plan.pack_inputs(ask())[0]
        assert (fields["flags"], fields["rest"]) == (flags, before + packed), use
        owner.end()
        assert reads.ended == ([owner.number] if use.places else []), "the guest may have opened it"
        reads.ended.clear()


@pytest.mark.parametrize("copies", [None, []])
def test_inputs_in_gpu_memory_are_named_and_held_and_the_others_copied(memory, interface, copies):
    owner = Exporter()
    device = as_data(on_gpu(LONG, owner))
    use = DeviceUse(has_inputs=True)
    request = ask(tensor("A", device), tensor("B", b"efgh"), device=use)
    frame, block = write_execute(1, [(1, request, None)], interface, memory, (), copies)
    [fields] = sent(frame)
    _, offsets, size = interface.plan.pack_inputs(request)
    assert (block >= 0, fields["base"], fields["flags"]) == (True, block, wire.DEVICE_INPUTS)
    assert fields["rest"].startswith(wire.DEVICE_COUNT.pack(1) + place_of(owner, 0))
    at = block + offsets[1]
    assert bytes(memory.inputs.view[at : at + 4]) == b"efgh"
    assert memory.inputs.in_use >= size
    assert memory.regions._held == {block: [device_bytes(device)]}
    memory.release_input(block)
    assert (memory.regions._held, memory.inputs.in_use) == ({}, 0)
    small = ask(tensor("B", b"ef"), tensor("A", as_data(on_gpu(8, owner))), device=use)
    frame, block = write_execute(1, [(1, small, None)], interface, memory)
    assert block < 0
    assert memory.regions._held == {}, "few bytes are in the message, which the guest copies at once"
    check_sendable((1, request, None), interface, memory)
    assert memory.inputs.in_use == 0


def test_many_bytes_of_a_batch_are_left_to_be_copied_later(memory, interface):
    for size, later in ((COPIED_AT_ONCE, 0), (COPIED_AT_ONCE + 1, 2)):
        copies: list[Any] = []
        data = np.arange(size, dtype=np.uint8).tobytes()
        request = ask(tensor("A", data[: size - 64]), tensor("B", data[size - 64 :]))
        frame, block = write_execute(1, [(1, request, None)], interface, memory, (), copies)
        assert len(copies) == later
        for target, source in copies:
            target[:] = source
        [fields] = sent(frame)
        _, offsets, _ = interface.plan.pack_inputs(request)
        for start, part in zip(offsets, (data[: size - 64], data[size - 64 :]), strict=True):
            assert bytes(memory.inputs.view[block + start : block + start + len(part)]) == part
        memory.release_input(block)
        assert fields["base"] == block
    device = as_data(on_gpu())
    copies = []
    request = ask(tensor("A", device), tensor("B", bytes(COPIED_AT_ONCE)), device=DeviceUse(has_inputs=True))
    _, block = write_execute(1, [(1, request, None)], interface, memory, (), copies)
    [(target, _)] = copies
    assert len(target) == COPIED_AT_ONCE


def test_inputs_that_the_guest_maps_are_not_copied(memory, interface):
    mapped = InputPlace(9, 4096, memoryview(b"x"))
    plain, elsewhere, unpacked = ask(), ask(place=InputPlace(8, 0, mapped.data)), ask(place=mapped)
    packed = interface.plan.pack_inputs(plain)
    shared = SimpleNamespace(number=9)
    batch = [(1, plain, packed), (2, ask(place=mapped), packed), (3, elsewhere, packed), (4, unpacked, None)]
    places = shared_places(batch, shared)
    assert places == [None, mapped, None, None]
    assert shared_places(batch[:1], shared) == shared_places(batch[2:], shared) == ()
    frame, block = write_execute(1, batch, interface, memory, places)
    fields = sent(frame)
    assert [(each["flags"], each["base"]) for each in fields] == [(0, 0), (wire.SHARED_INPUTS, 4096), (0, 64), (0, 128)]
    assert block == -1 - 192, "three of them, each at a multiple of 64"
    assert bytes(frame[wire.EXECUTE_FRAME.size :][:196:64]) == b"aaa" + frame[wire.EXECUTE_FRAME.size :][192:193]
    frame, block = write_execute(1, batch[1:2], interface, memory, [mapped])
    assert ([each["flags"] for each in sent(frame)], block) == ([0], -5), "few bytes are sent in any case"


def test_long_inputs_in_a_bridge_are_read_where_they_are(memory, interface):
    found, asked = InputPlace(0, 5 << wire.BRIDGE_SHIFT | 64, memoryview(b"")), []
    memory.bridges.place_of = lambda tensors, offsets, *model: (
        asked.append((len(tensors), list(offsets), model)) or found
    )
    long = tensor("A", bytes(wire.BRIDGE_FROM))
    packed = interface.plan.pack_inputs(ask(long))
    for request, known, place in [
        (ask(long), None, found),
        (ask(long), packed, found),
        (ask(tensor("A", bytes(wire.BRIDGE_FROM - 1))), None, None),
        (ask(long, reader=-1), None, None),
        (ask(long, device=DeviceUse()), None, None),
    ]:
        for places in ((), [None]):
            result = bridge_places([(1, request, known)], places, interface, memory)
            assert list(result) == ([place] if place else list(places))
    assert asked == [(1, [0], ("m", 3))] * 4
    other = InputPlace(9, 0, memoryview(b""))
    batch = [(1, ask(long), None), (2, ask(long), None)]
    assert bridge_places(batch, [other, None], interface, memory) == [other, found]
    assert bridge_places([(0, ask(), None), *batch], (), interface, memory) == [None, found, found]
    frame, block = write_execute(1, batch, interface, memory, [found, found])
    assert [each["base"] for each in sent(frame)] == [found.start] * 2
    assert block == -1, "nothing is copied"


def test_outputs_for_the_readers_of_a_bridge_are_marked(memory, interface):
    memory.bridges.to_reader = lambda load: 7 if load == 4 else 0
    packed = interface.plan.pack_inputs(ask())[0]
    number = wire.BRIDGE_NUMBER.pack(7)
    for request, flags, rest in [
        (ask(reader=4), wire.BRIDGE_OUTPUTS, number + packed),
        (ask(reader=5), 0, packed),
        (ask(reader=0), 0, packed),
        (ask(reader=4, device=DeviceUse()), 0, packed),
    ]:
        [fields] = sent(write_execute(1, [(1, request, None)], interface, memory)[0])
        assert (fields["flags"], fields["rest"]) == (flags, rest)
    sequences = ModelInterface(
        RequestPlan(model_name="m", model_version=3, input_names=("A",), output_names=("X",), packs_inputs=False)
    )
    [fields] = sent(write_execute(1, [(1, ask(reader=4), None)], sequences, memory)[0])
    assert fields["flags"] == 0, "its outputs may include states, which are for the server"


def test_released_outputs_go_along_with_a_request_once_they_are_many_or_large(memory, interface):
    for released, large, along in [(15, False, False), (16, False, True), (1, True, True)]:
        memory.released.clear()
        memory.released.extend(range(released))
        memory.has_large_released = large
        frame, _ = write_execute(1, [(1, ask(), None)], interface, memory)
        forwarded = write_forwarded(1, 1, b"", b"", b"", b"", memory)
        kinds = [wire.FRAME.unpack_from(each)[1] for each in (frame, forwarded)]
        assert kinds == [wire.Kind.RELEASE_OUTPUTS if along else wire.Kind.EXECUTE, wire.Kind.EXECUTE]
        assert (len(memory.released), memory.has_large_released) == (0 if along else released, False)
    memory.released.clear()
    assert pack_released(memory) == b""


@pytest.mark.parametrize("context", [b"", b'{"p":"1"}'])
def test_a_forwarded_request_is_read_as_any_other(memory, interface, context):
    packed = interface.plan.pack_inputs(ask())[0]
    frame = write_forwarded(7, 5, b"id", packed, b"abcd", context, memory)
    traced = {"trace": Traced(context)} if context else {}
    assert frame == write_execute(7, [(5, ask(request_id="id", **traced), None)], interface, memory)[0]


def test_a_request_that_cannot_be_packed_leaves_no_block(memory, interface):
    bad = ask(tensor("A", bytes(LONG)), request_id="\ud800")
    for batch in ([(1, bad, None)], [(1, ask(tensor("A", bytes(LONG))), None), (2, bad, None)]):
        with pytest.raises(UnicodeEncodeError):
            write_execute(1, batch, interface, memory)
        assert memory.inputs.in_use == 0
    with pytest.raises(UnicodeEncodeError):
        check_sendable((1, bad, None), interface, memory)
    landed = memory.reservations.reserve(LONG, 0)
    with pytest.raises(UnicodeEncodeError):
        write_execute(1, [(1, ask(tensor("A", landed), request_id="\ud800"), None)], interface, memory)
    del landed
    gc.collect()
    assert memory.input_byte_size == 0
    layout_of_less = interface.plan.pack_inputs(ask(tensor("A", b"ab")))
    with pytest.raises(ValueError, match="input 'A' ends at 4 of 2 bytes"):
        check_sendable((1, ask(), layout_of_less), interface, memory)


@pytest.mark.parametrize(
    ("change", "is_single"),
    [
        ({}, True), ({"count": 2}, False), ({"flags": 0}, False), ({"flags": wire.DONE | wire.KEPT}, False),
        ({"kind": 0}, False), ({"kind": wire.FINAL | wire.ERROR}, False), ({"blocks": 1}, False), ({"text": 1}, False),
        ({"packed": b"other"}, False), ({"data": b"abcde"}, False), ({"data": b"abc"}, False), ({"cut": 9}, False),
    ],
)  # fmt: skip
def test_only_one_final_response_of_a_known_layout_is_read_at_once(interface, change, is_single):
    packed = b"packed"
    interface.layouts[packed] = TensorLayout([("X", Datatype.UINT8, (4,), 0, 4)], 4)
    given = {"count": 1, "flags": wire.DONE, "kind": wire.FINAL, "blocks": 0, "text": 0, "packed": packed}
    given |= {"data": b"abcd", "cut": None, **change}
    payload = wire.RESPONSES_HEAD.pack(7, given["count"], given["flags"], 10, 20)
    payload += wire.RESPONSE_HEAD.pack(5, given["kind"], 0, given["blocks"], given["text"], len(given["packed"]))
    found = read_single((payload + given["packed"] + given["data"])[: given["cut"]], interface)
    assert (found is not None) == is_single
    if found is not None:
        assert (found.number, found.key, found.started, found.ended, found.outputs) == (7, 5, 10, 20, b"abcd")
        response = found.as_any(interface)
        assert (response.key, response.final, response.response.model_version) == (5, True, 3)
        assert [(each.name, bytes(each.data)) for each in response.response.outputs] == [("X", b"abcd")]
        interface.layouts[packed].unknown_output = "Z"
        assert read_single(payload + packed + b"abcd", interface) is None


# -- tensors of guests ------------------------------------------------------------------------------------------------


def device_layout(*sizes: int, datatype: Datatype = Datatype.UINT8) -> TensorLayout:
    return TensorLayout([(f"T{index}", datatype, (size,), 0, size) for index, size in enumerate(sizes)], max(sizes))


def test_tensors_in_blocks_of_their_own_are_borrowed_each(memory):
    memory.outputs[4096:4099], memory.outputs[8192:8194] = b"abc", b"de"
    found = copy_or_borrow([4096, 8192], device_layout(3, 0, 2), memory, "m", apart=True)
    assert [bytes(each) for each in found] == [b"abc", b"", b"de"]
    del found
    gc.collect()
    assert sorted(memory.released) == [4096, 8192]


def test_tensors_in_gpu_memory_are_released_with_their_last_reference(memory):
    block, written = wire.DEVICE_BLOCK + 5, wire.WRITTEN_BLOCK
    found = copy_or_borrow(
        [block, written, written], device_layout(LONG, 7, 8), memory, "m", apart=True, handles=[(UUID, HANDLE)]
    )
    first, second = device_bytes(found[0]), found[1]
    assert (first.uuid, first.handle, first.offset, len(first)) == (UUID, HANDLE, 0, LONG)
    assert first.exporter is memory.regions.exporter
    assert (type(second), len(second), len(found[2])) == (WrittenBytes, 7, 8)
    del found, first, second
    gc.collect()
    assert list(memory.released) == [5 - (1 << 63)]


@pytest.mark.parametrize(
    ("blocks", "sizes", "datatype", "text"),
    [
        ([0], (1, 1), Datatype.UINT8, "have 1 blocks instead of one each"),
        ([0, 0], (1, 1), Datatype.UINT8, "have 2 blocks instead of one each"),
        ([0, 64], (1, 0), Datatype.UINT8, "have 2 blocks instead of one each"),
        ([1 << 40], (1,), Datatype.UINT8, "are outside its segment"),
        ([wire.DEVICE_BLOCK], (wire.INLINE_LIMIT,), Datatype.UINT8, "tensor 'T0' of 'm' cannot be in GPU memory"),
        ([wire.DEVICE_BLOCK], (LONG,), Datatype.BYTES, "tensor 'T0' of 'm' cannot be in GPU memory"),
    ],
)
def test_blocks_that_do_not_fit_their_tensors_break_the_protocol(memory, blocks, sizes, datatype, text):
    with pytest.raises(ProtocolError, match=text):
        copy_or_borrow(
            blocks, device_layout(*sizes, datatype=datatype), memory, "m", apart=True, handles=[(UUID, HANDLE)]
        )


def test_the_last_bytes_of_the_segment_are_inside_and_those_behind_are_not(memory):
    end = len(memory.outputs)
    for apart in (True, False):
        assert copy_or_borrow([end - 3], device_layout(3), memory, "m", apart=apart)
        with pytest.raises(ProtocolError, match="outside its segment"):
            copy_or_borrow([end - 2], device_layout(3), memory, "m", apart=apart)
    with pytest.raises(ProtocolError, match="outside its segment"):
        copy_or_borrow([0, 64], device_layout(3), memory, "m", apart=False)


def test_handles_belong_to_blocks_in_gpu_memory_alone():
    handle = wire.DEVICE_HANDLE.pack(UUID, HANDLE)
    blocks = [64, wire.DEVICE_BLOCK + 1, wire.WRITTEN_BLOCK, wire.DEVICE_BLOCK]
    packed = b"??" + b"".join(block.to_bytes(8, "little") for block in blocks)
    found = read_blocks(packed + 2 * handle + b"!", 2, 4, wire.DEVICE)
    assert found == (tuple(blocks), [(UUID, HANDLE)] * 2, 2 + 32 + 160)
    assert read_blocks(packed, 2, 1, 0) == ((64,), (), 10)
    with pytest.raises(ProtocolError, match="a block in GPU memory has no handle"):
        read_blocks(packed, 2, 2, 0)


@pytest.mark.parametrize(
    ("code", "shape", "size", "is_valid"),
    [
        (1, (3,), 3, True), (14, (3,), 6, True), (13, (3,), 99, True), (1, (), 1, True), (1, (0, 5), 0, True),
        (0, (3,), 3, False), (15, (3,), 3, False), (1, (3, -1), 3, False), (1, (3,), 4, False), (1, (-1, -3), 3, False),
    ],
)  # fmt: skip
def test_a_layout_must_be_possible(code, shape, size, is_valid):
    places = [Place(0, "A", code, shape, 64, size), Place(0, "B", 1, (1,), 0, 1)]
    if is_valid:
        found = check_layout(places, ["A", "B"], "m")
        assert (found.entries[0][2:], found.end) == ((shape, 64, 64 + size), 64 + size)
    else:
        with pytest.raises(ProtocolError, match="tensor 'A' of m"):
            check_layout(places, ["A", "B"], "m")
    assert check_layout([], [], "m").end == 0


# -- calls ------------------------------------------------------------------------------------------------------------


def call(
    *, flags: int = 0, own: int = 0, correlation: int | str = 0, blocks: bytes = b"", trace: bytes = b"",
    request_id: bytes = b"", parameters: bytes = b"", outputs: bytes = b"", sizes: tuple[int, ...] = (4,), data: bytes = b"",
) -> bytes:  # fmt: skip
    text = correlation.encode() if isinstance(correlation, str) else b""
    packed = layout.pack([Place(wire.OTHER_NAME, "A", Datatype.UINT8, (size,), 0, size) for size in sizes])
    head = wire.CALL_HEAD.pack(
        3, 0 if text else correlation, 9, 2, 4, flags, own, len(blocks) // 8 if not own & wire.DEVICE else 1,
        len(request_id), len(text) if text else wire.NO_STRING, len(parameters), len(b"other"), len(outputs), len(packed),
    )  # fmt: skip
    return head + blocks + trace + request_id + text + parameters + b"other" + outputs + packed + data


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"request_id": "", "correlation_id": 0, "requested_outputs": (), "parameters": {}, "reader": -1}),
        ({"request_id": b"me"}, {"request_id": "me"}),
        ({"correlation": 7}, {"correlation_id": 7}),
        ({"correlation": "seq"}, {"correlation_id": "seq"}),
        ({"parameters": b'{"a":1}'}, {"parameters": {"a": 1}}),
        ({"outputs": b"X\0Y"}, {"requested_outputs": ("X", "Y")}),
        ({"flags": wire.CALL_BRIDGES}, {"reader": 6}),
        ({"flags": wire.CALL_DECOUPLED}, {"is_decoupled": True}),
        ({"flags": wire.CALL_BLOCKING}, {"is_blocking": True}),
        ({"flags": wire.CALL_AWAITED}, {"is_awaited": True}),
        ({"flags": wire.CALL_USES_DEVICE}, {"uses_device": True}),
        ({"flags": wire.CALL_DEVICE_OUTPUTS}, {"device": DeviceUse(keeps_outputs=True)}),
        ({"flags": wire.CALL_TRACED, "trace": wire.CALL_TRACE.pack(8)}, {"traced_by": 8}),
    ],
)
def test_a_call_is_read_with_what_it_has(memory, given, expected):
    memory.bridges.load = 6
    decoder = CallDecoder("m")
    plain = {"is_decoupled": False, "is_blocking": False, "is_awaited": False, "uses_device": False, "traced_by": None}
    plain |= {"model_name": "other", "model_version": 4, "flags": 2, "timeout_us": 9, "device": None, "number": 3}
    found = [decoder.read(call(**given, data=b"abcd"), memory) for _ in range(2)]
    for each in found:
        values = {name: getattr(each if name in each._fields else each.request, name) for name in {**plain, **expected}}
        assert values == {**plain, **expected}
        assert [(one.name, bytes(one.data)) for one in each.request.inputs] == [("A", b"abcd")]
    assert found[0].request.layout_key is found[1].request.layout_key, "repeated calls are checked once"
    assert (
        decoder.read(call(**given, sizes=(3,), data=b"abc"), memory).request.layout_key
        is not found[0].request.layout_key
    )


def test_inputs_of_a_call_are_read_from_blocks_and_gpu_memory(memory):
    memory.outputs[64:68] = b"abcd"
    found = CallDecoder("m").read(call(blocks=(64).to_bytes(8, "little")), memory)
    assert bytes(found.request.inputs[0].data) == b"abcd"
    device = (wire.DEVICE_BLOCK + 1).to_bytes(8, "little") + wire.DEVICE_HANDLE.pack(UUID, HANDLE)
    own = wire.OWN_BLOCKS | wire.DEVICE
    found = CallDecoder("m").read(call(own=own, blocks=device, sizes=(LONG,)), memory)
    assert found.request.device == DeviceUse(has_inputs=True)
    assert device_bytes(found.request.inputs[0].data) is not None
    written = wire.WRITTEN_BLOCK.to_bytes(8, "little")
    with pytest.raises(ProtocolError, match="sent a call with an input that it has not sent"):
        CallDecoder("m").read(call(own=own, blocks=written), memory)


@pytest.mark.parametrize(
    "payload",
    [
        b"short", call(data=b"abc"), call(data=b"abcde"), call(parameters=b"{", data=b"abcd"), call(data=b"abcd")[:-9],
        call(request_id=b"\xff", data=b"abcd"), call(blocks=(64).to_bytes(8, "little"), data=b"x"),
    ],
)  # fmt: skip
def test_a_malformed_call_breaks_the_protocol(memory, payload):
    with pytest.raises(ProtocolError, match="'m' sent a "):
        CallDecoder("m").read(payload, memory)


def result(frame: bytes) -> dict[str, Any]:
    names = ("number", "block", "version", "flags", "code", "text", "layout")
    length, kind, _ = wire.FRAME.unpack_from(frame)
    assert (length, kind) == (len(frame) - wire.FRAME.size, wire.Kind.RESULT)
    fields = dict(zip(names, wire.RESULT_HEAD.unpack_from(frame, wire.FRAME.size), strict=True))
    at = wire.FRAME.size + wire.RESULT_HEAD.size
    fields["text"], fields["rest"] = frame[at : at + fields["text"]], frame[at + fields["text"] :]
    return fields


def output(name: str, data: Any) -> OutputTensor:
    return OutputTensor(name, Datatype.UINT8, (len(data),), data)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (None, {"flags": wire.EMPTY, "version": -1, "block": -1, "code": 0, "text": b""}),
        (InferResponse("x", 4, error=NaiadError("no \ud800", code=Code.NOT_FOUND)),
         {"flags": wire.ERROR, "version": 4, "block": -1, "code": 2, "text": b"no ?"}),
        (InferResponse("x", 4, outputs=[output("X", b"abcd")], parameters={"a": 1}),
         {"flags": 0, "version": 4, "block": -5, "code": 0, "text": b'{"a":1}'}),
        (InferResponse("x", 4, outputs=[output("X", b"")]), {"flags": 0, "block": -1, "text": b""}),
        (InferResponse("x", 4, outputs=[output("X", b"ab"), output("Y", b"c")]), {"block": -66}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("final", [False, True])
def test_a_result_is_packed_with_what_it_has(memory, response, expected, final):
    fields = result(write_result(5, response, final, memory))
    assert fields["number"] == 5
    assert fields["flags"] == expected.get("flags", 0) | (wire.FINAL if final else 0)
    assert {name: fields[name] for name in expected if name != "flags"} == {
        name: value for name, value in expected.items() if name != "flags"
    }
    failed = result(error_result(5, "no", Code.INTERNAL))
    assert (failed["flags"], failed["code"], failed["block"]) == (wire.FINAL | wire.ERROR, 1, -1)


def test_the_layout_of_a_result_is_packed_once_for_all_responses_of_a_layout(memory):
    known = TensorLayout([("X", Datatype.UINT8, (4,), 0, 4)], 4)
    response = InferResponse("x", 4, "", [output("X", b"abcd")], {}, None, known)
    first = write_result(5, response, True, memory)
    assert known.as_result is not None
    kept = known.as_result
    assert write_result(5, response, True, memory) == first
    assert known.as_result is kept
    assert first == write_result(5, InferResponse("x", 4, outputs=[output("X", b"abcd")]), True, memory)


def test_long_results_have_a_block_or_stay_in_their_bridge(memory):
    outputs = [output("X", bytes(range(256)) * 8), output("Y", b"abcd")]
    frame = write_result(5, InferResponse("x", 4, outputs=outputs), True, memory)
    block = result_block(frame)
    assert result(frame)["block"] == block >= 0
    assert bytes(memory.inputs.view[block : block + 2052]) == bytes(range(256)) * 8 + b"abcd"
    memory.release_input(block)
    place, asked = InputPlace(0, 5 << wire.BRIDGE_SHIFT | 64, memoryview(b"")), []
    memory.bridges.place_of = lambda tensors, offsets: asked.append(list(offsets)) or place
    for size, used in [(wire.BRIDGE_FROM, True), (wire.BRIDGE_FROM, False), (wire.BRIDGE_FROM - 1, False)]:
        response = InferResponse("x", 4, outputs=[output("X", bytes(size))], parameters={"a": 1})
        fields = result(write_result(5, response, True, memory))
        assert (fields["block"] == place.start, fields["text"]) == (used, b'{"a":1}'), "one block is held once"
    assert asked == [[0], [0]]


def test_results_in_gpu_memory_are_named_and_held(memory):
    owner = Exporter()
    device = as_data(on_gpu(LONG, owner))
    response = InferResponse("x", 4, outputs=[output("X", b"abcd"), output("Y", device)])
    response.is_on_device = True
    frame = write_result(5, response, False, memory)
    fields, block = result(frame), result_block(frame)
    assert (fields["flags"], block >= 0) == (wire.DEVICE, True)
    assert fields["rest"].startswith(wire.DEVICE_COUNT.pack(1) + place_of(owner, 1))
    assert bytes(memory.inputs.view[block : block + 4]) == b"abcd"
    assert memory.regions._held == {block: [device_bytes(device)]}
    owner.end()
    assert memory.regions.importer.ended == [owner.number]
    plain = InferResponse("x", 4, outputs=[output("X", b"abcd")])
    plain.is_on_device = True
    assert result(write_result(5, plain, False, memory))["flags"] == 0


def test_a_result_that_cannot_be_packed_leaves_no_block(memory):
    response = InferResponse("x", 4, outputs=[output("X", bytes(LONG))], parameters={"a": object()})
    with pytest.raises(TypeError):
        write_result(5, response, True, memory)
    assert memory.inputs.in_use == 0
    everything = memory.inputs.allocate(memory.inputs.capacity)
    with pytest.raises(
        OutOfMemoryError, match=f"a response of {LONG} bytes does not fit into the input segment of the"
    ):
        write_result(5, InferResponse("x", 4, outputs=[output("X", bytes(LONG))]), True, memory)
    memory.inputs.release(everything)
