"""The engine as a process beside the coordinator has it: each method is the coordinator's, with its errors."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from naiad_stub import wire
from server.processes.pair import Engine, Pair, Sink, request

from naiad.core.errors import Code, InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.open_request import OpenRequest
from naiad.server.processes.calls import ProcessExitedError

ASKED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "server_metadata": ((), "metadata"),
    "is_started": ((), True),
    "is_live": ((), True),
    "is_ready": ((), False),
    "stalls": (("m", 2), "it hangs"),
    "is_model_ready": (("m", 2), True),
    "statistics": (("m", 2), ["statistics"]),
    "ready_index": ((), ["index"]),
}
AWAITED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "check_server_ready": ((), True),
    "check_ready": (("m", 2), True),
    "repository_index": ((), ["index"]),
    "gather_counts": ((), None),
    "load": (("m", {"config": "{}"}), True),
}


class Answering(Engine):
    """Answers the methods of the facade with what they are to return, or raises."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.value: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in ASKED:
            return lambda *arguments: self._answer(name, arguments, ASKED[name][1])
        if name in AWAITED:
            return lambda *arguments: self._answer_later(name, arguments)
        return super().__getattr__(name)

    def _answer(self, name: str, arguments: tuple[Any, ...], value: Any) -> Any:
        self.called.append((name, *arguments))
        if self.error is not None:
            raise self.error
        return self.value if self.value is not None else value

    async def _answer_later(self, name: str, arguments: tuple[Any, ...]) -> Any:
        await asyncio.sleep(0)
        return self._answer(name, arguments, AWAITED[name][1])

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        self.called.append((name, unload_dependents))


@pytest.fixture
def engine() -> Answering:
    return Answering()


@pytest.mark.parametrize("method", ASKED)
async def test_a_method_blocks_for_the_answer_of_the_coordinator(pair: Pair, engine: Answering, method: str) -> None:
    arguments, value = ASKED[method]
    assert getattr(pair.remote, method)(*arguments) == value
    assert engine.called == [(method, *arguments)]


@pytest.mark.parametrize("method", AWAITED)
async def test_a_coroutine_waits_for_the_answer_of_the_coordinator(pair: Pair, engine: Answering, method: str) -> None:
    arguments, value = AWAITED[method]
    assert await getattr(pair.remote, method)(*arguments) == value
    assert engine.called == [(method, *arguments)]
    assert not pair.remote.coordinator.calls._open


