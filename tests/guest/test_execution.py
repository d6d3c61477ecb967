"""What `execute` returns or raises, as the responses that the host gets."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from naiad_stub import execution, wire
from naiad_stub.blocks import BorrowedBlock
from naiad_stub.channel import HostGoneError
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.exchange import Batch, ResponseWriter
from naiad_stub.execution import Execution
from naiad_stub.messages import CancelRequests
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import HostSenders, InferenceResponseSender

from .hosts import Entry, FakeChannel, Responses, batch_of

FAILED = "Failed to process the request(s) for model 'm_0', message: "
ERROR = wire.FINAL | wire.ERROR
RESCHEDULED = wire.RESCHEDULE | wire.EMPTY
FINAL_MARK = wire.FINAL | wire.EMPTY
INTERNAL = TritonError.INTERNAL
NO_RESPONSE = "Expected an 'InferenceResponse' object in the execute function return list"
NUMBERS_DIFFER = (
    "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
    "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
)


class Guest:
    """A guest whose model is a function.

    Attributes:
        channel: To the host.
        logged: Errors in the log, with their places.
        senders: The response senders.
        execution: What is tested.
    """

    def __init__(self, execute: Callable[[Any], Any] | None, *, decoupled: bool = False) -> None:
        self.channel = FakeChannel()
        self.logged: list[tuple[str, tuple[str, int]]] = []
        writer = ResponseWriter(None, (), pytest.fail)
        self.senders = HostSenders(self.channel, writer, "m_0", lambda _: None, decoupled=decoupled)
        self.execution = Execution(
            self.channel, writer, self.senders, execute, "m_0", "m/1/model.py", lambda *each: self.logged.append(each)
        )

    def run(self, batch: Batch) -> list[Responses]:
        """Execute a batch; what the host got."""
        coroutine = self.execution.begin(batch)
        if coroutine is not None:
            asyncio.run(self.execution.complete(batch, coroutine))
        return self.channel.responses()

    def sender(self, request: Any) -> InferenceResponseSender:
        return self.senders.sender_of(request)


def response(text: str = "") -> InferenceResponse:
    """A response; with *text* an error that the model returns."""
    return InferenceResponse(error=TritonError(text)) if text else InferenceResponse([])


def raising(error: BaseException) -> Callable[[Any], Any]:
    """An `execute` that raises *error*."""

    def execute(requests: list[Any]) -> list[Any]:
        raise error

    return execute


def failed(keys: list[int], text: str, number: int = 1) -> list[Responses]:
    return [Responses(number, wire.DONE, [Entry(key, ERROR, FAILED + text, INTERNAL) for key in keys])]


def test_responses_are_those_of_the_requests_by_position():
    guest = Guest(lambda requests: [response(), response("bad input")])
    batch = batch_of(7, 8, number=3)
    answered = ERROR | wire.ANSWERED
    assert guest.run(batch) == [
        Responses(3, wire.DONE, [Entry(7, wire.FINAL, "", 0), Entry(8, answered, "bad input", INTERNAL)])
    ]
    assert guest.channel.ways == ["send"]
    assert batch.requests == batch.records == []
    assert guest.logged == []


def test_the_model_may_change_its_list_of_requests():
    def execute(requests: list[Any]) -> list[Any]:
        count = len(requests)
        requests.clear()
        return [response() for _ in range(count)]

    assert [entry.key for entry in Guest(execute).run(batch_of(1, 2))[0].entries] == [1, 2]


def test_a_model_without_execute_fails_all_requests():
    assert Guest(None).run(batch_of(1, 2)) == failed(
        [1, 2], "Python model m/1/model.py does not implement `execute` method."
    )


def test_an_exception_of_the_model_fails_all_requests_and_is_logged_where_it_was_raised():
    guest = Guest(raising(ValueError("no luck")))
    [(_, flags, [first, second])] = guest.run(batch_of(1, 2))
    assert flags == wire.DONE
    assert (first.key, second.key) == (1, 2)
    assert first.text == second.text
    assert first.text.startswith(f"{FAILED}ValueError: no luck\n\nAt:\n  {__file__}(")
    assert first.flags == ERROR
    [(text, (file, line))] = guest.logged
    assert file == __file__
    assert line > 0
    assert text.startswith(first.text)
    assert "Traceback (most recent call last):" in text


def test_the_exception_that_the_api_raises_in_a_model_has_the_models_frames():
    [(_, _, [entry])] = Guest(raising(TritonModelException("no luck"))).run(batch_of(1))
    assert entry.text.startswith(f"{FAILED}TritonModelException: no luck\n\nAt:\n")


def of_inputs(*names: str) -> Any:
    return SimpleNamespace(inputs=lambda: [SimpleNamespace(name=lambda name=name: name) for name in names])


@pytest.mark.parametrize(
    ("names", "had"),
    [
        (["INPUT0", "MASK"], "'INPUT0', 'MASK'; is 'INPUT0' meant?"),
        (["MASK"], "'MASK'"),
        (["inputo", "MASK"], "'inputo', 'MASK'; is 'inputo' meant?"),
        ([], "none"),
    ],
)
def test_an_input_that_a_request_has_not_is_named_in_the_log_where_the_model_takes_it_for_a_tensor(names, had):
    def execute(requests: list[Any]) -> list[Any]:
        return [pb_utils.get_input_tensor_by_name(of_inputs(*names), "INPUTO").as_numpy()]

    guest = Guest(execute)
    [(_, _, [entry])] = guest.run(batch_of(1))
    advice = "The request has no input 'INPUTO', so get_input_tensor_by_name returned None. Its inputs: "
    [(text, _)] = guest.logged
    assert text.endswith(f"\n{advice}{had}")
    assert advice not in entry.text, "clients get the reference's text"


@pytest.mark.parametrize("error", [AttributeError("'NoneType' object has no attribute 'weights'"), ValueError("x")])
def test_an_input_that_a_request_has_not_is_not_named_for_other_errors(error):
    def execute(requests: list[Any]) -> list[Any]:
        assert pb_utils.get_input_tensor_by_name(of_inputs("A"), "OPTIONAL") is None
        raise error

    guest = Guest(execute)
    guest.run(batch_of(1))
    assert "The request has no input" not in guest.logged[0][0]


def test_an_optional_input_of_an_earlier_batch_is_not_named():
    nothing: Any = None

    def execute(requests: list[Any]) -> list[Any]:
        if guest.channel.ways:
            nothing.as_numpy()
        assert pb_utils.get_input_tensor_by_name(of_inputs("A"), "OPTIONAL") is None
        return [response()]

    guest = Guest(execute)
    guest.run(batch_of(1))
    guest.run(batch_of(2))
    assert "The request has no input" not in guest.logged[0][0]


@pytest.mark.parametrize("is_full", [False, True])
def test_reserves_of_gpu_memory_are_freed_if_a_model_runs_out_of_it(monkeypatch, is_full):
    freed = []
    monkeypatch.setitem(sys.modules, execution._DEVICE_MEMORY, SimpleNamespace(free_reserves=lambda: freed.append(1)))
    monkeypatch.setattr(execution.limits, "is_device_full", lambda error: is_full)
    Guest(raising(ValueError("no luck"))).run(batch_of(1))
    assert freed == [1] * is_full


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_model_that_ends_its_process_fails_its_requests_instead(error):
    [(_, _, [entry])] = Guest(raising(error)).run(batch_of(1))
    assert type(error).__name__ in entry.text


@pytest.mark.parametrize(
    ("returned", "decoupled", "text"),
    [
        (5, False, "Expected a list in the execute return, found type '<class 'int'>'."),
        ((), False, "Expected a list in the execute return, found type '<class 'tuple'>'."),
        ([], False, NUMBERS_DIFFER),
        (["x"], False, f"{NO_RESPONSE}, found type '<class 'str'>'."),
        ([], True, "Python model 'm_0' is using the decoupled mode and the execute function must return None."),
    ],
)
def test_what_execute_may_not_return_fails_its_requests_without_frames_of_the_stub(returned, decoupled, text):
    guest = Guest(lambda requests: returned, decoupled=decoupled)
    assert guest.run(batch_of(1)) == failed([1], text)
    [(logged, place)] = guest.logged
    assert logged == FAILED + text
    assert place == ("model.py", 0)


def test_a_response_that_cannot_be_sent_fails_alone():
    long = response()
    long._parameters = "x" * (wire.MAX_PARAMETERS + 1)
    [(_, flags, entries)] = Guest(lambda requests: [response(), long, response()]).run(batch_of(1, 2, 3))
    text = (
        f"the parameters of a response have {wire.MAX_PARAMETERS + 1} bytes; at most {wire.MAX_PARAMETERS} can be sent"
    )
    assert flags == wire.DONE
    assert entries == [
        Entry(1, wire.FINAL, "", 0),
        Entry(2, ERROR, FAILED + text, INTERNAL),
        Entry(3, wire.FINAL, "", 0),
    ]


def test_requests_that_are_to_be_scheduled_again_are_marked():
    def execute(requests: list[Any]) -> list[Any]:
        requests[0].set_release_flags(2)
        return [None, response()]

    assert Guest(execute).run(batch_of(1, 2)) == [
        Responses(1, wire.DONE, [Entry(1, RESCHEDULED, "", 0), Entry(2, wire.FINAL, "", 0)])
    ]


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_model_that_returns_none_may_have_requests_scheduled_again(decoupled):
    kept = []

    def execute(requests: list[Any]) -> None:
        requests[1].set_release_flags(2)
        kept.append(guest.sender(requests[0]))

    guest = Guest(execute, decoupled=decoupled)
    assert guest.run(batch_of(1, 2)) == [Responses(1, wire.DONE, [Entry(2, RESCHEDULED, "", 0)])]
    kept[0].send(response(), 1)
    assert guest.channel.responses() == [Responses(1, 0, [Entry(1, wire.FINAL, "", 0)])]


def test_a_response_to_a_request_that_is_scheduled_again_is_refused():
    def execute(requests: list[Any]) -> list[Any]:
        requests[0].set_release_flags(2)
        return [response(), response()]

    assert Guest(execute).run(batch_of(1, 2)) == failed(
        [1, 2],
        "Expected a None object in the execute function return list for reschduled request, "
        f"found type '{InferenceResponse}'.",
    )


def test_a_request_that_is_left_without_response_and_sender_ends_with_an_error():
    guest = Guest(lambda requests: [response(), None])
    done, dropped = guest.run(batch_of(1, 2))
    assert done == Responses(1, wire.DONE, [Entry(1, wire.FINAL, "", 0)])
    text = "execute returned no response for a request and its response sender was dropped without sending one"
    assert dropped == Responses(1, 0, [Entry(2, ERROR, FAILED + text, INTERNAL)])


def test_a_forgotten_request_in_a_reference_cycle_ends_at_once():
    def execute(requests: list[Any]) -> list[Any]:
        cycle: list[Any] = [requests[0]]
        cycle.append(cycle)
        return [None]

    gc.disable()
    try:
        assert len(Guest(execute).run(batch_of(1))) == 2
    finally:
        gc.enable()


def test_the_collector_does_not_run_where_nothing_is_forgotten(monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("the collector ran"))
    kept = []

    def execute(requests: list[Any]) -> list[Any]:
        kept.extend(guest.sender(each) for each in requests[1:])
        return [response(), None]

    guest = Guest(execute)
    assert len(guest.run(batch_of(1, 2))) == 1
    kept.pop().send(response(), 1)
    guest = Guest(lambda requests: [response()])
    guest.run(batch_of(1))


def test_a_response_through_a_sender_and_one_returned_are_one_too_many():
    def execute(requests: list[Any]) -> list[Any]:
        guest.sender(requests[0]).send(response(), 1)
        return [response(), response()]

    guest = Guest(execute)
    sent, done = guest.run(batch_of(1, 2))
    assert sent == Responses(1, 0, [Entry(1, wire.FINAL, "", 0)])
    text = "Unable to send response. Non-decoupled model cannot send more than one response."
    [entry] = done.entries
    assert (entry.key, entry.flags) == (2, ERROR)
    assert entry.text.startswith(FAILED)
    assert text in entry.text


def test_an_exception_after_a_sender_has_responded_fails_only_the_others():
    def execute(requests: list[Any]) -> None:
        guest.sender(requests[0]).send(response(), 1)
        kept.append(guest.sender(requests[1]))
        raise ValueError("no luck")

    kept: list[InferenceResponseSender] = []
    guest = Guest(execute)
    _, done = guest.run(batch_of(1, 2))
    assert [entry.key for entry in done.entries] == [2]
    with pytest.raises(TritonModelException, match=r"sender has been closed|more than one response"):
        kept[0].send(response(), 1)


def test_a_sender_cannot_respond_after_execute_has_returned_a_response():
    kept: list[InferenceResponseSender] = []

    def execute(requests: list[Any]) -> list[Any]:
        kept.append(guest.sender(requests[0]))
        return [response()]

    guest = Guest(execute)
    guest.run(batch_of(1))
    with pytest.raises(TritonModelException, match="cannot send more than one response"):
        kept[0].send(response(), 1)
    assert guest.channel.responses() == []


def test_responses_that_are_ready_are_sent_before_a_later_one_waits():
    batch = batch_of(1, 2, 3)
    guest = Guest(lambda requests: [response() for _ in requests])
    write = guest.execution._writer.response

    def write_late(record: Any, each: Any, flags: int) -> Any:
        if record.key == 2:
            guest.execution.send_early()
            guest.execution.send_early()
        return write(record, each, flags)

    guest.execution._writer.response = write_late
    assert guest.run(batch) == [
        Responses(1, 0, [Entry(1, wire.FINAL, "", 0)]),
        Responses(1, wire.DONE, [Entry(2, wire.FINAL, "", 0), Entry(3, wire.FINAL, "", 0)]),
    ]
    # Neither outside of a batch nor for the entries of the last one.
    guest.execution.send_early()
    assert guest.channel.responses() == []
    # All have their responses: none is left to a sender, in this batch and the next one.
    assert guest.run(batch_of(4, 5, number=2))[-1].flags == wire.DONE
    assert guest.channel.responses() == []


def test_another_thread_does_not_send_responses_that_are_being_made(monkeypatch):
    guest = Guest(lambda requests: [response() for _ in requests])
    write = guest.execution._writer.response

    def write_as_another(record: Any, each: Any, flags: int) -> Any:
        if record.key == 2:
            with monkeypatch.context() as patched:
                patched.setattr(execution, "get_ident", lambda: -1)
                guest.execution.send_early()
        return write(record, each, flags)

    guest.execution._writer.response = write_as_another
    assert [len(each.entries) for each in guest.run(batch_of(1, 2))] == [2]


def test_a_coroutine_ends_its_batch_when_it_returns():
    async def execute(requests: list[Any]) -> list[Any]:
        await asyncio.sleep(0)
        assert guest.channel.sent == []
        return [response() for _ in requests]

    guest = Guest(execute)
    assert guest.run(batch_of(1)) == [Responses(1, wire.DONE, [Entry(1, wire.FINAL, "", 0)])]


def test_an_exception_of_a_coroutine_fails_its_requests():
    async def execute(requests: list[Any]) -> list[Any]:
        raise ValueError("no luck")

    [(_, flags, [entry])] = Guest(execute).run(batch_of(1))
    assert flags == wire.DONE
    assert entry.text.startswith(f"{FAILED}ValueError: no luck")


def test_a_coroutine_of_a_decoupled_model_does_not_hold_up_the_next_batch():
    kept = []

    async def execute(requests: list[Any]) -> None:
        requests[1].set_release_flags(2)
        [done] = guest.channel.responses()
        assert done == Responses(1, wire.DONE, [])
        sender = guest.sender(requests[0])
        sender.send(response())
        sender.send(flags=1)
        kept.append(requests)

    guest = Guest(execute, decoupled=True)
    batch = batch_of(1, 2)
    first, second, late = guest.run(batch)
    assert first == Responses(1, 0, [Entry(1, 0, "", 0)])
    assert second == Responses(1, 0, [Entry(1, FINAL_MARK, "", 0)])
    assert late == Responses(1, 0, [Entry(2, RESCHEDULED, "", 0)])


def test_an_exception_of_a_decoupled_coroutine_fails_requests_that_are_open():
    async def execute(requests: list[Any]) -> None:
        guest.sender(requests[0]).send(response(), 1)
        raise ValueError("no luck")

    guest = Guest(execute, decoupled=True)
    done, sent, late = guest.run(batch_of(1, 2))
    assert (done.flags, done.entries) == (wire.DONE, [])
    assert [entry.key for entry in sent.entries] == [1]
    assert [(entry.key, entry.flags) for entry in late.entries] == [(2, ERROR)]
    assert late.flags == 0


def test_a_decoupled_coroutine_must_return_none():
    async def execute(requests: list[Any]) -> Any:
        return requests

    [done, late] = Guest(execute, decoupled=True).run(batch_of(1))
    assert done.entries == []
    [entry] = late.entries
    assert "must return None" in entry.text


def test_a_request_that_a_decoupled_coroutine_forgets_is_collected_and_ended(monkeypatch):
    """In a reference cycle, as a task of the model may be."""
    collected = []
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda: collected.append(collect()))

    async def execute(requests: list[Any]) -> None:
        cycle: list[Any] = [requests]
        cycle.append(cycle)

    guest = Guest(execute, decoupled=True)

    async def run() -> None:
        batch = batch_of(1)
        await guest.execution.complete(batch, guest.execution.begin(batch))
        assert collected == []
        del batch
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    assert len(collected) == 1
    assert guest.channel.responses()[-1] == Responses(1, 0, [Entry(1, FINAL_MARK, "", 0)])


def test_a_decoupled_coroutine_whose_senders_are_kept_does_not_run_the_collector(monkeypatch):
    monkeypatch.setattr(gc, "collect", lambda: pytest.fail("the collector ran"))
    kept = []

    async def execute(requests: list[Any]) -> None:
        kept.append(guest.sender(requests[0]))
        guest.sender(requests[1]).send(response(), 1)

    guest = Guest(execute, decoupled=True)
    guest.run(batch_of(1, 2))
    kept[0].send(flags=1)


def test_a_host_that_is_gone_is_no_error_of_the_model():
    guest = Guest(raising(HostGoneError("gone")))
    guest.channel.is_gone = True
    with pytest.raises(HostGoneError):
        guest.execution.begin(batch_of(1))
    # A pool raises here what a forked child of the model got: that is the model's own.
    [(_, _, [entry])] = Guest(raising(HostGoneError("gone"))).run(batch_of(1))
    assert "gone" in entry.text


def test_a_host_that_goes_while_a_response_is_written_ends_the_batch():
    guest = Guest(lambda requests: [response()])

    def gone(*arguments: Any) -> Any:
        guest.channel.is_gone = True
        raise HostGoneError("gone")

    guest.execution._writer.response = gone
    with pytest.raises(HostGoneError):
        guest.execution.begin(batch_of(1))


def test_requests_that_were_cancelled_in_the_queue_are_cancelled_when_execute_gets_them():
    seen = []

    def execute(requests: list[Any]) -> list[Any]:
        seen.append([request._handle.is_cancelled for request in requests])
        return [response() for _ in requests]

    guest = Guest(execute)
    guest.channel.receive_from_host(CancelRequests([2]))
    guest.run(batch_of(1, 2, 3))
    guest.run(batch_of(2, number=2))
    assert seen == [[False, True, False], [False]]


@pytest.mark.parametrize("keeps", [False, True])
def test_inputs_that_the_model_keeps_are_released_later(keeps):
    segment = memoryview(bytearray(4096))
    kept = []

    def execute(requests: list[Any]) -> list[Any]:
        if keeps:
            kept.append(np.frombuffer(view, np.uint8))
        return [response()]

    guest = Guest(execute)
    batch = batch_of(1, number=5)
    batch.block = 64
    batch.borrowed = BorrowedBlock(segment)
    batch.shared = {0: BorrowedBlock(segment)}
    view = batch.borrowed.view[:8]
    shared = batch.shared[0].view[:8] if keeps else None
    if not keeps:
        del view
    [done] = guest.run(batch)
    assert done.flags == wire.DONE | ((wire.KEPT | wire.KEPT_SHARED) if keeps else 0)
    assert guest.channel.released == []
    if keeps:
        del view, shared
        assert guest.channel.released == [-6]
        kept.clear()
        assert guest.channel.released == [-6, 64]
