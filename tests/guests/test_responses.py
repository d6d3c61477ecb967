"""What guests send about their outputs: taken over exactly, and never trusted."""

from __future__ import annotations

import gc
import struct

import pytest
from hypothesis import given, settings
from naiad_stub import layout, wire
from naiad_stub.layout import Place
from support.choices import Choices, choices

from naiad.core.errors import Code, ModelError, ProtocolError
from naiad.guests.exchange import ExecutionReport, ModelInterface, read_reports, read_responses, read_single
from naiad.guests.memory.instance import COPY_LIMIT, InstanceMemory
from naiad.protocol.datatypes import Datatype
from naiad.protocol.request_plan import OutputRule, RequestPlan

CAPACITY = 1 << 28


@pytest.fixture(scope="module")
def memory():
    made = InstanceMemory("test", capacity=CAPACITY)
    made.outputs[:8192] = bytes(range(256)) * 32
    yield made
    made.close()


@pytest.fixture
def interface():
    return ModelInterface(
        RequestPlan(model_name="m", model_version=3, input_names=("IN",), output_names=("OUT", "MORE"))
    )


def message(
    *entries: bytes, number: int = 1, flags: int = wire.DONE, count: int | None = None, reports: tuple[bytes, ...] = ()
) -> bytes:
    flags |= len(reports) << wire.REPORTS_SHIFT
    head = wire.RESPONSES_HEAD.pack(number, len(entries) if count is None else count, flags, 10, 20)
    return head + b"".join((*entries, *reports))


