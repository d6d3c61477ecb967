"""Runs a model's `execute` with the guest's own code, so that its checks and texts are those of a server.

`naiad_stub.execution` and `naiad_stub.sender` run here as in a guest. In place of the socket there is a channel that
passes their messages to the run of the request, and in place of the segment there are the responses themselves.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from naiad_stub import wire
from naiad_stub.exceptions import TritonError
from naiad_stub.exchange import Batch, RequestRecord, error_entry
from naiad_stub.execution import Execution
from naiad_stub.messages import Credit
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.runtime import ResponseSenders
from naiad_stub.sender import HostSenders, InferenceResponseSender
from naiad_stub.tensor import Tensor

from naiad.core.errors import Code, ModelError
from naiad.protocol.datatypes import Datatype
from naiad_embedded.testing.states import RequestState
from naiad_embedded.testing.values import Request, Response, response_of

_CODES = tuple(Code)
_TOKEN_BYTES = 8
_FRAME_HEAD = wire.FRAME.size


class AnyName:
    """The requested outputs of a model whose outputs are not configured: it contains every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Any:
        return iter(())


@dataclass(slots=True, eq=False)
class RequestRun:
    """One request and its responses so far."""

    request: Request
    make: Callable[[RequestRecord], InferenceRequest]  # the request that the model sees; again if scheduled again
    requested: Any
    _kept: RequestState | None = None
    responses: list[Response] = field(default_factory=list)  # the responses, without the final mark
    is_rescheduled: bool = False  # whether the model asked for the request to be scheduled again
    _is_final: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, response: Response | None, *, final: bool) -> None:
        with self._changed:
            if response is not None and self._kept is not None:
                response = self._kept.take(response)
            if response is not None:
                self.responses.append(response)
            self._is_final = self._is_final or final
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait for the last response; raises `ModelError` if it does not come in time."""
        with self._changed:
            if self._is_final:
                return
        gc.collect()  # a sender that was dropped in a cycle of references ends its request
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_final, seconds):
                raise ModelError(
                    f"the model did not end its request within {seconds:g} s ({len(self.responses)} responses so far): "
                    "its response sender was not given TRITONSERVER_RESPONSE_COMPLETE_FINAL. A slow model needs "
                    "load(..., timeout=SECONDS)"
                )


class GuestBatch(Batch):
    """A batch with the guest that it belongs to."""

    __slots__ = ("guest", "runs")

    def __init__(self, number: int, guest: Guest, runs: dict[int, RequestRun]) -> None:
        super().__init__(number, -1, None)
        self.guest = guest
        self.runs = runs


class Guest:
    """Runs one model's `execute`.

    *log* gets level and message of what the stub logs; *outputs* are the datatypes of the outputs that a response may
    have, by name; None to accept any.
    """

    def __init__(
        self,
        execute: Callable[[Any], Any] | None,
        *,
        instance_name: str,
        model_file: str,
        decoupled: bool,
        log: Callable[[int, str], None],
        outputs: Mapping[str, Datatype] | None = None,
    ) -> None:
        self._batches = itertools.count(1)
        self._keys = itertools.count(1)
        self._runs: dict[int, RequestRun] = {}
        self._responses: dict[bytes, Response] = {}
        self._causes: dict[str, BaseException] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        channel: Any = _Channel(self._deliver)
        writer: Any = _Writer(self._responses, outputs)
        self.senders = _TestSenders(channel, writer, instance_name, lambda text, *_: log(1, text), decoupled=decoupled)
        self._execution = _Execution(
            channel, writer, self.senders, execute, instance_name, model_file, lambda text, *_: log(2, text)
        )
        self._execution.causes = self._causes

    def run(self, runs: Sequence[RequestRun]) -> None:
        """Call `execute` with the requests, again with those that are scheduled again."""
        waiting = list(runs)
        while waiting:
            self._run_once(waiting)
            waiting = [run for run in waiting if run.is_rescheduled]

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def wait_for(self, awaitable: Any) -> Any:
        """Run an awaitable on the loop of the model's coroutines and wait for its result."""

        async def run() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._event_loop()).result()

    def cause_of(self, error: ModelError) -> BaseException | None:
        """The model's own exception behind an error."""
        return self._causes.get(error.message)

    def _run_once(self, runs: Sequence[RequestRun]) -> None:
        keyed = {next(self._keys): run for run in runs}
        batch = GuestBatch(next(self._batches), self, keyed)
        for key, run in keyed.items():
            run.is_rescheduled = False
            record = RequestRecord(key, run.requested, batch)
            batch.records.append(record)
            batch.requests.append(run.make(record))
            del record
        self._runs.update(keyed)
        coroutine = self._execution.begin(batch)
        if coroutine is not None:
            done = asyncio.run_coroutine_threadsafe(self._execution.complete(batch, coroutine), self._event_loop())
            if not self.senders.decoupled:
                done.result()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this model's coroutines, on a separate thread: a notebook's loop is busy running the cell."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="naiad-testing-loop", daemon=True
            )
            self._thread.start()
        return self._loop

    def _deliver(self, payload: bytes) -> None:
        _, count, *_ = wire.RESPONSES_HEAD.unpack_from(payload)
        position = wire.RESPONSES_HEAD.size
        for _ in range(count):
            key, flags, code, _, text_size, _ = wire.RESPONSE_HEAD.unpack_from(payload, position)
            position += wire.RESPONSE_HEAD.size
            text = payload[position : position + text_size]
            position += text_size
            self._take(self._runs[key], flags, code, text)
            self.senders.credit(key)
            if flags & wire.FINAL:
                del self._runs[key]

    def _take(self, run: RequestRun, flags: int, code: int, text: bytes) -> None:
        final = bool(flags & wire.FINAL)
        if flags & wire.RESCHEDULE:
            run.is_rescheduled = True
        elif flags & wire.EMPTY:
            run.take(None, final=final)
        elif flags & wire.ERROR:
            error = ModelError(text.decode(), code=_CODES[code])
            error.__cause__ = self.cause_of(error)
            run.take(Response({}, error=error), final=final)
        else:
            run.take(self._responses.pop(text), final=final)


