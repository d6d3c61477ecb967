"""Requests to a version whose only instances are in another process: sent there, or kept while that is started again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until_async

from naiad.core.errors import InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.serving.home import HomeRequests
from naiad.protocol.inference import InferRequest, InferResponse

HOME = 2


class Tracker:
    """Has the requests that wait, in their order."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def __len__(self) -> int:
        return len(self.waiting)

    def first(self, count: int) -> list[Any]:
        return self.waiting[:count]

    def give_away(self, pending: Any) -> None:
        self.waiting.remove(pending)

    def fail_waiting(self, error: NaiadError) -> None:
        while self.waiting:
            self.waiting.pop(0).sink.send(InferResponse("m", 1, error=error), True)


class Admission:
    """Has what is submitted or started wait; a request with the id "wrong" is refused."""

    def __init__(self, tracker: Tracker) -> None:
        self.keys = itertools.count(1)
        self.plan = SimpleNamespace(model_name="m")
        self.reason = ""
        self._tracker = tracker

    def require_valid(self, request: InferRequest) -> None:
        if request.request_id == "wrong":
            raise InvalidRequestError("it is wrong")

    def submit(self, request: InferRequest, sink: Any, *, needs_idle: bool = False) -> int:
        key = next(self.keys)
        self.start(key, request, sink)
        return key

    def start(self, key: int, request: InferRequest, sink: Any) -> None:
        if self.reason:
            raise NotReadyError(self.reason)
        self._tracker.waiting.append(SimpleNamespace(key=key, request=request, sink=sink))


class Branches:
    """The home, which runs or does not; keeps what was sent to it."""

    home = HOME

    def __init__(self) -> None:
        self.is_running = True
        self.reason = ""
        self.sent: list[tuple[int, int, str, bool]] = []
        self.take_back: Callable[[int, InferRequest, Any], None] = lambda *_: None
        self.on_reported: Callable[[], None] = lambda: None

    def send(self, process: int, key: int, request: InferRequest, sink: Any, *, needs_idle: bool) -> None:
        self.sent.append((process, key, request.request_id, needs_idle))

    def report(self, *, is_running: bool = True, reason: str = "") -> None:
        self.is_running, self.reason = is_running, reason
        self.on_reported()


class Home:
    def __init__(self) -> None:
        self.tracker = Tracker()
        self.admission = Admission(self.tracker)
        self.branches = Branches()
        self.requests = HomeRequests(self.admission, self.tracker, self.branches)  # type: ignore[arg-type]
        self.answers: list[InferResponse | None] = []

    def submit(self, name: str, *, needs_idle: bool = False) -> int:
        return self.requests.submit(InferRequest("m", -1, (), name), self, needs_idle=needs_idle)

    def send(self, response: InferResponse | None, final: bool) -> None:
        self.answers.append(response)


def run(test: Callable[[Home], Any]) -> None:
    async def with_home() -> None:
        home = Home()
        try:
            await asyncio.wait_for(test(home), 30)
        finally:
            home.requests.close()

    asyncio.run(with_home())


def test_requests_and_calls_go_to_the_home() -> None:
    async def test(home: Home) -> None:
        keys = [home.submit("a"), home.submit("b", needs_idle=True)]
        assert home.branches.sent == [(HOME, keys[0], "a", False), (HOME, keys[1], "b", True)]
        assert not home.tracker.waiting

    run(test)


def test_a_request_that_does_not_fit_the_model_is_not_sent() -> None:
    async def test(home: Home) -> None:
        with pytest.raises(InvalidRequestError, match="it is wrong"):
            home.submit("wrong")
        assert home.branches.sent == []

    run(test)


def test_requests_wait_while_the_home_is_started_again_and_are_sent_in_order() -> None:
    async def test(home: Home) -> None:
        home.branches.report(is_running=False)
        keys = [home.submit(str(number)) for number in range(200)]
        assert home.branches.sent == []
        home.branches.report()
        keys.append(home.submit("200"))  # behind those that are not sent yet
        await until_async(lambda: len(home.branches.sent) == 201)
        assert [(key, name) for _, key, name, _ in home.branches.sent] == [
            (key, str(number)) for number, key in enumerate(keys)
        ]

    run(test)


def test_requests_that_wait_are_refused_when_the_home_cannot_be_started() -> None:
    async def test(home: Home) -> None:
        home.branches.report(is_running=False)
        home.submit("a")
        home.submit("b")
        home.branches.report(is_running=False)
        assert not home.answers
        home.branches.report(is_running=False, reason="it exits again and again")
        assert [str(answer.error) for answer in home.answers if answer is not None] == [
            "model 'm' cannot serve: it exits again and again"
        ] * 2
        with pytest.raises(NotReadyError):
            home.submit("c")
        home.branches.report()
        home.submit("d")
        assert [name for _, _, name, _ in home.branches.sent] == ["d"]

    run(test)


def test_requests_stay_if_the_home_exits_again_before_they_are_sent() -> None:
    async def test(home: Home) -> None:
        home.branches.report(is_running=False)
        home.submit("a")
        home.branches.report()
        home.branches.report(is_running=False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (home.branches.sent, len(home.tracker)) == ([], 1)
        home.branches.report()
        await until_async(lambda: home.branches.sent)

    run(test)


def test_a_home_that_was_given_up_refuses_requests_with_its_reason_until_it_serves_again() -> None:
    async def test(home: Home) -> None:
        home.branches.report(reason="it was given up")
        with pytest.raises(NotReadyError, match="it was given up"):
            home.submit("a")
        home.branches.report()
        home.submit("b")
        assert [name for _, _, name, _ in home.branches.sent] == ["b"]

    run(test)


def test_a_request_that_the_home_does_not_take_is_sent_again_under_its_key() -> None:
    async def test(home: Home) -> None:
        home.branches.take_back(7, InferRequest("m", -1, (), "a"), home)
        await until_async(lambda: home.branches.sent)
        assert home.branches.sent == [(HOME, 7, "a", True)]

    run(test)


def test_a_request_that_comes_back_to_a_version_that_ends_gets_the_reason() -> None:
    async def test(home: Home) -> None:
        home.admission.reason = "it is being unloaded"
        home.branches.take_back(7, InferRequest("m", -1, (), "a"), home)
        (response,) = home.answers
        assert response is not None
        assert response.error is not None
        assert response.error.message == "it is being unloaded"

    run(test)


def test_nothing_is_sent_once_the_version_ends() -> None:
    async def test(home: Home) -> None:
        home.requests.close()
        home.submit("a")
        home.branches.report(reason="other")
        assert (home.branches.sent, home.admission.reason, len(home.tracker)) == ([], "", 1)

    run(test)
