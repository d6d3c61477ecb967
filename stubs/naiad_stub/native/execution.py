"""Runs ModelInstanceExecute on a batch, and sends the responses that the backend makes, from any thread.

The counterpart of `naiad_stub.execution` for native backends. A response that the executing thread sends leaves with
the message that ends the batch: one message costs the host less than two. A backend that continues for a millisecond
or more after it has sent a response would delay that response, so from then on its responses leave at once. So do
those of other threads, and all of decoupled models.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from naiad_stub import wire
from naiad_stub.blocks import KeptBlocks
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.exceptions import TritonError
from naiad_stub.exchange import Batch, RequestRecord, ResponseWriter, error_entry, mark_entry, responses_frame
from naiad_stub.execution import end_batch
from naiad_stub.native.core import Core, NativeRequest, Recipient
from naiad_stub.native.functions.requests import RequestFunctions
from naiad_stub.native.statistics import Reports
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import FINAL_FLAG, HostSenders

_RESCHEDULE = 2
_LATE_NS = 1_000_000


class NativeExecution:
    """Runs batches on one instance of a native model.

    Args:
        channel: To the host.
        writer: Encodes responses.
        senders: The response senders.
        core: The objects of the backend.

    Attributes:
        reports: What the backend reports for the statistics.
    """

    def __init__(self, channel: Channel, writer: ResponseWriter, senders: HostSenders, core: Core) -> None:
        self._channel = channel
        self._writer = writer
        self._senders = senders
        self._core = core
        self.reports = Reports(channel)
        self._kept = KeptBlocks(channel.release_input)
        self._arrays: Dict[int, Any] = {}  # types of arrays of handles, by their length
        self._execute: Callable[..., int] = _no_execute
        self._requests: Optional[RequestFunctions] = None
        self._instance = 0
        self._thread = 0  # the thread that executes a batch
        self._batch: Optional[Batch] = None
        self._answers: List[Tuple[RequestRecord, InferenceResponse]] = []  # of that thread, not yet sent
        self._early: Set[int] = set()  # keys of requests whose last response left before the batch was done
        self._first_answer = 0  # when the first response of the batch was sent
        self._is_late = False  # the backend works on for long after it has sent a response

    def open(self, execute: Any, instance: int, requests: RequestFunctions) -> None:
        """Run batches on *instance* by *execute*, the entry point, from now on."""
        self._instance = instance
        execute.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint32]
        self._execute = execute
        self._requests = requests

    def begin(self, batch: Batch) -> None:
        """Execute a batch; responses may follow later."""
        self._senders.on_execute_start(batch)
        core, count, thread = self._core, len(batch.requests), threading.get_ident()
        array = self._arrays.get(count)
        if array is None:
            array = self._arrays[count] = ctypes.c_size_t * count
        handles = array()
        requests = []
        add = core.requests.add
        for index, request in enumerate(batch.requests):
            made = NativeRequest(request, batch.records[index], thread, self)
            made.handle = handles[index] = add(made)
            requests.append(made)
        self._batch, self._thread, self._first_answer = batch, thread, 0
        self.reports.thread = thread
        batch.started = time.monotonic_ns()
        error = self._execute(self._instance, handles, count) if count else 0
        ended = time.monotonic_ns()
        self._thread = self.reports.thread = 0
        entries = self._entries()
        if self._first_answer:
            self._is_late = ended - self._first_answer > _LATE_NS
        if error:
            entries += self._fail(requests, error)
        else:
            for each in requests:
                each.thread = 0
                if each.request._release_flags == _RESCHEDULE:
                    record = each.recipient.record
                    record.closed_after = 0
                    entries.append(mark_entry(record.key, wire.RESCHEDULE))
            each = None  # type: ignore[assignment] # as below
        self._batch = None
        requests.clear()
        made = request = None  # type: ignore[assignment] # the last references to a request, and so to the inputs
        unanswered: List[RequestRecord] = []
        if len(entries) < count:
            answered = self._early.union(int.from_bytes(entry[:8], "little") for entry in entries)
            unanswered = [record for record in batch.records if record.key not in answered]
        self._early.clear()
        self._senders.on_execute_return(batch, unanswered)
        end_batch(self._channel, self._kept, batch, entries, ended, self.reports.take())

    def send(self, recipient: Recipient, response: Optional[InferenceResponse], flags: int) -> None:
        """Send a response or flags. See `responses.ResponseDelivery`."""
        record = recipient.record
        if response is not None and recipient.states and response._error is None:
            response._outputs += recipient.states
            recipient.states = None
        if (
            record.closed_after is None
            and record.sender_state is None
            and response is not None
            and flags == FINAL_FLAG
            and record.batch is self._batch
            and threading.get_ident() == self._thread
            and not self._senders.decoupled
        ):
            record.closed_after = 1
            self._answers.append((record, response))
            if not self._first_answer:
                self._first_answer = time.monotonic_ns()
            if self._is_late:
                self.send_early()
            return
        if not self._first_answer and threading.get_ident() == self._thread:
            self._first_answer = time.monotonic_ns()
        self._senders.state_of(record).send(record, response, flags)

    def is_cancelled(self, recipient: Recipient) -> bool:
        """Whether the client cancelled the request. See `responses.ResponseDelivery`."""
        return self._senders.is_cancelled(recipient.record)

    def send_early(self) -> None:
        """Send the responses of the batch so far, if the calling thread executes it."""
        if self._answers and self._batch is not None and threading.get_ident() == self._thread:
            self._early.update(record.key for record, _ in self._answers)
            entries = self._entries()
            reports = self.reports.take()
            flags = len(reports) << wire.REPORTS_SHIFT
            now = time.monotonic_ns()
            self._channel.send(responses_frame(self._batch, entries, flags, now, b"".join(reports)))

    def _entries(self) -> List[bytes]:
        """The entries of all responses that were not sent yet."""
        answers, self._answers = self._answers, []
        return [self._entry(record, response) for record, response in answers]

    def _entry(self, record: RequestRecord, response: InferenceResponse) -> bytes:
        try:
            return self._writer.response(record, response, wire.FINAL)[0]
        except HostGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - this response cannot be sent; the others can
            return error_entry(record.key, TritonError.INTERNAL, str(error), wire.FINAL)

    def _fail(self, requests: List[NativeRequest], handle: int) -> List[bytes]:
        """Error entries for the requests of a batch that Execute failed; they belong to the server again."""
        error = self._core.take_error(handle)
        entries = []
        for request in requests:
            self._revoke(request)
            record = request.recipient.record
            if record.closed_after is not None or (record.sender_state is not None and record.sender_state.is_closed):
                continue
            record.closed_after = 0
            if record.sender_state is not None:
                record.sender_state.is_closed = True
            entries.append(error_entry(record.key, error.code, error.message, wire.FINAL))
        return entries

    def _revoke(self, request: NativeRequest) -> None:
        assert self._requests is not None, "`open` was called"
        self._requests.revoke(request)


def _no_execute(*_: Any) -> int:
    raise AssertionError("the backend is not loaded")
