"""One request in flight: what it takes from its request or its source, what becomes of it, and when its guest gets
credit.

Its holders are real ones; guests and models of steps are the test's.
"""

from __future__ import annotations

import gc
import itertools
import logging
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from engine.submitting import WeakRequest
from fakes.clock import Clock
from fakes.guests import PLAIN, Answers, FakeGuest, config, output, request
from google.protobuf import text_format

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import freeze
from naiad.core.errors import Code, NaiadError
from naiad.engine.ensembles.version import EnsembleVersion
from naiad.engine.open_request import ForwardedRequest, OpenRequest
from naiad.engine.scheduling.ensembles.graph import EnsembleGraph, EnsembleStep
from naiad.engine.serving.dormant import DormantVersion
from naiad.engine.serving.requests_in_flight import RequestsInFlight
from naiad.engine.serving.warmup import WarmUp
from naiad.protocol.inference import SEQUENCE_START, InferResponse
from naiad.protocol.request_plan import CheckedLayout

LAYOUT = CheckedLayout(generation=0, batch_size=1, is_repeatable=True, packed=None)


def pending(**more: Any) -> OpenRequest:
    opened = OpenRequest(request(**more), SimpleNamespace())
    opened.key = 7
    return opened


def test_schedulers_see_the_fields_of_the_request():
    made = pending(priority=2, timeout_us=5, correlation_id="c", flags=SEQUENCE_START, request_id="9")
    assert (made.priority, made.timeout_us, made.correlation_id, made.flags) == (2, 5, "c", SEQUENCE_START)
    assert made.prefix == "[request id: 9] "


def test_a_request_that_nothing_has_yet():
    made = OpenRequest(request(), SimpleNamespace())
    assert (made.key, made.queued, made.laid_out, made.batch_size, made.instance) == (0, 0, 0, 1, "")
    assert not made.needs_idle
    assert not made.is_queued
    assert not made.is_cancelled
    assert not made.drops_responses
    assert made.worker is made.state is made.unsent is made.rejection is made.packed is made.forwarded is None
    assert OpenRequest(request(), SimpleNamespace(), True).needs_idle


def test_a_forwarded_request_is_made_when_it_is_needed_and_once():
    made = []

    class Source:
        def request_of(self, forwarded: ForwardedRequest) -> Any:
            made.append(forwarded)
            return request(priority=4)

        def sink_of(self, number: int) -> Any:
            made.append(number)
            return object()

    forwarded = ForwardedRequest(Source(), 5, b"", b"")
    found = OpenRequest(None, None, False, forwarded)
    assert made == []
    assert found.priority == 4
    assert found.request is found.request
    assert found.sink is found.sink
    assert made == [forwarded, 5]
    other = found.sink = object()
    assert found.sink is other
    assert not OpenRequest(None, None, False, forwarded).is_ended
    assert not found.is_ended
    found.release()
    assert found.is_ended


# -- what its holders do with it ------------------------------------------------------------------------------------


class Moves:
    """A request, and what it gets.

    Attributes:
        told: The messages that its guest, or the model of the ensemble's step, has got.
    """

    def __init__(self) -> None:
        self.answers = Answers()
        self.opened = OpenRequest(WeakRequest("m", -1, request().inputs), self.answers)
        self.told: list[tuple[Any, ...]] = []

    def waits(self) -> Any:
        return ()


class AtNobody(Moves):
    """It is not submitted yet."""


class AtDormant(Moves):
    """It waits for the load of its model."""

    def __init__(self) -> None:
        super().__init__()
        self.version = DormantVersion(config(PLAIN), 1, lambda *, is_urgent: None, timeout=30.0, is_known=True)
        self.version.accept(self.opened)

    def waits(self) -> Any:
        return [[]]


class AtLoaded(Moves):
    """It waits for a guest: the only one has another request; or, for `AtGuest`, is at one."""

    def __init__(self) -> None:
        super().__init__()
        keys, told, guests = itertools.count(1), self.told, []
        decoupled = config(PLAIN, "model_transaction_policy { decoupled: true }")
        self.in_flight = RequestsInFlight(decoupled, 1, keys, WarmUp((), keys), lambda _: guests)
        self.guest = FakeGuest(owner=self.in_flight)
        guests.append(self.guest)
        self.guest.cancel = lambda keys: told.append(("cancel", *keys))
        self.guest.credit = lambda key, count: told.append(("credit", key, count))
        self.in_flight.add_guest(self.guest)
        self.start()

    def start(self) -> None:
        self.in_flight.start(OpenRequest(request(), Answers()), LAYOUT)
        self.in_flight.start(self.opened, LAYOUT)

    def waits(self) -> Any:
        return [[self.guest]]


class AtGuest(AtLoaded):
    """A guest has it, and has sent 255 responses: with one more, it gets credit."""

    def start(self) -> None:
        self.in_flight.start(self.opened, LAYOUT)
        for _ in range(256):
            response = InferResponse("m", 1, outputs=output())
            self.guest.respond(self.opened.key, response, final=False)
        self.answers.responses.clear()
        self.opened.confirm_sent(255)