def entry(
    places=(), *, key=1, block=-1, flags=wire.FINAL, code=0, text=b"", packed: bytes | None = None, inline=b""
) -> bytes:
    data = layout.pack(places) if packed is None else packed
    blocks = b"" if block < 0 else struct.pack("<Q", block)
    return (
        wire.RESPONSE_HEAD.pack(key, flags, code, len(blocks) // 8, len(text), len(data))
        + blocks
        + text
        + data
        + inline
    )


def fp32(count: int, *, offset: int = 0, position: int = 0) -> Place:
    return Place(position, "", Datatype.FP32, (count,), offset, 4 * count)


def only(payload: bytes, interface, memory):
    [answer] = read_responses(payload, interface, memory).responses
    return answer


def test_small_outputs_are_copied_and_their_block_is_free_at_once(memory, interface):
    memory.released.clear()
    answer = only(message(entry([fp32(2), fp32(1, offset=64, position=1)], block=4096)), interface, memory)
    assert [(o.name, o.datatype, o.shape, bytes(o.data)) for o in answer.response.outputs] == [
        ("OUT", Datatype.FP32, (2,), bytes(range(8))),
        ("MORE", Datatype.FP32, (1,), bytes(range(64, 68))),
    ]
    assert (answer.key, answer.final, list(memory.released), memory.borrowed_count) == (1, True, [4096], 0)
    assert (answer.response.model_name, answer.response.model_version) == ("m", 3)


def test_outputs_up_to_the_limit_are_the_responses_own(memory, interface):
    memory.released.clear()
    half = COPY_LIMIT // 8
    written = bytes(memory.outputs[: 8 * half])
    answer = only(message(entry([fp32(half), fp32(half, offset=4 * half, position=1)], block=0)), interface, memory)
    assert (list(memory.released), memory.borrowed_count) == ([0], 0)
    memory.outputs[: 8 * half] = bytes(8 * half)  # by the next response
    first, second = [bytes(output.data) for output in answer.response.outputs]
    memory.outputs[: 8 * half] = written
    assert first + second == written


def test_outputs_of_few_bytes_come_in_the_message(memory, interface):
    memory.released.clear()
    inline = bytes(range(8)) + bytes(56) + b"more"
    places = [fp32(2), fp32(0, offset=64, position=1), fp32(1, offset=64, position=1)]
    both = message(entry(places, inline=inline), entry([fp32(1)], key=2, inline=b"next"))
    first, second = read_responses(both, interface, memory).responses
    assert [bytes(output.data) for output in first.response.outputs] == [bytes(range(8)), b"", b"more"]
    assert [bytes(output.data) for output in second.response.outputs] == [b"next"]
    assert (list(memory.released), memory.borrowed_count) == ([], 0)


SUCCESS = wire.REPORT.pack(wire.REPORT_SUCCESS, 1, 11, 12, 13, 14)
BATCH = wire.REPORT.pack(wire.REPORT_BATCH, 1, 11, 12, 13, 14)
BOTH = [ExecutionReport(wire.REPORT_SUCCESS, 1, 11, 12, 13, 14), ExecutionReport(wire.REPORT_BATCH, 1, 11, 12, 13, 14)]


def test_what_a_backend_reports_comes_behind_its_responses(memory, interface):
    outputs = entry([fp32(1)], inline=b"abcd")
    read = read_responses(message(outputs, reports=(SUCCESS, BATCH)), interface, memory)
    assert [bytes(each.response.outputs[0].data) for each in read.responses] == [b"abcd"]
    assert (read.done, read.kept, read.kept_shared, list(read.reports)) == (True, False, False, BOTH)
    read = read_responses(message(flags=wire.DONE | wire.KEPT_SHARED, reports=(BATCH,)), interface, memory)
    assert (read.done, read.kept, read.kept_shared, list(read.reports)) == (True, False, True, BOTH[1:])
    assert not read_responses(message(outputs), interface, memory).reports


def test_the_only_response_of_a_batch_is_read_at_once_with_what_its_backend_reports(memory, interface):
    outputs = entry([fp32(1)], inline=b"abcd")
    assert read_single(message(outputs), interface) is None, "the layout was not checked yet"
    read_responses(message(outputs), interface, memory)
    single = read_single(message(outputs, reports=(SUCCESS, BATCH)), interface)
    assert (single.outputs, read_reports(single.reports)) == (b"abcd", BOTH)
    single = read_single(message(outputs), interface)
    assert (single.outputs, single.reports) == (b"abcd", b"")
    for flags in (0, wire.DONE | wire.KEPT, wire.DONE | wire.KEPT_SHARED):
        assert read_single(message(outputs, flags=flags, reports=(BATCH,)), interface) is None


@pytest.mark.parametrize("change", [-1, 1, wire.REPORT.size], ids="{} bytes more".format)
@pytest.mark.parametrize("reports", [(), (SUCCESS,), (SUCCESS, BATCH)], ids=len)
def test_other_bytes_than_the_reports_that_a_message_counts_break_the_protocol(memory, interface, reports, change):
    outputs = entry([fp32(1)], inline=b"abcd")
    read_responses(message(outputs), interface, memory)
    payload = message(outputs, reports=reports)
    payload = payload[:change] if change < 0 else payload + bytes(change)
    assert read_single(payload, interface) is None
    with pytest.raises(ProtocolError):
        read_responses(payload, interface, memory)


def test_an_unknown_kind_of_report_behind_a_response_breaks_the_protocol(memory, interface):
    outputs = entry([fp32(1)], inline=b"abcd")
    with pytest.raises(ProtocolError, match="unknown kind of report: 9"):
        read_responses(message(outputs, reports=(wire.REPORT.pack(9, 1, 0, 0, 0, 0),)), interface, memory)


def test_large_outputs_are_lent_until_the_last_reference_goes(memory, interface):
    """Whoever holds a slice, a layer's write buffer say, keeps the block from being used again."""
    memory.released.clear()
    half = COPY_LIMIT // 4
    answer = only(message(entry([fp32(half), fp32(half, offset=4 * half, position=1)], block=0)), interface, memory)
    first, second = [output.data for output in answer.response.outputs]
    del answer
    piece = memoryview(first)[10:20]
    del first, second
    gc.collect()
    assert (memory.borrowed_count, list(memory.released)) == (1, [])
    assert bytes(piece) == bytes(range(10, 20))
    del piece
    gc.collect()
    assert (memory.borrowed_count, list(memory.released)) == (0, [0])


def test_lent_bytes_outlive_the_instance(interface):
    own = InstanceMemory("dying", capacity=CAPACITY)
    own.outputs[:4] = b"last"
    answer = only(message(entry([fp32(COPY_LIMIT)], block=0)), interface, own)
    own.close()
    assert bytes(answer.response.outputs[0].data[:4]) == b"last"


def test_blocks_of_refused_messages_come_back(memory, interface):
    memory.released.clear()
    good = entry([fp32(COPY_LIMIT)], block=8192)
    with pytest.raises(ProtocolError) as caught:
        read_responses(message(good, b"nonsense"), interface, memory)
    del caught
    gc.collect()
    assert (memory.borrowed_count, list(memory.released)) == (0, [8192])


def test_errors_and_final_marks_come_without_outputs(memory, interface):
    answer = only(message(entry(flags=wire.FINAL | wire.ERROR, code=3, text="bad ä".encode())), interface, memory)
    error = answer.response.error
    assert isinstance(error, ModelError)
    assert (error.message, error.code) == ("bad ä", Code.INVALID_ARG)
    assert only(message(entry(flags=wire.FINAL | wire.EMPTY)), interface, memory).response is None
    assert not only(message(entry(flags=0)), interface, memory).final


def test_an_unconfigured_output_fails_its_request(memory, interface):
    place = Place(wire.OTHER_NAME, "STRANGE", Datatype.FP32, (1,), 0, 4)
    answer = only(message(entry([place], block=0)), interface, memory)
    assert answer.response.error.message == "unexpected inference output 'STRANGE' for model 'm'"


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "malformed response"),
        (message(count=1), "malformed response"),
        (message() + b"x", "that ends at"),
        (message(entry([fp32(4)], block=CAPACITY)), "are outside its segment"),
        (message(entry([fp32(4)], block=CAPACITY - 8)), "are outside its segment"),
        (message(entry([fp32(4)], block=2**63 - 1)), "are outside its segment"),
        (message(entry([fp32(4)])), "exceed their message"),
        (message(entry([fp32(4)], inline=bytes(15))), "exceed their message"),
        (message(entry([fp32(4)], inline=bytes(17))), "that ends at"),
        (message(entry([fp32(4, offset=2**63)], inline=bytes(16))), "exceed their message"),
        (message(entry([fp32(4, offset=2**63)], block=0)), "are outside its segment"),
        (message(entry([fp32(4)._replace(size=15)], block=0)), r"has 15 bytes for shape \[4\]"),
        (message(entry([fp32(4)._replace(shape=(-2, -2))], block=0)), "no valid datatype or shape"),
        (message(entry([fp32(4)._replace(code=0)], block=0)), "no valid datatype or shape"),
        (message(entry([fp32(4)._replace(code=15)], block=0)), "no valid datatype or shape"),
        (message(entry([fp32(4)._replace(position=2)], block=0)), "malformed response"),
        (message(entry(packed=b"\1\0\xff\xff\0\0\x0b\x21" + bytes(300), block=0)), "malformed response"),
        (message(entry(packed=layout.pack([fp32(1)]) + b"x", block=0)), "malformed response: a layout of"),
        (message(entry(flags=wire.ERROR, code=8, text=b"x")), "malformed response"),
        (message(entry(flags=wire.ERROR, text=b"\xff")), "malformed response"),
        (message(entry(text=b"{")), "malformed response"),
        (message(entry(text=b"[1]")), "parameters that are not a JSON object"),
        (message(entry(text=b"x")[:-3]), "runs past its message"),
    ],
)
def test_a_value_out_of_bounds_is_named(memory, interface, payload, text):
    with pytest.raises(ProtocolError, match=text):
        read_responses(payload, interface, memory)