class _Channel:
    """Replaces the guest's end of the socket."""

    is_gone = False

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver

    def add_handler(self, message_class: type, handler: Callable[[Any], None]) -> None:
        """Do nothing: no message arrives on its own."""

    def send(self, data: bytes) -> None:
        """Pass RESPONSES to the runs of their requests."""
        _, kind, _ = wire.FRAME.unpack_from(data)
        if kind == wire.Kind.RESPONSES:
            self._deliver(data[_FRAME_HEAD:])

    post = send

    def release_input(self, block: int) -> None:
        """Do nothing: inputs are not in a segment."""

    def poll(self) -> None:
        """Do nothing: no message arrives on its own."""

    def finish(self, waiter: Any) -> None:
        """Do nothing: no thread waits."""


class _Writer:
    """Keeps responses by tokens, which are in the messages in place of them."""

    def __init__(self, responses: dict[bytes, Response], outputs: Mapping[str, Datatype] | None) -> None:
        self._responses = responses
        self._outputs = outputs
        self._tokens = itertools.count(1)

    def response(self, record: RequestRecord, response: InferenceResponse, flags: int) -> tuple[bytes, int]:
        error = response.error()
        if error is not None:
            return error_entry(record.key, error.code(), error.message(), flags), 0
        problem = self._problem(response)
        if problem:
            return error_entry(record.key, TritonError.INTERNAL, problem, flags), 0
        token = next(self._tokens).to_bytes(_TOKEN_BYTES, "little")
        self._responses[token] = response_of(response, record.requested)
        return wire.RESPONSE_HEAD.pack(record.key, flags, 0, 0, _TOKEN_BYTES, 0) + token, 0

    def _problem(self, response: InferenceResponse) -> str:
        """What is wrong with the outputs of a response; empty if nothing is, or nothing is checked."""
        outputs = self._outputs
        if outputs is None:
            return ""
        for tensor in response.output_tensors():
            sent = Datatype(tensor._payload()[0])  # noqa: SLF001 - how the guest reads it, too
            declared = outputs.get(tensor.name())
            if declared is None:
                names = ", ".join(f"'{name}'" for name in outputs)
                return f"output '{tensor.name()}' is not declared in the model's configuration; it declares {names}"
            if sent is not declared:
                return (
                    f"output '{tensor.name()}' has the datatype {sent.name}, but the model's configuration declares "
                    f"{declared.name}"
                )
        return ""


class _TestSenders(HostSenders):
    """Response senders whose client is the test: it reads at once, and cancels if `Request.is_cancelled` is set."""

    def is_cancelled(self, handle: RequestRecord) -> bool:
        batch = handle.batch
        assert isinstance(batch, GuestBatch)
        state = batch.runs[handle.key].request.is_cancelled
        return state() if callable(state) else state

    def credit(self, key: int) -> None:
        self._on_credit(Credit(key, 1))


class _Execution(Execution):
    """Keeps the exceptions behind errors, for the test to show."""

    causes: dict[str, BaseException]

    def _describe(self, error: BaseException) -> str:
        if not isinstance(error, (Exception, SystemExit, asyncio.CancelledError)):
            raise error  # an interrupt, or pytest's own exception: for the test runner
        message = super()._describe(error)
        self.causes[message] = error
        return message


class BatchSenders(ResponseSenders):
    """Response senders of all models under test: a request has those of the model that received it."""

    def sender_of(self, request: InferenceRequest) -> InferenceResponseSender:
        """The sender of *request*; one that raises when used for a request that the model made itself."""
        record = request._handle  # noqa: SLF001 - the guest's half of the class
        senders = None if record is None else record.batch.guest.senders
        return InferenceResponseSender._of(senders, record)  # noqa: SLF001 - the guest's half of the class

    def is_cancelled(self, handle: RequestRecord) -> bool:
        batch = handle.batch
        assert isinstance(batch, GuestBatch)
        return batch.guest.senders.is_cancelled(handle)


def received_request(
    request: Request, tensors: list[Tensor], requested: Any, parameters: str, kept: RequestState | None = None
) -> Any:
    """A function that makes the request that the model sees from a record, with the states of that moment."""

    def make(record: RequestRecord) -> InferenceRequest:
        return InferenceRequest._received(  # noqa: SLF001 - made for this
            request.request_id,
            request.correlation_id,
            request.flags,
            request.timeout,
            [*tensors, *(kept.tensors() if kept is not None else ())],
            requested,
            parameters,
            record,
        )

    return make


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