class AtEnsemble(Moves):
    """It is an ensemble's, whose only step waits for an instance."""

    config = config(PLAIN, "model_transaction_policy { decoupled: true }")
    number = 1
    device = 0
    gpus = None

    def __init__(self) -> None:
        super().__init__()
        text = PLAIN.replace('backend: "python"', 'platform: "ensemble"') + "ensemble_scheduling {}"
        step = EnsembleStep(model="a", version=-1, inputs=(("IN", "IN"),), outputs={"OUT": "OUT"}, decoupled=True)
        graph = EnsembleGraph(name="m", steps=(step,), inputs=("IN",), outputs=("OUT",))
        made = freeze(text_format.Parse(text, pb.ModelConfig()))
        models: Any = SimpleNamespace(find=lambda *_: self)
        EnsembleVersion(made, 1, graph, models, lambda _: None).accept(self.opened)
        self.of_step.sink.send(InferResponse("a", 1, outputs=output()), False)
        self.answers.responses.clear()

    # -- the model of the step

    def accept(self, opened: OpenRequest) -> None:
        self.of_step = opened
        opened.holder = self  # type: ignore[assignment] # as far as a step needs it

    def cancel_request(self, _: OpenRequest) -> None:
        self.told.append(("cancel",))

    def drop_responses(self, _: OpenRequest) -> None:
        self.told.append(("drop_responses",))

    def confirm_responses(self, _: OpenRequest, count: int) -> None:
        self.told.append(("confirm_sent", count))

    def is_waiting(self, _: OpenRequest) -> bool:
        return True

    def waits_of(self, _: OpenRequest) -> Any:
        return [["the guest of the step"]]

    def waits(self) -> Any:
        return [["the guest of the step"]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().install(monkeypatch)


@pytest.fixture
def run_coroutine(clock: Clock) -> Callable[..., object]:
    return clock.run


HOLDERS = [AtNobody, AtDormant, AtLoaded, AtGuest, AtEnsemble]
CANCELLED = "Request was cancelled"
VERBS: dict[str, Callable[[OpenRequest], None]] = {
    "cancel": OpenRequest.cancel,
    "cancel alone": lambda opened: opened.cancel(drops_responses=False),
    "drop_responses": OpenRequest.drop_responses,
    "confirm_sent": OpenRequest.confirm_sent,
    "reject_waiting": lambda opened: opened.reject_waiting(NaiadError("a deadlock")),
}

FOLLOWS: dict[tuple[type[Moves], str], tuple[str, list[tuple[Any, ...]], bool]] = {
    # The error that the client gets; what the guest, or the step's model, is told; whether responses are dropped.
    (AtDormant, "cancel"): (CANCELLED, [], False),
    (AtDormant, "cancel alone"): (CANCELLED, [], False),
    (AtDormant, "reject_waiting"): ("a deadlock", [], False),
    (AtLoaded, "cancel"): (CANCELLED, [], False),
    (AtLoaded, "cancel alone"): (CANCELLED, [], False),
    (AtLoaded, "drop_responses"): ("", [], True),
    (AtLoaded, "reject_waiting"): ("a deadlock", [], False),
    (AtGuest, "cancel"): ("", [("cancel", 1), ("credit", 1, 256)], True),
    (AtGuest, "cancel alone"): ("", [("cancel", 1)], False),
    (AtGuest, "drop_responses"): ("", [("credit", 1, 256)], True),
    (AtGuest, "confirm_sent"): ("", [("credit", 1, 256)], False),
    (AtEnsemble, "cancel"): ("", [("cancel",), ("confirm_sent", 1)], True),
    (AtEnsemble, "cancel alone"): ("", [("cancel",)], False),
    (AtEnsemble, "drop_responses"): ("", [("confirm_sent", 1)], True),
    (AtEnsemble, "confirm_sent"): ("", [("confirm_sent", 1)], False),
    (AtEnsemble, "reject_waiting"): ("a deadlock", [("cancel",), ("drop_responses",)], False),
}
"""What is not here has no effect."""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("holder", HOLDERS)
async def test_what_each_holder_does_with_a_request(clock, holder, verb):
    moves = holder()
    error, told, drops_responses = FOLLOWS.get((holder, verb), ("", [], False))
    VERBS[verb](moves.opened)
    assert moves.told == told
    assert moves.opened.drops_responses is drops_responses
    if error:
        ((response, final),) = moves.answers.responses
        assert (response.error.message, final) == (error, True)
        assert response.error.code == (Code.CANCELLED if error == CANCELLED else NaiadError("").code)
    else:
        assert moves.answers.responses == []


@pytest.mark.parametrize("holder", HOLDERS)
async def test_what_a_request_waits_for(clock, holder):
    moves = holder()
    assert moves.opened.is_waiting is (holder not in {AtNobody, AtGuest})
    assert [list(each) for each in moves.opened.waits()] == list(moves.waits())


async def test_a_request_stays_the_same_while_it_moves(clock):
    """From nobody to the dormant version, from there to the loaded one, and to its guest."""
    moves, loaded = AtDormant(), AtLoaded()
    assert moves.opened.holder is moves.version
    target: Any = SimpleNamespace(
        config=loaded.in_flight._config, accept=lambda opened: loaded.in_flight.start(opened, LAYOUT)
    )
    moves.version.config = target.config
    moves.version.submit_waiting(target)
    assert moves.opened.holder is loaded.in_flight
    assert moves.opened.is_waiting
    for _ in range(2):
        loaded.guest.answer()
    assert not moves.opened.is_waiting
    moves.opened.cancel()
    assert loaded.told == [("cancel", moves.opened.key)]
    assert moves.answers.responses == []


def break_sink(moves: Any) -> None:
    moves.answers.problem = ValueError("closed")
    moves.guest.respond(moves.opened.key, InferResponse("m", 1, outputs=output()), final=False)


def end_step(moves: Any) -> None:
    moves.of_step.sink.send(None, True)
    moves.of_step.release()


ENDS: list[tuple[type[Moves], Callable[[Any], None]]] = [
    (AtNobody, lambda moves: moves.opened.fail(NaiadError("no luck"))),
    (AtNobody, lambda moves: moves.opened.reject(NaiadError("it does not fit"))),
    (AtDormant, lambda moves: moves.version.fail_waiting(NaiadError("it cannot be loaded"))),
    (AtDormant, lambda moves: moves.opened.cancel()),
    (AtLoaded, lambda moves: moves.in_flight.fail_all(NaiadError("it is over"))),
    (AtLoaded, lambda moves: moves.opened.cancel()),
    (AtGuest, lambda moves: moves.guest.respond(moves.opened.key)),
    (AtGuest, lambda moves: moves.in_flight.fail_all(NaiadError("it is over"))),
    (AtGuest, break_sink),
    (AtGuest, lambda moves: moves.in_flight.fail_guest(moves.guest, NaiadError("it was removed"))),
    (AtEnsemble, end_step),
    (AtEnsemble, lambda moves: moves.of_step.fail(NaiadError("no luck"))),
]


@pytest.mark.parametrize(("holder", "end"), ENDS)
async def test_a_request_that_has_ended_ignores_everything_and_keeps_neither_its_request_nor_its_sink(
    clock, caplog, holder, end
):
    caplog.set_level(logging.CRITICAL)  # a record of the log keeps the frames of its error
    moves = holder()
    gone = [weakref.ref(moves.opened.request), weakref.ref(moves.answers)]
    end(moves)
    assert moves.answers.is_ended
    responses, told, opened = len(moves.answers.responses), len(moves.told), moves.opened
    for verb in VERBS.values():
        verb(opened)
    assert (opened.is_waiting, opened.waits()) == (False, ())
    assert (len(moves.answers.responses), len(moves.told)) == (responses, told)
    assert opened.packed is opened.forwarded is opened.state is None
    if opened.worker is not None:
        opened.worker.requests.clear()  # a `FakeGuest` keeps what it was sent
    del moves
    gc.collect()
    assert [each() for each in gone] == [None, None]


# -- credit ---------------------------------------------------------------------------------------------------------


MB = 1 << 20


def stream(responses: list[tuple[int, ...]]) -> tuple[OpenRequest, FakeGuest]:
    """A request whose guest has sent responses, whose outputs have these sizes."""
    opened, guest = pending(), FakeGuest()
    opened.worker = guest
    for sizes in responses:
        opened.on_response_queued(
            InferResponse("m", 1, outputs=[each for size in sizes for each in output(bytes(size))])
        )
    return opened, guest


@pytest.mark.parametrize(
    ("responses", "confirmed"),
    [
        ([(8,)] * 600, [(255, []), (1, [256]), (255, [256]), (45, [256, 300])]),
        ([(MB - 1,)] * 3 + [(2,)], [(2, []), (1, [3]), (1, [3])]),
        ([(MB,)] * 2, [(1, []), (1, [2])]),
        ([(MB, MB)], [(1, [1])]),
        ([(8,)] * 256, [(1000, [256]), (1000, [256])]),
        ([], [(300, [])]),
    ],
    ids=["many responses", "many bytes", "bytes at the limit", "all outputs", "no more than there were", "none"],
)
def test_a_guest_gets_credit_once_many_responses_or_many_bytes_were_sent(responses, confirmed):
    opened, guest = stream(responses)
    for count, expected in confirmed:
        opened.on_responses_sent(count)
        assert guest.credits == [(7, each) for each in expected]


def test_dropped_responses_count_as_sent_and_without_a_guest_there_is_no_credit():
    opened, guest = stream([(8,)] * 300)
    opened.on_dropped()
    assert guest.credits == [(7, 300)]
    opened, guest = stream([(8,)] * 300)
    opened.worker = None
    opened.on_responses_sent(300)
    assert guest.credits == []
