"""A worker without a process: the test plays its guest, so each step of a batch, a hang and a death is its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fakes.guests import native_code
from naiad_stub import wire
from naiad_stub.messages import (
    BridgeOpened,
    CancelCalls,
    CancelRequests,
    Completed,
    Credit,
    DiscardResults,
    Failed,
    Finalize,
    Finalized,
    Hello,
    Log,
    LogLevels,
    MemoryUsage,
    Notification,
    Progress,
    Query,
    Ready,
    ReleaseInputs,
    ReleaseOutputs,
    Reply,
    ResultsConsumed,
    TakesDevice,
    Trim,
    WantRelease,
    pack,
)
from support.waiting import until_async

from naiad.core.errors import Code, GuestExitedError, ModelError, NaiadError, ProtocolError
from naiad.guests import worker as worker_module
from naiad.guests.exchange import ExecutionReport
from naiad.guests.memory.unsent_frames import COPIED_AT_ONCE
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import MemoryUse

from .played import PLAN, Played, answer, play, request, responses

LONG = COPIED_AT_ONCE + (1 << 20)
"""Bytes of an input that is copied in slices."""
SHORT = 4096
"""Bytes of an input that has a block of its own."""


def execute(played: Played, *keys: int, size: int = 8) -> int:
    return played.worker.execute([(key, request(size), None) for key in keys], len(keys))


def forward(played: Played, key: int) -> None:
    packed = PLAN.pack_inputs(request())
    played.worker.forward(key, b"id", packed[0], bytes(8), 1, time.monotonic_ns())


def in_flight(played: Played) -> list[tuple[list[int], bool]]:
    """The keys of each batch in flight, and whether it was sent."""
    return [(list(batch.keys), bool(batch.sent)) for batch in played.worker.batches.values()]


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_coroutine():
    return play


async def test_what_is_sent_behind_a_batch_with_long_inputs_arrives_behind_it_in_order():
    played = await Played().start()
    execute(played, 1, size=LONG)
    execute(played, 2)
    forward(played, 3)
    played.worker.cancel([1])
    played.worker.credit(2, 5)
    assert (played.sent(), in_flight(played)) == ([], [([1], True), ([2], True), ([3], True)])
    assert await played.until_sent(5) == [1, 2, 3, CancelRequests([1]), Credit(2, 5)]
    played.worker.cancel([2])
    assert played.sent() == [CancelRequests([2])], "nothing waits any more"


async def test_batches_for_a_busy_guest_are_sent_together_and_in_order_with_other_messages():
    played = await Played().start()
    assert execute(played, 1) == 1
    assert played.sent() == [1], "an idle guest gets its batch at once"
    execute(played, 2)
    forward(played, 3)
    played.worker.credit(1, 1)
    assert played.sent() == [], "a busy guest does not read it sooner"
    assert await played.until_sent(3) == [2, 3, Credit(1, 1)]
    played.say(responses(1, answer(1)), responses(2, answer(2)), responses(3, answer(3)))
    await played.until_called("on_batch_done", 2)
    forward(played, 4)
    assert played.sent() == [4]


async def test_a_batch_whose_inputs_cannot_be_copied_is_given_back_and_frees_its_block():
    played = await Played().start()
    released = memoryview(bytearray(LONG))
    asked = request(LONG)
    asked.inputs[0].data = released
    played.worker.execute([(1, asked, None)], 1)
    execute(played, 2)
    assert played.worker.memory.inputs.in_use >= LONG
    first = played.worker._waiting[0]
    first.copies[:] = [(target[:1], source) for target, source in first.copies]  # too short for its bytes
    [(batch, error)] = await played.until_called("on_batch_unsent")
    assert (batch.keys, type(error)) == ([1], ValueError)
    assert (played.worker.open, in_flight(played)) == ({2}, [([2], True)])
    assert played.worker.memory.inputs.in_use == 0
    assert await played.until_sent(1) == [2]


async def test_a_batch_that_cannot_be_queued_behind_long_inputs_leaves_nothing():
    played = await Played().start()

    def refuse(*_):
        raise BufferError("no copy")

    played.worker._unsent.put = refuse
    with pytest.raises(BufferError):
        execute(played, 1, size=LONG)
    assert (played.worker.open, played.worker.batches, played.worker.memory.inputs.in_use) == (set(), {}, 0)
    asked = request(LONG)
    asked.request_id = "\ud800"
    with pytest.raises(UnicodeEncodeError):
        played.worker.execute([(1, request(LONG), None), (2, asked, None)], 2)
    assert (played.worker._copies, played.worker.memory.inputs.in_use) == ([], 0)


async def test_the_number_of_a_batch_begins_again_where_its_field_ends():
    played = await Played().start()
    played.worker._number = 0xFFFFFFFE
    assert [execute(played, 1), execute(played, 2), execute(played, 3)] == [0xFFFFFFFF, 0, 1]


REPORT = wire.REPORT.pack(wire.REPORT_SUCCESS, 1, 11, 12, 13, 14)
REPORTED = ("on_reports", [ExecutionReport(wire.REPORT_SUCCESS, 1, 11, 12, 13, 14)])
ONE, TWO, DONE = ("on_response", 1), ("on_response", 2), "on_batch_done"


@pytest.mark.parametrize(
    ("keys", "said", "urgent", "calls", "left"),
    [
        ([1], [responses(1, answer(1))], False, [ONE, DONE], set()),
        ([1], [responses(1, answer(1))], True, [DONE, ONE], set()),
        ([1], [responses(1, answer(1), reports=(REPORT,))], False, [REPORTED, ONE, DONE], set()),
        ([1], [responses(1, answer(1), answer(1))], False, [ONE, DONE], set()),
        ([1], [responses(1, answer(2))], False, [DONE], {1}),
        ([1, 2], [responses(1, answer(1))], False, [ONE, DONE], {2}),
        ([1, 2], [responses(1, answer(1), answer(2), reports=(REPORT,))], False, [REPORTED, ONE, TWO, DONE], set()),
        ([1, 2], [responses(1, answer(1), answer(2))], True, [DONE, ONE, TWO], set()),
        ([1], [responses(1, answer(1, flags=0), flags=0), responses(1, answer(1))], False, [ONE, ONE, DONE], set()),
        ([1], [responses(1, answer(1, flags=wire.RESCHEDULE | wire.EMPTY))], False, [ONE, DONE], set()),
        ([1], [responses(1, answer(1, flags=0))], False, [ONE, DONE], {1}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("knows_layout", [False, True])
async def test_responses_are_passed_on_and_end_their_batch(keys, said, urgent, calls, left, knows_layout):
    """The same by the short path, for layouts that were checked before, as by the other."""
    played = await Played().start()
    if knows_layout:
        execute(played, 99)
        played.say(responses(1, answer(99)))
        await played.until_called("on_batch_done")
        played.host.calls.clear()
        played.worker._number = 0
    played.host.replies["is_refill_urgent"] = urgent
    execute(played, *keys, size=SHORT)
    played.host.on["on_batch_done"] = lambda *_: in_use.append(played.worker.memory.inputs.in_use)
    in_use: list[int] = []
    played.say(*said)
    await played.until_called("on_batch_done")
    await until_async(lambda: len(played.host.calls) >= len(calls), "all calls")
    found = [
        (name, arguments[0].key) if name == "on_response" else name if name == "on_batch_done" else (name, *arguments)
        for name, *arguments in played.host.calls
    ]
    assert found == calls
    assert (played.worker.open, played.worker.batches, in_use) == (left, {}, [0])
    assert played.worker.free_since == 20
    assert all(times == [10, 20] for _, *times in (*played.host.of("on_response"), *played.host.of("on_batch_done")))


async def test_the_bytes_of_a_forwarded_response_are_passed_on_as_they_came():
    played = await Played().start()
    execute(played, 7)
    played.say(responses(1, answer(7)))
    await played.until_called("on_batch_done")
    for key in (1, 2, 3):
        forward(played, key)
    assert played.worker.forwarded == {1, 2, 3}
    played.say(responses(2, answer(1, b"abcd"), reports=(REPORT,)), responses(3, answer(2, b"longer")))
    [(single, batch)] = await played.until_called("on_forwarded_response")
    assert (single.key, single.outputs, batch.keys, played.worker.free_since) == (1, b"abcd", (1,), 20)
    assert played.host.of("on_reports") == [(REPORTED[1],)]
    await played.until_called("on_response", 2)  # another layout, which is not known yet
    assert (played.worker.open, played.worker.forwarded, list(played.worker.batches)) == ({3}, {3}, [4])
    played.host.replies["is_refill_urgent"] = True
    played.say(responses(4, answer(3, b"abcd")))
    await played.until_called("on_response", 3)
    assert (played.worker.open, played.worker.forwarded, played.worker.batches) == (set(), set(), {})


async def test_a_response_whose_client_ends_the_guest_reports_no_further_batch():
    played = await Played().start()
    execute(played, 1)
    played.say(responses(1, answer(1)))
    await played.until_called("on_batch_done")
    execute(played, 2)
    played.host.on["on_response"] = lambda worker, *_: worker.batches.clear()
    played.say(responses(2, answer(2)))
    await played.until_called("on_response", 2)
    assert len(played.host.of("on_batch_done")) == 1


# -- memory -----------------------------------------------------------------------------------------------------------


async def test_inputs_that_the_model_keeps_are_freed_when_it_releases_them():
    played = await Played().start()
    worker, memory = played.worker, played.worker.memory
    execute(played, 1, size=SHORT)
    played.say(responses(1, answer(1), flags=wire.DONE | wire.KEPT))
    await played.until_called("on_batch_done")
    block = worker._number and played.host.of("on_batch_done")[0][0].block
    assert memory.inputs.in_use == SHORT, "the model refers to them"
    played.say(ReleaseInputs([block]))
    await until_async(lambda: memory.inputs.in_use == 0, "the release")
    execute(played, 2)
    place = object()
    worker.batches[2] = worker.batches[2]._replace(places=(place,))
    played.say(responses(2, answer(2), flags=wire.DONE | wire.KEPT_SHARED))
    await played.until_called("on_batch_done", 2)
    assert worker._results._kept_shared == {-3: (place,)}
    played.say(ReleaseInputs([-3]))
    await until_async(lambda: not worker._results._kept_shared, "the release")
    played.say(ReleaseInputs([block]))
    [(error,)] = await played.until_called("on_exit")
    assert error.message == f"it broke the protocol: it released an input block at {block} that it does not hold"


async def test_a_result_that_finds_no_room_waits_for_the_end_of_a_batch():
    for knows_layout in (False, True):
        played = await Played().start()
        worker, memory = played.worker, played.worker.memory
        if knows_layout:
            execute(played, 1)
            played.say(responses(1, answer(1)))
            await played.until_called("on_batch_done")
        number = execute(played, 2, size=2 << 20)
        await played.until_sent(1 + knows_layout)
        rest = memory.inputs.capacity // 2
        result = InferResponse("m", 1, outputs=[OutputTensor("OUT", Datatype.UINT8, (rest,), bytes(8))])
        allocate, memory.allocate_input = memory.allocate_input, lambda size: None
        worker.send_result(5, result, True)
        worker.send_result(6, None, True)
        assert played.sent() == []
        memory.allocate_input = allocate
        played.say(responses(number, answer(2)))
        assert [call for call, _ in await played.until_sent(2)] == [5, 6]


async def test_a_result_that_can_never_fit_ends_its_call_with_an_error():
    played = await Played().start()
    played.worker.memory.allocate_input = lambda size: None
    result = InferResponse("m", 1, outputs=[OutputTensor("OUT", Datatype.UINT8, (SHORT,), bytes(SHORT))])
    played.worker.send_result(5, result, False)
    assert played.sent() == [(5, -1)]
    assert played.host.calls == [("on_calls_cancelled", [5]), ("on_results_discarded", [5])]


async def test_released_outputs_are_sent_when_there_are_many_or_the_guest_waits_or_traffic_pauses():
    played = await Played().start()
    worker, memory = played.worker, played.worker.memory
    memory.released.extend(range(64))
    execute(played, 1, size=SHORT)
    played.sent()
    memory.released.extend(range(64))
    played.say(responses(1, answer(1, flags=0), flags=0))
    await played.until_called("on_response")
    assert played.sent() == [], "64 wait for a message to go along with"
    played.say(responses(1, answer(1, block=8192)))
    assert await played.until_sent(1) == [ReleaseOutputs([*range(64), 8192])]
    played.say(WantRelease(), WantRelease())
    await until_async(lambda: worker._wants_release, "the message")
    assert played.sent() == []
    memory.released.append(4096)
    assert await played.until_sent(1) == [ReleaseOutputs([4096])]
    assert not worker._wants_release
    worker.release_idle_memory(idle=False)
    assert played.sent() == [], "nothing was released"
    memory.released.append(8192)
    worker.release_idle_memory(idle=False)
    assert played.sent() == [ReleaseOutputs([8192])]
    memory.regions.importer.ended.append(3)
    worker.release_idle_memory(idle=False)
    assert [type(each).__name__ for each in played.sent()] == ["ExportersEnded"]


async def test_released_outputs_go_along_with_results_once_they_are_many():
    """A model that calls others for long gets no EXECUTE, and would touch new pages for the inputs of each call."""
    played = await Played().start()
    worker, memory = played.worker, played.worker.memory
    memory.released.extend(range(15))
    worker.send_result(5, None, True)
    assert [call for call, _ in played.sent()] == [5]
    memory.released.append(15)
    worker.send_result(6, None, True)
    released, (call, _) = played.sent()
    assert (released, call) == (ReleaseOutputs([*range(16)]), 6)
    await worker.kill()


async def test_an_idle_guest_and_its_host_return_free_pages_in_slices_until_there_is_work():
    played = await Played().start()
    worker, left = played.worker, [True, True, False, True, True]
    trims: list[int] = []
    worker.memory.trim = lambda: trims.append(1) or left.pop(0)
    worker.release_idle_memory(idle=True)
    assert (played.sent(), len(trims)) == ([Trim()], 1)
    await until_async(lambda: len(trims) == 3, "all slices")
    worker.release_idle_memory(idle=True)
    execute(played, 1)
    await played.until_sent(2)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(trims) == 4, "the guest has work"
    worker.release_idle_memory(idle=True)
    assert (played.sent(), len(trims)) == ([], 4)


# -- messages ---------------------------------------------------------------------------------------------------------

GPU = b"\1" * wire.GPU_UUID_SIZE


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        (Log(1, "model.py", 7, "careful"), [("on_log_record", 1, "model.py", 7, "careful")]),
        (ResultsConsumed(3, 2), [("on_results_consumed", 3, 2)]),
        (CancelCalls([3, 4]), [("on_calls_cancelled", [3, 4])]),
        (DiscardResults([3]), [("on_results_discarded", [3])]),
        (Query(9, "model.load", {"name": "x"}), [("on_query", 9, "model.load", {"name": "x"})]),
        (Notification("metrics", {"a": "b"}), [("on_notification", "metrics", {"a": "b"})]),
        (Notification("request_progress", {"key": "1", "started": "5"}), [("on_progress", 1, 5)]),
        (Notification("request_progress", {"key": "2", "started": "5"}), []),
        (wire.frame(wire.Kind.REPORTS, REPORT), [REPORTED]),
        (Finalized(), []),
        (Progress(), []),  # of a start that was given up
    ],
)
async def test_a_message_of_the_guest_reaches_whom_it_is_for(message, calls):
    played = await Played().start()
    execute(played, 1)
    played.say(message, Notification("last", {}))
    await until_async(lambda: ("on_notification", "last", {}) in played.host.calls, "the last message")
    assert played.host.calls[:-1] == calls
    assert played.process.kill_reason == ""


async def test_what_a_guest_says_of_its_memory_is_kept():
    played = await Played().start()
    opened: list[int] = []
    played.worker.memory.bridges.on_opened = opened.append
    most = [bytes([number // 256, number % 256]) * 8 for number in range(1024)]
    played.say(MemoryUsage([2, 0, 9]), BridgeOpened(3))
    played.say(Notification("readable_gpus", {"uuids": " ".join(each.hex() for each in most)}))
    await until_async(lambda: played.worker.gpus is not None, "the messages")
    assert (played.worker.memory_usage, opened) == ((MemoryUse("GPU", 0, 9),), [3])
    assert played.worker.gpus == frozenset(most)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (wire.frame(77, b""), "it broke the protocol: "),
        (wire.frame(wire.Kind.RESPONSES, b"short"), "it broke the protocol: 'm' sent a malformed response"),
        (wire.frame(wire.Kind.LOG, b"\xff" * 9), "it broke the protocol: "),
        (responses(99), "it broke the protocol: a response to batch 99, which is not in flight"),
        (Notification("request_progress", {"key": "1"}), "it broke the protocol: a malformed notification of progress"),
        (Notification("request_progress", {"key": "1", "started": "x"}), "it broke the protocol: a malformed notific"),
        (Notification("readable_gpus", {}), "it broke the protocol: a malformed notification of GPUs"),
        (Notification("readable_gpus", {"uuids": "zz"}), "it broke the protocol: a malformed notification of GPUs"),
        (Notification("readable_gpus", {"uuids": "ab"}), "it broke the protocol: a malformed notification of 1 GPUs"),
        (
            Notification("readable_gpus", {"uuids": " ".join([GPU.hex()] * 1025)}),
            "it broke the protocol: a malformed notification of 1025 GPUs",
        ),
        (wire.FRAME.pack(0xFFFFFFFF, wire.Kind.LOG, 0), "it broke the protocol: a message of 4294967295 bytes"),
        (ReleaseInputs([-9]), "it broke the protocol: it released an input block at -9 that it does not hold"),
        (CancelCalls([1]), "its message could not be handled: a fault of ours"),
    ],
)  # fmt: skip
async def test_a_guest_whose_message_cannot_be_handled_is_killed_for_that(said, reason, caplog):
    played = await Played().start()

    def fail(*_):
        raise ZeroDivisionError("a fault of ours")

    played.host.on["on_calls_cancelled"] = fail
    played.say(said)
    [(error,)] = await played.until_called("on_exit")
    assert error.message.startswith(reason)
    assert (error.exit_status, error.label, played.process.kills) == (-9, "", 1)
    assert "'m_0_0' (pid 4242) is killed: " in caplog.text
    assert ("ZeroDivisionError" in caplog.text) == (reason == "its message could not be handled: a fault of ours")


async def test_queries_are_answered_even_if_their_reply_cannot_be_packed():
    played = await Played().start()
    for number in (1, 2, 3):
        played.say(Query(number, "model.load", {}))
    await played.until_called("on_query", 3)
    played.worker.reply(1, text="fine")
    played.worker.reply(2, error=NaiadError("no", code=Code.NOT_FOUND))
    played.worker.reply(3, text=5)  # type: ignore[arg-type] # a fault of ours
    first, second, third = await played.until_sent(3)
    assert (first, second) == (Reply(1, True, 0, "fine"), Reply(2, False, 2, "no"))
    assert (third.number, third.is_ok, third.code) == (3, False, 1)
    assert "reply to a query of a model" in third.text
    assert played.worker._queries == 0


async def test_a_guest_is_told_once_which_models_take_tensors_in_gpu_memory(monkeypatch):
    monkeypatch.setattr(worker_module, "_MAX_TAKERS", 2)
    played = await Played().start()
    tell = played.worker.tell_device_use
    told = TakesDevice("a", [1], True, "*")
    for gpus, takes, sent in [
        (None, False, []),  # what it assumes of every model
        (None, True, [told]),
        (None, True, []),
        (frozenset([b"\2", b"\1"]), True, [TakesDevice("a", [1], True, "01 02")]),
        (frozenset(), True, [TakesDevice("a", [1], False, "")]),
        (None, True, [told]),
    ]:
        tell("a", 1, gpus, takes=takes)
        assert played.sent() == sent, (gpus, takes)
    tell("b", 1, None, takes=True)
    tell("a", 1, None, takes=True)
    assert played.sent() == [TakesDevice("b", [1], True, "*")], "both are remembered"
    tell("c", 1, None, takes=True)
    tell("a", 1, None, takes=True)
    assert played.sent() == [TakesDevice("c", [1], True, "*"), told], "all are forgotten where they are too many"


async def test_a_call_has_the_headers_that_all_open_requests_share(monkeypatch):
    monkeypatch.setattr(worker_module, "_MAX_COMPARED", 3)
    played = await Played().start()
    headers = {1: {"a": "1"}, 2: {"a": "1"}, 3: {"a": "2"}}
    played.host.replies["request_of"] = lambda key: SimpleNamespace(propagated=headers[key]) if key in headers else None
    for opened, shared in [
        ((), {}), ((1,), {"a": "1"}), ((1, 2), {"a": "1"}), ((1, 2, 5), {"a": "1"}), ((1, 3), {}), ((1, 2, 5, 6), {})
    ]:  # fmt: skip
        played.worker.open = set(opened)
        assert played.worker.propagated() == shared, opened
    assert played.worker.request_of(1).propagated == {"a": "1"}
    assert played.worker.request_of(3) is None, "not open"


async def test_a_native_backend_is_told_the_levels_of_the_log_when_they_change(monkeypatch):
    levels = [0]
    monkeypatch.setattr(worker_module, "logged_levels", lambda: levels[0])
    for code, sent in ((None, []), (native_code(), [LogLevels(5)])):
        played = await Played(code=code).start()
        levels[0] = 0
        played.worker.follow_log_level()
        assert played.sent() == []
        levels[0] = 5
        played.worker.follow_log_level()
        played.worker.follow_log_level()
        assert played.sent() == sent


# -- its start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "raised", "text"),
    [
        ([Hello(99, 1, "3.8.18", "1")], ProtocolError, r"the stub nowhere speaks protocol 99, this server \d+: remove it"),
        ([Failed(3, "no such module", "Traceback")], ModelError, "no such module"),
        ([Failed(99, "no such module", "Traceback")], ModelError, "no such module"),
        ([], GuestExitedError, r"it exited|while it started"),
        ([Ready(True, False)], GuestExitedError, "while it started"),
    ],
)  # fmt: skip
async def test_a_start_that_fails_says_why_and_leaves_nothing(said, raised, text, monkeypatch):
    monkeypatch.setattr(worker_module, "explain_denied_access", lambda spec: " (denied)")
    played = Played()
    starting = asyncio.ensure_future(played.worker.start())
    await until_async(lambda: played.process.ends, "its sockets")
    assert played.worker.is_starting
    if raised is GuestExitedError:
        for message in said:  # in the turn of its end: nothing else would report that
            played.worker._on_frame(message.kind, pack(message)[wire.FRAME.size :])
        played.process.end(3)
    else:
        played.say(*said)
    with pytest.raises(raised, match=text) as caught:
        await starting
    assert caught.value.message.endswith(" (denied)") == (raised is not ProtocolError)
    if raised is ModelError:
        assert caught.value.code == (Code.INVALID_ARG if said[0].code == 3 else Code.INTERNAL)
        assert caught.value.traceback_text == "Traceback"
    assert (played.worker.is_starting, played.worker._channel, played.process.is_closed) == (False, None, True)
    assert "on_exit" not in played.host.names(), "the caller has the error"


async def test_a_guest_that_cannot_be_started_or_whose_start_is_cancelled_is_killed():
    played = Played()
    played.process.problem = GuestExitedError("no interpreter")
    with pytest.raises(GuestExitedError, match="no interpreter"):
        await played.worker.start()
    assert played.process.is_closed
    played = Played()
    starting = asyncio.ensure_future(played.worker.start())
    await until_async(lambda: played.process.ends, "its sockets")
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert (starting.cancelled(), played.process.kills, played.worker.is_starting) == (True, 1, False)


async def test_a_start_returns_what_was_completed_even_if_the_guest_has_exited():
    played = Played()
    starting = asyncio.ensure_future(played.worker.start())
    await until_async(lambda: played.process.ends, "its sockets")
    played.say(Hello(wire.PROTOCOL_VERSION, 1, "3.8.18", "1"), Completed('{"a": 1}'), Ready(True, True))
    await until_async(played.worker._startup._outcome.done, "COMPLETED")
    played.process.end(0)
    assert await starting == '{"a": 1}'
    assert (played.worker.python, played.worker.readiness) == ("3.8.18", None)


async def test_a_start_may_take_any_time_with_progress_and_no_longer_without(monkeypatch):
    monkeypatch.setattr("naiad.guests.startup.PROGRESS_CHECK_SECONDS", 0.001)
    now, used = [100.0], [0.0]
    monkeypatch.setattr("naiad.guests.launch.cpu_seconds_of", lambda pid: used[0])
    played = Played(start_timeout=10)
    starting = asyncio.ensure_future(played.worker.start())
    await until_async(lambda: played.process.ends, "its sockets")
    startup = played.worker._startup
    monkeypatch.setattr(startup, "_loop", SimpleNamespace(time=lambda: now[0]))
    startup._progress.start(4242, 100)
    looks: list[float] = []
    is_stalled = startup._progress.is_stalled
    startup._progress.is_stalled = lambda time: looks.append(time) or is_stalled(time)

    async def look() -> None:
        count = len(looks)
        await until_async(lambda: starting.done() or len(looks) >= count + 2, "two looks")

    for change in (lambda: None, lambda: played.say(Progress()), lambda: used.__setitem__(0, 1.0)):
        change()
        await until_async(lambda: (not played.say and False) or True, "")
        await look()
        now[0] += 9
        await look()
        assert not starting.done()
    now[0] += 2
    await look()
    with pytest.raises(GuestExitedError, match=r"it made no progress for 10 s while it started \(stub-timeout-secon"):
        await starting
    assert played.process.kills == 1


# -- its end ----------------------------------------------------------------------------------------------------------


async def sent_unread(played: Played) -> None:
    execute(played, 1)


async def read_by_the_guest(played: Played) -> None:
    execute(played, 1)
    await played.until_sent(1)


async def second_unread(played: Played) -> None:
    await read_by_the_guest(played)
    execute(played, 2)
    await asyncio.sleep(0)


async def being_copied(played: Played) -> None:
    await read_by_the_guest(played)
    execute(played, 2, size=LONG)
    forward(played, 3)


async def another_message_unread(played: Played) -> None:
    await read_by_the_guest(played)
    played.worker.credit(1, 1)


async def forwarded_unread(played: Played) -> None:
    forward(played, 1)


async def copied_unread(played: Played) -> None:
    execute(played, 1, size=LONG)
    await until_async(lambda: not played.worker._waiting, "the copy")


async def sent_after_the_exit(played: Played) -> None:
    await read_by_the_guest(played)
    played.worker._is_gone = True
    execute(played, 2)
    forward(played, 3)
    assert played.worker.reserve_input(1 << 20, 0) is None
    played.worker._is_gone = False


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (sent_unread, [([1], False)]),
        (read_by_the_guest, [([1], True)]),
        (second_unread, [([1], True), ([2], False)]),
        (being_copied, [([1], True), ([2], False), ([3], False)]),
        (another_message_unread, [([1], True)]),
        (forwarded_unread, [([1], False)]),
        (copied_unread, [([1], False)]),
        (sent_after_the_exit, [([1], True), ([2], False), ([3], False)]),
    ],
)
async def test_batches_of_a_guest_that_dies_count_as_begun_only_if_it_may_have_read_them(step, expected):
    played = await Played().start()
    await step(played)
    played.process.end(3)
    [(error,)] = await played.until_called("on_exit")
    assert (error.message, error.exit_status, error.label) == ("it exited", 3, "")
    assert in_flight(played) == expected
    assert played.worker.open == {key for keys, _ in expected for key in keys}, "else none of them gets a response"
    assert not played.worker._waiting
    assert played.host.names().index("on_worker_exit") < played.host.names().index("on_exit")
    assert len(played.host.of("on_exit")) == 1


async def test_responses_that_a_guest_sent_before_it_died_still_count():
    played = await Played().start()
    execute(played, 1)
    execute(played, 2)
    await played.until_sent(2)
    late: list[int] = []

    def send_more(worker, *_):
        late.append(execute(played, 3))
        worker.send_result(1, None, True)

    played.host.on["on_batch_done"] = send_more
    played.say(responses(1, answer(1)))
    played.process.end(-11)
    await played.until_called("on_exit")
    assert [response.key for response, *_ in played.host.of("on_response")] == [1]
    assert in_flight(played) == [([2], True), ([3], False)]


@pytest.mark.parametrize("closes_first", [False, True])
async def test_a_guest_that_closes_its_channel_has_a_second_to_exit_by_itself(monkeypatch, closes_first):
    monkeypatch.setattr(worker_module, "_EXIT_SECONDS", 0.01 if closes_first else 60.0)
    played = await Played().start()
    played.process.ends[0].shutdown(2)
    if not closes_first:
        for _ in range(20):
            await asyncio.sleep(0)
        played.process.end(5)
    [(error,)] = await played.until_called("on_exit")
    expected = ("it closed its channel", -9) if closes_first else ("it exited", 5)
    assert (error.message, error.exit_status) == expected


async def test_stopping_finalizes_the_model_and_kills_what_does_not_end_in_time(caplog):
    played = await Played().start()
    stopping = asyncio.ensure_future(played.worker.stop(60))
    assert await played.until_sent(1) == [Finalize()]
    assert "STOPPING" in repr(played.worker)
    played.process.ends[0].shutdown(2)
    played.process.end(0)
    await stopping
    assert (played.process.kill_reason, played.host.names()) == ("", ["on_worker_exit"])
    assert "is killed" not in caplog.text
    played = await Played().start()
    await played.worker.stop(0.001)
    assert "'m_0_0' did not finish within 0.001 s and is killed" in caplog.text
    assert (played.process.kills, played.host.names()) == (1, ["on_worker_exit"])
    played = await Played().start()
    await played.worker.stop(0)
    assert played.process.kills == 1


async def test_an_end_closes_every_socket_and_both_segments():
    for stops in (True, False):
        played = await Played().start(has_is_ready=True)
        probe = played.worker.readiness
        assert probe is not None
        if stops:
            await played.worker.kill()
        else:
            played.process.end(1)
            await played.until_called("on_exit")
        assert (probe._is_open, played.worker._channel, played.process.is_closed) == (False, None, True)
        assert len(played.worker.memory.outputs) == 0
        played.worker.cancel([1])
        await played.worker.kill()
        await played.worker.stop(1)


# -- hangs ------------------------------------------------------------------------------------------------------------


EXCUSES: dict[str, Callable[[Played], object]] = {
    "waits for a reply": lambda played: setattr(played.worker, "_queries", 1),
    "waits for memory": lambda played: setattr(played.worker, "_wants_release", True),
    "waits for a call": lambda played: played.host.replies.update(is_calling=True),
    "waits for a client": lambda played: played.host.replies.update(is_held_back=True),
    "is gone": lambda played: setattr(played.worker, "_is_gone", True),
    "is stopping": lambda played: setattr(played.worker, "_is_stopping", True),
    "has a later batch": lambda played: played.worker.batches.update(
        {1: played.worker.batches[1]._replace(sent=int(1010.5e9))}
    ),
}
STATES: dict[str, Callable[[Played], object]] = {
    **EXCUSES,
    "nothing": lambda played: None,
    "has responded": lambda played: played.worker._on_watched_frame(
        wire.Kind.RESPONSES, responses(1, answer(1, flags=0), flags=0)[wire.FRAME.size :]
    ),
    "has no requests": lambda played: played.worker.open.clear(),
    "is debugged": lambda played: setattr(played.worker, "spec", replace(played.worker.spec, at_terminal=True)),
    "has a limit": lambda played: setattr(played.worker._watch, "seconds", 600),
}


@pytest.mark.parametrize(
    ("why", "hangs"),
    [("nothing", True), ("has responded", False), ("has no requests", False), *((each, False) for each in EXCUSES)],
)
async def test_a_guest_hangs_that_has_requests_and_waits_for_nobody(monkeypatch, clock, caplog, why, hangs):
    monkeypatch.setattr(worker_module, "STACKS_SECONDS", 0.0)
    played = await Played(hang_seconds=10).start()
    worker = played.worker
    execute(played, 1)
    looks: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(worker._loop, "call_later", lambda delay, what, *more: looks.append(delay))
        worker.watch()
        clock.now += 9
        worker._check_progress()
    assert (looks, worker.is_hung) == ([1.0, 1.0], False), "it is looked at again"
    clock.now += 1.5
    STATES[why](played)
    worker._check_progress()
    assert worker.is_hung == hangs
    if not hangs:
        assert (played.process.signals, played.host.of("on_hang")) == ([], [])
        worker._is_stopping = worker._is_gone = False
        await worker.kill()
        return
    assert (played.process.signals, played.host.of("on_hang")) == ([wire.STACKS_SIGNAL], [()])
    [(error,)] = await played.until_called("on_exit")
    assert error.label == "hang"
    assert error.message == "it made no progress for 10 s (--stub-hang-seconds or HANG_SECONDS)"
    assert "'m_0_0' (pid 4242) hangs: it made no progress for 10 s" in caplog.text


@pytest.fixture
def clock(monkeypatch):
    """The time as workers read it, which passes when `now` is set."""
    made = SimpleNamespace(now=1000.0)
    fake = SimpleNamespace(monotonic=lambda: made.now, monotonic_ns=lambda: int(made.now * 1e9))
    monkeypatch.setattr(worker_module, "clock", fake)
    return made


async def test_a_guest_without_a_limit_reports_once_that_execute_makes_no_progress_for_a_minute(clock):
    played = await Played().start()
    worker, reports = played.worker, played.host
    worker.look_at_progress()
    assert worker.stalled_seconds == 0, "it has nothing to do"
    execute(played, 1)
    clock.now += 59
    worker.look_at_progress()
    assert (worker.stalled_seconds, reports.of("on_stall")) == (0, [])
    clock.now += 2
    worker.look_at_progress()
    clock.now += 2
    worker.look_at_progress()
    assert (worker.stalled_seconds, reports.of("on_stall")) == (63, [((1,), 61)]), "once for each batch"
    played.say(responses(1, answer(1)))
    await played.until_called("on_batch_done")
    worker.look_at_progress()
    assert worker.stalled_seconds == 0
    clock.now += 500
    execute(played, 2)
    clock.now += 61
    worker.look_at_progress()
    assert reports.of("on_stall")[1:] == [((2,), 61)]


@pytest.mark.parametrize(
    ("why", "stalls"),
    [
        *(("nothing", True), ("has no requests", True), ("is debugged", False), ("has a limit", False)),
        *((each, False) for each in EXCUSES),
    ],
)
async def test_execute_without_a_limit_stalls_if_it_waits_for_nobody(clock, why, stalls):
    played = await Played().start()
    worker = played.worker
    execute(played, 1)
    clock.now += 10.5
    worker.look_at_progress()  # from now on responses count as progress
    STATES[why](played)
    clock.now += 50
    worker.look_at_progress()
    assert bool(played.host.of("on_stall")) == stalls
    worker._is_stopping = worker._is_gone = False


async def test_responses_of_a_long_execute_are_progress(clock):
    played = await Played().start()
    execute(played, 1)
    for count in range(1, 4):
        clock.now += 40
        played.worker.look_at_progress()
        played.say(responses(1, answer(1, flags=0), flags=0))
        await played.until_called("on_response", count)
    assert (played.worker.stalled_seconds, played.host.of("on_stall")) == (0, [])
