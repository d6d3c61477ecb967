"""The engine as a process beside the coordinator has it: each method is the coordinator's, with its errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server.processes.pair import Engine, Pair, Sink, request

from naiad.core.errors import Code, InvalidRequestError, NaiadError, NotReadyError
from naiad.engine.engine import Engine as RealEngine
from naiad.server.processes.coordinator_facade import CoordinatorFacade
from naiad.server.processes.messages import FrameKind, ProcessReport, UsedRegions, pack

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
    assert not pair.remote._calls


async def test_metadata_and_configuration_are_those_of_the_route(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    described: Any = {"name": "m"}
    monkeypatch.setattr(pair.engine, "model_metadata", lambda *_: described)
    monkeypatch.setattr(pair.engine, "model_config", lambda *_: {"backend": "python"})
    assert pair.remote.model_metadata("m", 1) == described
    assert pair.remote.model_config("m", 1) == {"backend": "python"}
    assert pair.remote.is_decoupled("m", 1) is False
    assert pair.remote.reserve_input("m", 1, 100, 0) is None, "its version has no shared memory"


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
    ended: list[bool] = []
    pair.remote._on_end = lambda: ended.append(True)
    waiting = asyncio.ensure_future(pair.remote.call("load", "m", {}))
    await asyncio.sleep(0)
    pair.owner.close()
    with pytest.raises(NotReadyError, match="Server exiting"):
        await waiting
    assert ended == [True]
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
    assert not pair.remote._calls


async def test_what_a_process_confirms_is_waited_for_until_it_does_or_exits(pair: Pair) -> None:
    commands: list[tuple[int, Any]] = []
    pair.remote.on_command = lambda kind, content: commands.append((kind, content))
    await asyncio.wait_for(pair.session.announce(FrameKind.TRACING, True), 30)
    assert commands == [(FrameKind.TRACING, True)]
    late = pair.session.announce(FrameKind.LOG_SETTINGS, None)
    assert not late.done()
    pair.session.close(NotReadyError("it has exited"))
    assert late.done()
    assert pair.session.announce(FrameKind.TRACING, True).done(), "it has exited"


async def test_regions_that_a_process_uses_are_those_that_it_names(pair: Pair) -> None:
    taken = pair.session.take_regions(3, ["a", "b"])
    pair.remote.send(pack(FrameKind.USED_REGIONS, UsedRegions(3, ["b"])))
    assert await asyncio.wait_for(taken, 30) == ["b"]
    late = pair.session.take_regions(4, ["a"])
    pair.session.close(NotReadyError("it has exited"))
    assert late.result() == ()
    assert pair.session.take_regions(5, ["a"]).result() == (), "it has exited"


async def test_a_process_that_answers_a_ping_is_alive(pair: Pair) -> None:
    assert pair.session.ping()
    assert not pair.session.ping(), "it has not answered yet"
    await pair.settle(lambda: not pair.session._is_pinged)
    assert pair.session.ping()


async def test_what_a_process_reports_of_itself_is_passed_on(pair: Pair) -> None:
    reports: list[Any] = []
    pair.session._on_report = lambda session, report: reports.append((session, report))
    pair.remote.send(pack(FrameKind.REPORT, ProcessReport(started=["a line"])))
    await pair.settle(lambda: reports)
    assert reports == [(pair.session, ProcessReport(started=["a line"]))]


async def test_a_message_that_cannot_be_handled_harms_no_other(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.remote.send(pack(FrameKind.USED_REGIONS, UsedRegions(9, [])))  # of a call that nobody has made
    sink = Sink()
    pair.remote.submit(request("m"), sink)
    await pair.settle(lambda: sink.responses)
    assert "cannot handle a message of another process" in caplog.text


async def test_the_coordinator_has_its_own_engine_and_waits_until_other_processes_know_of_changes() -> None:
    waited: list[str] = []

    class Loading(Answering):
        async def load(self, name: str, parameters: Any) -> bool:
            waited.append(f"load {name}")
            return True

        async def unload(self, name: str, *, unload_dependents: bool) -> None:
            waited.append(f"unload {name} {unload_dependents}")

    async def wait_sent() -> None:
        waited.append("sent")

    engine: Any = Loading()
    own = CoordinatorFacade(engine, wait_sent)
    for method, (arguments, value) in ASKED.items():
        assert getattr(own, method)(*arguments) == value
    for method in ("check_server_ready", "check_ready", "gather_counts", "repository_index"):
        assert await getattr(own, method)(*AWAITED[method][0]) == AWAITED[method][1]
    for method in ("model_metadata", "model_config", "reserve_input", "is_decoupled"):
        assert hasattr(RealEngine, method)
        getattr(own, method)("m", 1)
    sink = Sink()
    own.submit(request("m"), sink)
    assert own.received_count == len(sink.responses) == 1
    assert await own.load("m", {})
    await own.unload("m", unload_dependents=True)
    assert waited == ["load m", "sent", "unload m True", "sent"]
