"""Calls of the guests of replicas: which process executes them, and how deadlocks are found that pass through several."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import Clock, turns
from fakes.submitted import Submitted
from server.processes.pair import Engine, Pair, Sink, request

from naiad.core.errors import NaiadError
from naiad.engine.calls.services import ModelServices
from naiad.engine.open_request import OpenRequest
from naiad.guests.calls import ModelCall
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceUse
from naiad.protocol.inference import InferRequest, InferResponse, InputTensor
from naiad.server.processes.messages import FrameKind, GuestCaller
from naiad.server.processes.own_replicas import OwnReplica
from naiad.server.processes.remote_guests import GuestRelay, RemoteGuests
from naiad.server.processes.traces import RemoteTrace

LASTING = 0.2
"""Seconds after which a call has been reported."""


class Guest:
    """Stands in for `Worker`: keeps the results of its calls.

    Attributes:
        results: The number of the call, the response, and whether it was the last, of each.
        replies: The number of the query, the error and the text of each.
        caller: The request that causes its calls.
    """

    gpus = None
    caller: InferRequest | None = None

    def __init__(self, name: str, model: str, load: int = 1) -> None:
        self.spec = SimpleNamespace(name=name, load=SimpleNamespace(model_name=model), load_number=load)
        self.is_starting = False
        self.batches: dict[int, object] = {1: None}
        self.results: list[tuple[int, InferResponse | None, bool]] = []
        self.replies: list[tuple[int, NaiadError | None, str]] = []

    def reply(self, number: int, *, error: NaiadError | None, text: str) -> None:
        self.replies.append((number, error, text))

    def send_result(self, number: int, response: InferResponse | None, final: bool) -> None:
        self.results.append((number, response, final))

    def propagated(self) -> Mapping[str, str]:
        return {"of": self.spec.name}

    def request_of(self, _: int) -> InferRequest | None:
        return self.caller

    def tell_device_use(self, *_: object, **__: object) -> None:
        pass

    @property
    def error(self) -> str:
        """The text of the only result."""
        ((_, response, _),) = self.results
        assert response is not None
        assert response.error is not None
        return response.error.message


class Model:
    """Stands in for `ModelVersion`, and is the holder of its requests: these wait for, or are executed by, the guests that a test says.

    Attributes:
        open: Its requests.
        waits: The guests that each request waits for.
        waiting: The keys of those that wait for an instance.
        acts: What was asked for requests, by the names of methods.
    """

    device = 0
    gpus = None
    reason = ""

    def __init__(self, *guests: Any, decoupled: bool = False, is_idle: bool = True) -> None:
        self.config = SimpleNamespace(decoupled=decoupled)
        self.guests = list(guests)
        self.is_idle = is_idle
        self.open: dict[int, OpenRequest] = {}
        self.waits: dict[int, Sequence[Any]] = {}
        self.waiting: set[int] = set()
        self.acts: list[tuple[Any, ...]] = []
        self.problem: NaiadError | None = None
        self._keys = 0

    def accept(self, opened: OpenRequest) -> None:
        assert opened.needs_idle
        if self.problem is not None:
            raise self.problem
        self._keys += 1
        opened.holder, opened.key = self, self._keys
        self.open[self._keys] = opened
        self.waits[self._keys] = self.guests
        if not self.is_idle:
            self.waiting.add(self._keys)

    def is_waiting(self, opened: OpenRequest) -> bool:
        return opened.key in self.waiting

    def waits_of(self, opened: OpenRequest) -> Sequence[Collection[Any]]:
        return (self.waits[opened.key],) if opened.key in self.waits else ()

    def reject_waiting(self, opened: OpenRequest, error: NaiadError) -> None:
        self.waiting.discard(opened.key)
        self.answer(InferResponse("m", 1, error=error), opened.key)

    def confirm_responses(self, opened: OpenRequest, count: int) -> None:
        self.acts.append(("confirm_sent", opened.key, count))

    def cancel_request(self, opened: OpenRequest) -> None:
        self.acts.append(("cancel", opened.key))

    def drop_responses(self, opened: OpenRequest) -> None:
        self.acts.append(("drop_responses", opened.key))

    def answer(self, response: InferResponse | None = None, key: int = 0, *, final: bool = True) -> None:
        key = key or min(self.open)
        opened = self.open.pop(key) if final else self.open[key]
        if final:
            del self.waits[key]
        opened.sink.send(response or InferResponse("m", 1), final)
        if final:
            opened.release()


class _Link:
    """Passes on what is done with a call of a guest to the process that has it."""

    def __init__(self, taken: Any) -> None:
        self._taken = taken

    def cancel_request(self, _: OpenRequest) -> None:
        self._taken.cancel(drops_responses=False)

    def drop_responses(self, _: OpenRequest) -> None:
        self._taken.drop_responses()

    def confirm_responses(self, _: OpenRequest, count: int) -> None:
        self._taken.confirm_sent(count)


class _LinkSink:
    """The way of the responses to a call over the link: counts how often it has ended."""

    def __init__(self, sink: Any) -> None:
        self.ends = 0
        self._sink = sink

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.ends += final
        self._sink.send(response, final)


class Server:
    """The coordinator, and a process with guests of replicas.

    Attributes:
        here: Models of the coordinator, by name.
        there: Where calls go without the coordinator, as far as the process knows.
        told: The names of what the process has told.
        is_slow: Whether the process answers no more that it is asked again.
    """

    def __init__(self) -> None:
        self.here: dict[str, Model] = {}
        self.there: dict[str, Model] = {}
        self.told: list[str] = []
        self.asked: list[Callable[[], None]] = []
        self.is_slow = False
        self.services = ModelServices(SimpleNamespace(find=lambda name, _: self.here[name]))  # type: ignore[arg-type]
        self.services.calls.ask_again = self._ask_again
        self.traces: dict[int, Any] = {}  # of requests that were sent to the process, by their numbers
        self.remote_guests = RemoteGuests(self.services, self._notify_process, self.traces.get)
        self.problem: NaiadError | None = None  # why no call can be sent to the coordinator
        self.calls: list[Any] = []  # of guests, that were sent to the coordinator
        self.sinks: list[_LinkSink] = []  # theirs
        self.relay = GuestRelay(self)

    def notify(self, name: str, *arguments: Any) -> None:
        """See `Routes`."""
        self.told.append(name)
        self.remote_guests.services[name](*pickle.loads(pickle.dumps(arguments)))

    def _notify_process(self, name: str, *arguments: Any) -> None:
        self.relay.services[name](*pickle.loads(pickle.dumps(arguments)))

    def replica_for(self, call: ModelCall) -> Any:
        """See `Routes`."""
        found = self.there.get(call.request.model_name)
        return found if found is not None and found.is_idle else None

    def send_call(self, opened: OpenRequest, caller: GuestCaller) -> None:
        """See `Routes`."""
        if self.problem is not None:
            raise self.problem
        self.sinks.append(_LinkSink(opened.sink))
        taken = self.remote_guests.on_call(pickle.loads(pickle.dumps(caller)), opened.request, self.sinks[-1])
        self.calls.append(taken)
        opened.holder = _Link(taken)  # type: ignore[assignment]

    def _ask_again(self, then: Callable[[], None]) -> None:
        if self.is_slow:
            self.asked.append(then)
        else:
            self.relay.report_waits()
            then()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def call(
    number: int = 1,
    model: str = "m",
    *,
    device: DeviceUse | None = None,
    is_decoupled: bool = False,
    is_blocking: bool = True,
    is_awaited: bool = False,
    uses_device: bool = False,
    correlation_id: int | str = 0,
) -> ModelCall:
    request = InferRequest(model, -1, [InputTensor("X", Datatype.FP32, (1,), memoryview(bytes(4)))], device=device)
    request.correlation_id = correlation_id
    return ModelCall(number, request, is_decoupled, is_blocking, is_awaited, uses_device=uses_device)


@pytest.mark.parametrize(
    ("replica", "made", "is_executed_there"),
    [
        (Model(), call(), True),
        (Model(is_idle=False), call(), False),
        (Model(), call(is_decoupled=True), True),
        (None, call(), False),
        (Model(), call(correlation_id=7), False),
        (Model(), call(correlation_id="seven"), False),
        (Model(), call(uses_device=True), False),
        (Model(), call(device=DeviceUse(keeps_outputs=True)), False),
    ],
)
def test_a_process_executes_a_call_if_it_has_an_idle_instance(
    clock: Clock, replica: Model | None, made: ModelCall, is_executed_there: bool
) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"] = Model(decoupled=replica is not None and replica.config.decoupled)
        if replica is not None:
            server.there["m"] = replica
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, made)
        assert (replica is not None and len(replica.open) == 1) is is_executed_there
        assert [each.request.device for each in server.here["m"].open.values()] == [None] * (not is_executed_there)
        assert bool(server.calls) is not is_executed_there

    clock.run(check())


def test_each_call_ends_with_its_own_result_and_is_counted_where_it_was_executed(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"], server.there["m"] = Model(), Model()
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call(1))
        server.there["m"].is_idle = False
        server.relay.on_call(guest, call(2))
        assert server.relay.is_calling(guest)
        assert (dict(server.relay.made), dict(server.services.calls.made)) == ({("a", "m"): 1}, {("a", "m"): 1})
        server.there["m"].answer()
        assert server.relay.is_calling(guest)
        server.here["m"].answer()
        assert [(number, final) for number, _, final in guest.results] == [(1, True), (2, True)]
        assert not server.relay.is_calling(guest)

    clock.run(check())


def test_a_call_that_a_replica_does_not_accept_ends_with_the_reason(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        server.there["m"] = Model()
        server.there["m"].problem = NaiadError("a shape that does not fit")
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call())
        assert guest.error == "Model m - Error when running inference: a shape that does not fit"
        assert not server.relay.made

    clock.run(check())


def test_what_a_model_does_with_results_is_told_to_the_model_that_it_has_called(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"], server.there["m"] = Model(), Model()
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call(1, is_decoupled=True))
        server.there["m"].is_idle = False
        server.relay.on_call(guest, call(2, is_decoupled=True))
        server.relay.on_results_consumed(guest, 1, 3)
        server.relay.on_results_consumed(guest, 2, 4)
        server.relay.on_calls_cancelled(guest, [1, 2])
        server.relay.on_results_discarded(guest, [1, 2])
        expected = [("cancel", 1), ("drop_responses", 1)]
        assert server.there["m"].acts == [("confirm_sent", 1, 3), *expected]
        assert server.here["m"].acts == [("confirm_sent", 1, 4), *expected]
        assert not server.relay.is_calling(guest)
        assert [each.ends for each in server.sinks] == [1], "nothing of it is kept on the link"
        server.there["m"].answer()
        server.here["m"].answer()
        assert [each.ends for each in server.sinks] == [1]
        told = len(server.told)
        server.relay.on_results_consumed(guest, 1, 1)  # of calls that have ended
        server.relay.on_calls_cancelled(guest, [1, 2])
        server.relay.on_results_discarded(guest, [1, 2])
        assert len(server.told) == told

    clock.run(check())


def test_a_call_with_inputs_in_gpu_memory_is_rejected(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call(device=DeviceUse(has_inputs=True)))
        assert guest.error == "Model m - Error when running inference: inputs in GPU memory"
        ((_, response, final),) = guest.results
        assert (response.model_version, final) == (-1, True)
        assert server.calls == []

    clock.run(check())


def test_a_call_that_cannot_be_sent_to_the_coordinator_ends_with_the_reason(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        server.problem = NaiadError("Server exiting")
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call())
        assert guest.error.endswith("Server exiting")
        assert [final for _, _, final in guest.results] == [True]
        assert not server.relay.is_calling(guest)

    clock.run(check())


@pytest.mark.parametrize(("context", "is_idle"), [(b"{}", True), (None, True), (None, False)])
def test_a_call_is_part_of_the_trace_of_its_request_which_the_coordinator_has(
    clock: Clock, context: bytes | None, is_idle: bool
) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"], server.there["m"] = Model(), Model(is_idle=is_idle)
        server.traces[9] = trace = SimpleNamespace(start_child=lambda _, sink: sink)
        guest: Any = Guest("a_0_1", "a")
        guest.caller = InferRequest("a", 1, (), propagated={"c": "d"}, trace=RemoteTrace(9, context, server.notify))
        server.relay.on_call(guest, call()._replace(traced_by=3))
        assert len(server.there["m"].open) == (context is None and is_idle)
        if not server.there["m"].open:
            remote: Any = server.remote_guests.of(1, "a_0_1")
            found = None if context is None else trace
            assert remote.request_of(3) == InferRequest("", -1, (), propagated={"c": "d"}, trace=found)
            assert remote.propagated() == {"of": "a_0_1"}

    clock.run(check())


def test_each_result_of_a_call_is_passed_on_and_the_last_one_ends_it(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"] = Model(decoupled=True)
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call(5, is_decoupled=True))
        for final in (False, False, True):
            server.here["m"].answer(final=final)
        assert [(number, final) for number, _, final in guest.results] == [(5, False), (5, False), (5, True)]
        assert not server.remote_guests._guests[1].results
        assert not server.relay.is_calling(guest)

    clock.run(check())


@pytest.mark.parametrize("drops", [False, True])
def test_a_call_is_cancelled_with_its_results_where_its_process_has_exited(clock: Clock, drops: bool) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"] = Model()
        server.relay.on_call(Guest("a_0_1", "a"), call())  # type: ignore[arg-type]
        server.calls[0].cancel(drops_responses=drops)
        assert server.here["m"].acts == [("cancel", 1), *[("drop_responses", 1)] * drops]
        assert server.sinks[0].ends == drops

    clock.run(check())


def test_a_call_of_a_guest_that_has_exited_ends(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        sink = _LinkSink(Sink())
        assert server.remote_guests.on_call(CALLER, call().request, sink) is None
        assert sink.ends == 1

    clock.run(check())


def test_a_new_guest_of_an_instance_takes_the_place_of_the_one_before(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        services = server.remote_guests.services

        def current() -> int:
            found: Any = server.remote_guests.of(1, "a_0_1")
            assert (found.spec.name, found.load_number) == ("a_0_1", 1)
            number: int = found._number
            return number

        assert current() == 0, "it has asked for nothing"
        services["guest"](1, "a_0_1", "a", 1)
        services["guest"](2, "a_0_1", "a", 1)
        services["guest_exit"](1)
        assert current() == 2
        services["guest_exit"](2)
        assert current() == 0
        services["guest"](3, "a_0_1", "a", 1)
        server.remote_guests.close()
        assert current() == 0

    clock.run(check())


def test_what_else_a_guest_asks_for_is_asked_of_the_coordinator_whose_reply_it_gets(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        asked: list[Any] = []
        server.services.on_query = lambda *given: asked.append(given)  # type: ignore[method-assign]
        server.services.on_notification = lambda *given: asked.append(given)  # type: ignore[method-assign]
        guest: Any = Guest("a_0_1", "a", load=4)
        for is_starting in (True, False):
            guest.is_starting = is_starting
            server.relay.on_query(guest, 5, "load", {"name": "m"})
            worker, *query = asked.pop()
            assert query == [5, "load", {"name": "m"}]
            assert (worker.spec.name, worker.spec.load.model_name, worker.load_number) == ("a_0_1", "a", 4)
            assert worker.is_starting is is_starting
        error = NaiadError("no such model")
        worker.reply(5, error=error)
        worker.reply(6, text="loaded")
        assert [(number, each and each.message, text) for number, each, text in guest.replies] == [
            (5, "no such model", ""),
            (6, None, "loaded"),
        ]
        server.relay.on_notification(guest, "metric", {"a": "1"})
        assert asked.pop() == (worker, "metric", {"a": "1"})
        server.relay.on_worker_exit(guest)
        assert server.told == ["guest", "guest_query", "guest_query", "guest_notification", "guest_exit"]
        worker.reply(7, text="too late")
        assert len(guest.replies) == 2
        server.relay.on_worker_exit(guest)
        assert server.told.count("guest_exit") == 1

    clock.run(check())


def test_the_calls_of_a_guest_that_exits_are_cancelled(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        server.here["m"], server.there["m"] = Model(), Model()
        guest: Any = Guest("a_0_1", "a")
        server.relay.on_call(guest, call(1))
        server.there["m"].is_idle = False
        server.relay.on_call(guest, call(2))
        server.relay.on_worker_exit(guest)
        for model in (server.there["m"], server.here["m"]):
            assert model.acts == [("drop_responses", 1), ("cancel", 1)]
            assert [each.ends for each in server.sinks] == [1], "nothing of it is kept on the link"
            model.answer()
        assert [each.ends for each in server.sinks] == [1]
        assert guest.results == []
        assert not server.relay.is_calling(guest)

    clock.run(check())


# -- what calls wait for ------------------------------------------------------------------------------------------


def test_only_calls_that_last_are_reported_and_their_end_is(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        guest: Any = Guest("a_0_1", "a")
        server.there["m"] = model = Model(Guest("m_0_1", "m"))
        for number in range(40):
            server.relay.on_call(guest, call(number))
            clock.advance(0.02)
            await turns()
            model.answer()
        assert server.told == []
        server.relay.on_call(guest, call(99))
        clock.advance(LASTING)
        await turns()
        clock.advance(LASTING)
        await turns()
        assert server.told == ["guest", "guest_waits"]
        assert server.remote_guests.are_waiting
        clock.advance(10)
        await turns()
        model.answer()
        clock.advance(LASTING)
        await turns()
        assert server.told == ["guest", "guest_waits", "guest_waits"]
        assert not server.remote_guests.are_waiting
        clock.advance(LASTING)
        await turns()

    clock.run(check())


async def last(clock: Clock) -> None:
    """Let calls last so long that they are reported."""
    for _ in range(3):
        clock.advance(LASTING)
        await turns()


def ring(server: Server, model: Model | None = None) -> tuple[Any, Any, Model]:
    """A guest of `a` that calls a guest of `b` in its process, which calls `a`: all of its instances wait."""
    a, b = Guest("a_0_1", "a"), Guest("b_0_1", "b")
    server.there["b"] = Model(b)
    server.relay.on_call(a, call(1, "b"))  # type: ignore[arg-type]
    server.here["a"] = model = model or Model(is_idle=False)
    server.relay.on_call(b, call(1, "a"))  # type: ignore[arg-type]
    model.guests.append(server.remote_guests.of(1, "a_0_1"))
    return a, b, model


def test_a_cycle_through_a_call_that_a_process_executes_is_found_once_it_lasts(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        _, b, model = ring(server)
        # Its only instance is the guest that waits, which nobody here has heard of before its report.
        await last(clock)
        model.guests[:] = [server.remote_guests.of(1, "a_0_1")]
        await last(clock)
        server.services.calls.on_call_waiting()
        assert "the call can never be answered" in b.error
        assert "'b_0_1' -> 'a_0_1' -> 'b_0_1'" in b.error

    clock.run(check())


def test_a_process_is_asked_again_before_a_call_is_rejected(clock: Clock) -> None:
    async def check(*, ends: bool) -> None:
        server = Server()
        server.is_slow = True
        a, b, model = ring(server)
        await last(clock)
        model.guests[:] = [server.remote_guests.of(1, "a_0_1")]
        server.services.calls.on_call_waiting()
        server.services.calls.on_call_waiting()
        (then,) = server.asked
        assert b.results == []
        if ends:
            server.there["b"].answer()
            server.relay.on_call(a, call(2, "b"))
        server.asked.clear()
        server.relay.report_waits()
        then()
        assert bool(b.results) is not ends
        assert server.asked == []
        if ends:  # the same guests wait for each other again, by another call
            await last(clock)
            (then,) = server.asked
            then()
            assert "'b_0_1' -> 'a_0_1' -> 'b_0_1'" in b.error

    clock.run(check(ends=False))
    clock.run(check(ends=True))


@pytest.mark.parametrize("made", [call(1, "b", is_awaited=True, is_blocking=False), call(1, "b", is_decoupled=True)])
def test_a_guest_is_blocked_by_awaited_and_decoupled_calls_while_it_executes_a_batch(
    clock: Clock, made: ModelCall
) -> None:
    async def check(*, is_executing: bool, is_executed_there: bool) -> None:
        server = Server()
        a, b = Guest("a_0_1", "a"), Guest("b_0_1", "b")
        if not is_executing:
            a.batches.clear()
        server.there["b"] = Model(b, is_idle=is_executed_there)
        server.here["b"] = Model()
        server.here["a"] = model = Model(is_idle=False)
        server.relay.on_call(b, call(1, "a"))  # type: ignore[arg-type]
        server.relay.on_call(a, made)  # type: ignore[arg-type]
        if not is_executed_there:
            server.here["b"].waits[1] = [server.remote_guests.of(1, "b_0_1")]
        await last(clock)
        model.waits[1] = [server.remote_guests.of(1, "a_0_1")]
        server.services.calls.on_call_waiting()
        assert bool(b.results) is is_executing
        if not is_executing:  # until the next batch
            a.batches[2] = None
            await last(clock)
            model.waits[1] = [server.remote_guests.of(1, "a_0_1")]
            server.services.calls.on_call_waiting()
            assert "'b_0_1' -> 'a_0_1' -> 'b_0_1'" in b.error

    for is_executing in (True, False):
        for is_executed_there in (True, False):
            clock.run(check(is_executing=is_executing, is_executed_there=is_executed_there))


def test_what_a_process_has_reported_ends_with_it(clock: Clock) -> None:
    async def check() -> None:
        server = Server()
        _, b, model = ring(server)
        await last(clock)
        model.guests[:] = [server.remote_guests.of(1, "a_0_1")]
        server.remote_guests.close()
        server.services.calls.on_call_waiting()
        assert b.results == []

    clock.run(check())


def test_the_call_that_was_made_last_is_rejected_and_none_that_only_waits_for_the_cycle(clock: Clock) -> None:
    """`c` waits for `a`, and `a` and `b` for each other."""

    async def check() -> None:
        server = Server()
        server.here["a"] = Model(is_idle=False)
        c = Guest("c_0_1", "c")
        server.relay.on_call(c, call(1, "a"))  # type: ignore[arg-type]
        a, b, model = ring(server, server.here["a"])
        await last(clock)
        model.guests[:] = [server.remote_guests.of(1, "a_0_1")]
        server.services.calls.on_call_waiting()
        assert a.results == c.results == []
        assert "'b_0_1' -> 'a_0_1' -> 'b_0_1'" in b.error

    clock.run(check())


CALLER = GuestCaller(3, 5, True, False, True, 8, {"a": "b"}, {"c": "d"}, None)


class Calls:
    """Takes the calls of guests of another process, and keeps what is done with them."""

    def __init__(self) -> None:
        self.taken: list[tuple[GuestCaller, InferRequest, Any]] = []
        self.submitted = Submitted()

    def take(self, caller: GuestCaller, request: InferRequest, sink: Any) -> Submitted:
        self.taken.append((caller, request, sink))
        return self.submitted


@pytest.mark.parametrize("elements", [1, 1 << 16, 1 << 21])
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_call_goes_over_the_link_with_its_caller_and_counts_as_no_request(
    pair: Pair, elements: int, is_known: bool
) -> None:
    calls, sink = Calls(), Sink()
    pair.session.on_call = calls.take
    if is_known:
        pair.know_route("m")
    opened = OpenRequest(request("m", elements), sink)
    pair.remote.send_call(opened, CALLER)
    opened.confirm_sent(2)
    opened.cancel(drops_responses=False)
    await pair.settle(lambda: len(calls.submitted.acts) == 2)
    ((caller, called, results),) = calls.taken
    assert (caller, bytes(called.inputs[0].data)) == (CALLER, bytes(4 * elements))
    assert calls.submitted.acts == [("confirm_sent", 2), ("cancel", False)]
    assert (pair.session.received_count, pair.engine.requests) == (0, [])
    assert pair.held.routes == is_known, "the coordinator looks for the model"
    assert [(each.load, each.is_decoupled) for each in pair.session._templates.values()] == [(int(is_known), False)]
    results.send(InferResponse("m", 1, "one"), False)
    await pair.settle(lambda: sink.responses)
    opened.drop_responses()
    await pair.settle(lambda: len(calls.submitted.acts) == 3)
    results.send(InferResponse("m", 1, "two"), False)
    results.send(None, True)
    await pair.settle(lambda: not pair.remote.request_count)
    assert [each and each.request_id for each in sink.responses] == ["one", None]
    assert pair.session.request_count == 0
    opened.cancel()  # a call that has ended
    assert not pair.session._open


class TwoModels(Engine):
    """Model `a` has the load with number 1, model `b` that with number 2."""

    def route(self, name: str, version: int) -> Any:
        return SimpleNamespace(**{**vars(self.version), "number": {"a": 1, "b": 2}[name]})


class Idle(OwnReplica):
    """A replica with an idle instance."""

    def __init__(self) -> None:
        pass

    def takes_call(self, *, is_decoupled: bool) -> bool:
        return True


@pytest.mark.parametrize("event", ["opened", "ended"])
@pytest.mark.parametrize("engine", [TwoModels()])
async def test_calls_stay_in_their_process_while_a_replica_of_another_model_opens_or_ends(
    pair: Pair, event: str
) -> None:
    """An old version ends after the load or unload was answered; it may take as long as its guests do."""

    replica = Idle()
    replicas = {2: replica} if event == "opened" else {1: replica, 2: replica}
    pair.remote.replicas = SimpleNamespace(find=replicas.get, request_count=0)  # type: ignore[assignment]
    call = {name: SimpleNamespace(request=request(name), is_decoupled=False) for name in "ab"}
    for name in "ab":
        pair.know_route(name)
    assert pair.remote.replica_for(call["b"]) is replica  # type: ignore[arg-type]

    replicas.pop(1, None) if event == "ended" else replicas.setdefault(1, replica)
    pair.remote.on_replica_opened(1)

    assert pair.remote.replica_for(call["b"]) is replica, "its route was forgotten"  # type: ignore[arg-type]
    pair.know_route("a")
    assert pair.remote.replica_for(call["a"]) is (None if event == "ended" else replica)  # type: ignore[arg-type]


@pytest.mark.parametrize("event", ["an answer", "a change", "an error"])
async def test_a_process_asks_once_where_later_calls_of_a_model_go(
    pair: Pair, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise NaiadError("no such model")

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    if event == "an error":
        monkeypatch.setattr(pair.engine, "find_target", fail)
    replica = Idle()
    pair.remote.replicas = SimpleNamespace(find=lambda _: replica, request_count=0)  # type: ignore[assignment]
    made: Any = SimpleNamespace(request=request("m"), is_decoupled=False)
    assert [pair.remote.replica_for(made) for _ in range(2)] == [None, None]
    assert len(pair.remote._sought) == 1
    if event == "a change":
        pair.session.on_routes_changed()
    await pair.settle(lambda: not pair.remote._sought)
    assert pair.kinds == [FrameKind.CALL]
    assert failures == []
    assert len(pair.remote.requests.routes) == (event == "an answer")
    assert pair.remote.replica_for(made) is (replica if event == "an answer" else None)