async def test_metadata_and_configuration_are_those_of_the_route(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    described: Any = {"name": "m"}
    monkeypatch.setattr(pair.engine, "model_metadata", lambda *_: described)
    monkeypatch.setattr(pair.engine, "model_config", lambda *_: {"backend": "python"})
    assert pair.remote.model_metadata("m", 1) == described
    assert pair.remote.model_config("m", 1) == {"backend": "python"}
    assert pair.remote.is_decoupled("m", 1) is False
    assert pair.remote.reserve_input("m", 1, 100, 0) is None, "its version has no shared memory"
    monkeypatch.setattr(pair.engine, "model_config", lambda *_: {"backend": "another one"})
    pair.session.on_routes_changed()
    assert pair.remote.model_config("m", 1) == {"backend": "another one"}, "what has arrived is taken in first"


async def test_a_body_is_read_into_memory_of_its_model(pair: Pair) -> None:
    pair.engine.version.shared_inputs = pair.memory.add_inputs("m")
    pair.know_route("m")
    room = pair.remote.reserve_input("m", -1, 4096, 0)
    assert room is not None
    assert len(room) == 4096
    assert pair.held.input_bytes >= 4096
    replica: Any = SimpleNamespace(reserve_input=lambda *given: given)
    pair.remote.requests.routes["m", -1].replica = replica
    assert pair.remote.reserve_input("m", -1, 100, 7) == (100, 7)


async def test_a_step_of_an_ensemble_goes_where_a_request_does_and_stays_while_the_server_exits(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair.engine, "model_config", lambda *_: {"name": "m", "backend": "python"})
    monkeypatch.setattr(pair.engine, "model_metadata", lambda *_: "its metadata")
    target: Any = pair.remote.find("m", -1)
    assert (target.number, target.metadata, target.config.name) == (1, "its metadata", "m")
    assert pair.remote.find("m", -1) is target
    sink = Sink()
    accepted: list[OpenRequest] = []
    target.accept(OpenRequest(request("m"), sink))
    await pair.settle(lambda: sink.responses)
    assert (pair.remote.replicas.received, pair.session.received_count) == (-1, 1), "the sum counts no step"

    replica: Any = SimpleNamespace(better_process=lambda: 0, accept=accepted.append, config="that of the replica")
    known = pair.remote.requests.routes["m", -1]
    known.replica = replica
    target.accept(OpenRequest(request("m"), sink))
    await pair.settle(lambda: len(sink.responses) == 2)
    pair.remote.replicas.is_exiting = True
    step = OpenRequest(request("m"), sink)
    target.accept(step)
    assert accepted == [step]
    assert pair.remote.replicas.received == -2
    known.target = None
    assert pair.remote.find("m", -1).config == replica.config


async def test_a_process_waits_for_an_announcement_until_the_coordinator_has_exited(pair: Pair) -> None:
    announced: list[str] = []
    pair.remote.services["ping"] = lambda: announced.append("ping")
    pair.process.calls.notify("ping")
    pair.remote.receive(wait=True)
    assert announced == ["ping"]
    pair.owner.close()
    pair.link.receive()
    with pytest.raises(NotReadyError, match="Server exiting"):
        pair.remote.receive(wait=True)


async def test_bytes_of_a_load_may_be_in_any_buffer(pair: Pair, engine: Answering) -> None:
    assert await pair.remote.load("m", {"file:1/model.py": memoryview(b"class")})
    assert engine.called == [("load", "m", {"file:1/model.py": b"class"})]
    await pair.remote.unload("m", unload_dependents=True)
    assert engine.called[1:] == [("m", True)]


async def test_what_the_coordinator_raises_is_raised_with_its_class_and_code(pair: Pair, engine: Answering) -> None:
    engine.error = InvalidRequestError("no such thing")
    for asked in (lambda: pair.remote.statistics("m"), lambda: pair.remote.stalls("m")):
        with pytest.raises(InvalidRequestError, match="no such thing"):
            asked()
    engine.error = NaiadError("taken", code=Code.ALREADY_EXISTS)
    with pytest.raises(NaiadError, match="taken") as raised:
        await pair.remote.load("m", {})
    assert raised.value.code is Code.ALREADY_EXISTS


async def test_an_unexpected_error_of_the_coordinator_is_logged_and_named(
    pair: Pair, engine: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    engine.error = ZeroDivisionError("oh")
    with pytest.raises(NaiadError, match="cannot call 'statistics': unexpected ZeroDivisionError: oh"):
        pair.remote.statistics("m")
    with pytest.raises(NaiadError, match="cannot call 'load': unexpected ZeroDivisionError: oh"):
        await pair.remote.load("m", {})
    assert caplog.text.count("cannot call '") >= 2
    assert caplog.text.count("ZeroDivisionError: oh") == 2


async def test_a_result_that_cannot_be_sent_is_an_error_and_not_silence(pair: Pair, engine: Answering) -> None:
    engine.value = lambda: None  # which pickle does not know
    with pytest.raises(NaiadError, match="cannot return the result of a call"):
        pair.remote.statistics("m")


async def test_calls_end_when_the_coordinator_exits(pair: Pair, engine: Answering) -> None:
    waiting = asyncio.ensure_future(pair.remote.load("m", {}))
    await asyncio.sleep(0)
    pair.owner.close()
    with pytest.raises(NotReadyError, match="Server exiting"):
        await waiting
    assert pair.ended == [True]
    with pytest.raises(NotReadyError, match="Server exiting"):
        pair.remote.is_live()
    with pytest.raises(NotReadyError, match="Server exiting"):
        await pair.remote.load("m", {})


async def test_the_answer_of_a_call_whose_caller_was_cancelled_is_ignored(pair: Pair, engine: Answering) -> None:
    waiting = asyncio.ensure_future(pair.remote.load("m", {}))
    await asyncio.sleep(0)
    waiting.cancel()
    await pair.settle(lambda: engine.called)
    assert await pair.remote.check_ready("m", 2)
    assert not pair.remote.coordinator.calls._open


async def test_calls_of_a_process_end_when_it_exits(pair: Pair) -> None:
    services = pair.remote.services
    services["announced"] = announced = [].append
    assert await asyncio.wait_for(pair.process.calls.call("announced", 5), 30) is None
    assert announced.__self__ == [5]  # type: ignore[attr-defined]
    late = pair.process.calls.call("announced", 6)
    assert not late.done()
    pair.process.close()
    for call in (late, pair.process.calls.call("announced", 7)):
        with pytest.raises(ProcessExitedError, match="the process has exited"):
            await call


async def test_a_call_that_cannot_be_made_harms_no_other(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.remote.notify("no such service")
    pair.link.send(wire.frame(99, b""))  # of no kind
    sink = Sink()
    pair.remote.submit(request("m"), sink)
    await pair.settle(lambda: sink.responses)
    assert "cannot call 'no such service'" in caplog.text
    assert "cannot handle a message of another process" in caplog.text


async def test_an_error_of_the_coordinator_is_freed_with_its_last_reference(pair: Pair, engine: Answering) -> None:
    engine.error = InvalidRequestError("no such thing")
    raised: weakref.ref[InvalidRequestError] | None = None
    gc.disable()
    try:
        try:
            pair.remote.statistics("m")
        except InvalidRequestError as error:
            raised = weakref.ref(error)
        await asyncio.sleep(0)
        assert raised is not None
        assert raised() is None
    finally:
        gc.enable()
