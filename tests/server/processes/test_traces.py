"""A request that the coordinator traces for another process: what is recorded, and when the record ends."""

from __future__ import annotations

from typing import Any

import pytest
from server.processes.pair import SILENT, Pair, Sink, request

from naiad.core.errors import InvalidRequestError, NaiadError
from naiad.protocol.inference import InferResponse
from naiad.server.processes.messages import TracedArrival
from naiad.server.processes.shared_services import RemoteLog, RemoteMetrics, RemoteState, RemoteTracer, SharedLog
from naiad.server.processes.traces import TracedSink

ARRIVAL = TracedArrival("HTTP", 5, {"traceparent": "t"})


class Recorder:
    """Implements `TraceRecorder`: keeps the names of what it records."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def record_transport(self, name: str, when: int) -> None:
        assert when > 0
        self.events.append(name)

    def record_response(self, response: InferResponse) -> None:
        self.events.append("response")

    def on_rejected(self) -> None:
        self.events.append("rejected")

    def end_request(self, error: NaiadError | None) -> None:
        self.events.append(("end", None if error is None else error.message))

    def close(self) -> None:
        self.events.append("close")


ANSWER = ["response", "INFER_RESPONSE_COMPLETE"]
SENDING = ["HTTP_SEND_START", "HTTP_SEND_END"]
END: list[Any] = [("end", None)]


class Traced:
    """A traced sink in front of another one."""

    def __init__(self, sink: Any) -> None:
        self.recorder: Any = Recorder()
        self.sink = TracedSink(self.recorder, sink, "HTTP")

    def take(self) -> list[Any]:
        events, self.recorder.events = self.recorder.events, []
        return list(events)


def test_a_trace_ends_when_the_last_response_was_sent() -> None:
    sink = Sink()
    traced = Traced(sink)
    traced.sink.send(InferResponse("m", 1), False)
    traced.sink.send(None, True)
    assert len(sink.responses) == 2
    assert traced.take() == [*ANSWER, "INFER_RESPONSE_COMPLETE", *END]
    traced.sink.on_sent(3, 4, final=False)
    assert traced.take() == SENDING
    traced.sink.on_sent(5, 6, final=True)
    assert traced.take() == [*SENDING, "close"]


def test_a_rejected_request_has_not_failed() -> None:
    sink = Sink()
    traced = Traced(sink)
    traced.sink.reject(InvalidRequestError("no"))
    (response,) = sink.responses
    assert response is not None
    assert response.error is not None
    assert traced.take() == END
    traced.sink.on_process_end()
    assert traced.take() == ["close"]


@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_trace_ends_with_the_last_response_if_nobody_will_report_that_it_was_sent(is_rejected: bool) -> None:
    for is_begun in (False, True):
        traced = Traced(Sink())
        if is_begun:
            traced.sink.send(InferResponse("m", 1), False)
            traced.take()
        traced.sink.on_process_end()
        assert traced.take() == [], "its model still executes it"
    if is_rejected:
        traced.sink.reject(InvalidRequestError("no"))
        assert traced.take() == [*END, "close"]
    else:
        traced.sink.send(None, True)
        assert traced.take() == ["INFER_RESPONSE_COMPLETE", *END, "close"]


class Tracer:
    """Implements what a session needs of `Tracer`: traces every request, or none."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.recorders: list[Any] = []
        self.started: list[tuple[Any, ...]] = []
        self._is_on = is_on

    def start(self, request: Any, protocol: str, headers: Any, received: int) -> Any:
        self.started.append((protocol, dict(headers), received))
        if not self._is_on:
            return None
        self.recorders.append(Recorder())
        request.trace = self.recorders[-1]
        return request.trace


def use(pair: Pair, **options: bool) -> Tracer:
    tracer: Any = Tracer(**options)
    pair.session._tracer = tracer
    return tracer  # type: ignore[no-any-return]


async def test_the_process_reports_when_it_has_sent_the_responses_to_a_traced_request(pair: Pair) -> None:
    tracer, sink = use(pair), Sink()
    pair.remote.submit(request("m"), sink, ARRIVAL)
    await pair.settle(lambda: tracer.recorders and "close" in tracer.recorders[0].events)
    assert tracer.started == [("HTTP", {"traceparent": "t"}, 5)]
    assert tracer.recorders[0].events == [*ANSWER, *END, *SENDING, "close"]
    assert len(sink.responses) == 1
    assert not pair.session._traces
    assert pair.session.received_count == 1