def u64(chosen: Choices) -> int:
    kind = chosen.below(3)
    return (chosen.below(301), chosen.of([CAPACITY, CAPACITY - 4, 2**63]), chosen.number(8))[kind]


def i64(chosen: Choices) -> int:
    return chosen.below(9) - 3 if chosen.below(2) else chosen.number(8) - 2**63


def place(chosen: Choices) -> Place:
    return Place(
        position=chosen.of([0, 1, 2, 3, wire.OTHER_NAME]),
        name=chosen.of(["OUT", "", "\u00e4" * 40]),
        code=chosen.of([Datatype.FP32, Datatype.BYTES, chosen.below(256)]),
        shape=tuple(i64(chosen) for _ in range(chosen.below(6))),
        offset=u64(chosen),
        size=u64(chosen),
    )


def any_entry(chosen: Choices) -> bytes:
    return entry(
        [place(chosen) for _ in range(chosen.below(4))],
        key=u64(chosen),
        block=i64(chosen),
        flags=chosen.below(256),
        code=chosen.below(256),
        text=chosen.of([b"", b'{"a":1}', b"[]", b"{", chosen.bytes(9)]),
        packed=chosen.bytes(40) if chosen.below(2) else None,
    )


DECLARED = {"OUT": OutputRule(Datatype.FP32, (-1, 4)), "MORE": OutputRule(Datatype.BYTES, (-1, -1))}


@pytest.mark.parametrize(
    ("place", "form"),
    [
        (Place(0, "", Datatype.FP32, (3, 4), 0, 48), ""),
        (Place(0, "", Datatype.FP32, (0, 4), 0, 0), ""),
        (Place(1, "", Datatype.BYTES, (2, 0), 0, 0), ""),
        (Place(0, "", Datatype.FP64, (3, 4), 0, 96), "TYPE_FP64 [3,4]"),
        (Place(0, "", Datatype.FP32, (3, 5), 0, 60), "TYPE_FP32 [3,5]"),
        (Place(0, "", Datatype.FP32, (4,), 0, 16), "TYPE_FP32 [4]"),
        (Place(0, "", Datatype.FP32, (), 0, 4), "TYPE_FP32 []"),
    ],
)
def test_an_output_that_contradicts_the_configuration_is_noted_and_read_as_it_is(memory, place, form):
    found = ModelInterface(
        RequestPlan(model_name="m", model_version=3, output_names=("OUT", "MORE"), output_rules=DECLARED)
    )
    (response,) = read_responses(message(entry([place], inline=bytes(place.size))), found, memory).responses
    assert response.response.error is None
    assert response.response.outputs[0].shape == place.shape
    said = (
        f"output 'OUT' is not what the configuration declares: a response has it as {form}, declared is TYPE_FP32 "
        "[-1,4]; clients get it as it is; correct config.pbtxt or the response"
    )
    assert found.take_notices() == ([said] if form else [])
    assert found.take_notices() == []


def test_an_output_is_noted_once_however_often_its_form_changes(memory):
    plan = RequestPlan(model_name="m", model_version=3, output_names=("OUT", "MORE"), output_rules=DECLARED)
    found = ModelInterface(plan)
    forms = [Place(0, "", Datatype.FP32, (size,), 0, 4 * size) for size in range(1, 9)]
    other = Place(1, "", Datatype.FP32, (1,), 0, 4)
    for place in (*forms, other):
        read_responses(message(entry([place], inline=bytes(place.size))), found, memory)
    assert [notice.split("'")[1] for notice in found.take_notices()] == ["OUT", "MORE"]


@settings(max_examples=600)
@given(choices(500))
def test_any_bytes_of_a_guest_are_a_response_or_a_protocol_error(chosen):
    """Nothing else may come out, or a stranger's code would stop the server."""
    own = InstanceMemory("fuzz", capacity=CAPACITY)
    try:
        count = chosen.below(65536) if chosen.below(2) else None
        payload = message(*(any_entry(chosen) for _ in range(chosen.below(4))), count=count)
        if chosen.below(2):
            payload = payload[: chosen.below(len(payload) + 1)]
        interface = ModelInterface(
            RequestPlan(model_name="m", model_version=1, input_names=("IN",), output_names=("OUT", "MORE"))
        )
        try:
            answers = read_responses(payload, interface, own).responses
        except ProtocolError:
            return
        for answer in answers:
            for output in answer.response.outputs if answer.response else ():
                width = output.datatype.byte_size
                assert not width or len(output.data) % width == 0
    finally:
        own.close()