async def test_the_sending_of_each_response_is_reported_and_the_last_one_ends_the_trace(pair: Pair) -> None:
    tracer, sink = use(pair), Sink()
    pair.remote.submit(request(SILENT), sink, ARRIVAL)
    await pair.settle(lambda: pair.engine.sinks)
    for response in (InferResponse("m", 1), None):
        pair.engine.sinks[0].send(response, response is None)
        await pair.settle(lambda: SENDING[-1] in tracer.recorders[0].events)
    await pair.settle(lambda: "close" in tracer.recorders[0].events)
    assert tracer.recorders[0].events == [*ANSWER, *SENDING, "INFER_RESPONSE_COMPLETE", *END, *SENDING, "close"]
    assert (sink.ends, len(sink.responses)) == (1, 2)
    assert not pair.session._traces


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_traced_request_that_is_rejected_has_a_short_trace_or_none(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_late: bool
) -> None:
    def refuse(*_: object) -> None:
        raise InvalidRequestError("no")

    tracer, sink = use(pair), Sink()
    if not is_late:
        monkeypatch.setattr(pair.engine.version, "accept", refuse)
    pair.remote.submit(request(SILENT), sink, ARRIVAL)
    if is_late:
        await pair.settle(lambda: pair.engine.sinks)
        pair.engine.sinks[0].reject(InvalidRequestError("no"))
        await pair.settle(lambda: "close" in tracer.recorders[0].events)
    await pair.settle(lambda: sink.responses)
    assert [each and each.error and each.error.message for each in sink.responses] == ["no"]
    pair.link.flush()
    pair.owner.receive()
    assert not caplog.records, "it was traced, or no longer, when its end was reported"
    assert tracer.recorders[0].events == ([*END, *SENDING, "close"] if is_late else ["rejected"])
    assert not pair.session._traces
    assert not pair.session.request_count


async def test_a_request_whose_turn_has_not_come_is_not_traced(pair: Pair) -> None:
    tracer, sink = use(pair, is_on=False), Sink()
    pair.remote.submit(request("m"), sink, ARRIVAL)
    await pair.settle(lambda: sink.responses)
    assert [None if each is None else each.error for each in sink.responses] == [None]
    assert len(tracer.started) == 1
    assert not pair.session._traces


async def test_the_trace_of_a_request_ends_if_its_process_exits(pair: Pair) -> None:
    tracer = use(pair)
    pair.remote.submit(request(SILENT), Sink(), ARRIVAL)
    await pair.settle(lambda: pair.session._traces)
    pair.close()
    assert tracer.recorders[0].events == []
    (traced,) = [each for each in pair.engine.submitted if each.is_cancelled]
    assert traced is pair.engine.submitted[-1]
    pair.engine.sinks[0].send(None, True)
    assert tracer.recorders[0].events[-1] == "close"


async def test_a_tracer_of_a_process_asks_the_coordinator(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    changed: list[Any] = []

    def change(model: str, changes: Any) -> None:
        changed.append((model, changes))

    pair.process.calls.services |= {
        "is_tracing": lambda: True,
        "trace_settings": lambda model: asked.append(model) or {"trace_rate": "1"},
        "change_traces": change,
    }
    use(pair)
    tracer = RemoteTracer(pair.remote)
    assert tracer.is_on
    assert tracer.settings("m") == {"trace_rate": "1"}
    assert asked == ["m"]
    pair.remote.services["tracing"](False)
    assert not tracer.is_on
    await tracer.change("m", {})
    await tracer.change("m", {"trace_rate": "2"})
    assert changed == [("m", {"trace_rate": "2"})]
    sink = Sink()
    tracer.submit(pair.remote, request("m"), sink, "GRPC", {"a": "b"})
    await pair.settle(lambda: sink.responses)
    assert pair.session._tracer.started[0][:2] == ("GRPC", {"a": "b"})  # type: ignore[union-attr]


class Log:
    """What `ActiveLog` has of settings, which are strings here."""

    def __init__(self) -> None:
        self.settings: Any = "before"
        self.is_verbose = False
        self.reopened = 0

    def apply(self, settings: Any) -> None:
        self.settings, self.is_verbose = settings, settings == "verbose"

    def reopen(self) -> None:
        self.reopened += 1


async def test_settings_of_the_log_hold_in_all_processes(pair: Pair) -> None:
    sent: list[Any] = []

    class Processes:
        def broadcast(self, name: str, *arguments: Any) -> None:
            sent.append((name, *arguments))

        async def wait_sent(self) -> None:
            sent.append("waited")

    own: Any = Log()
    others: Any = Processes()
    shared = SharedLog(own, others)
    assert not shared.is_verbose
    await shared.change("verbose")  # type: ignore[arg-type]
    assert shared.is_verbose
    assert shared.settings == "verbose"
    assert sent == [("log_settings", "verbose"), "waited"]

    pair.process.calls.services |= {"log_settings": lambda: shared.settings, "change_log": shared.change}
    log: Any = Log()
    remote = RemoteLog(log, pair.remote)
    assert remote.is_verbose, "it was changed before this process was started"
    await shared.change("quiet")  # type: ignore[arg-type]
    assert remote.settings == "quiet"
    assert not remote.is_verbose
    await remote.change("verbose")  # type: ignore[arg-type]
    assert own.settings == log.settings == "verbose"
    assert remote.is_verbose
    pair.remote.services["reopen_log"]()
    assert log.reopened == 1
    pair.remote.services["log_settings"]("quiet")
    assert not remote.is_verbose


async def test_metrics_of_models_and_documents_of_the_page_are_those_of_the_coordinator(pair: Pair) -> None:
    pair.process.calls.services |= {
        "model_metrics": lambda: ["a family"],
        "console_document": lambda *given: given,
    }
    families: list[Any] = list(RemoteMetrics(pair.remote))
    assert families == ["a family"]
    assert await RemoteState(pair.remote).document("log", "a filter") == ("log", "a filter")
