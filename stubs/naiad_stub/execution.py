"""Runs `execute` on a batch, and turns what it returns or raises into responses.

A batch ends with one RESPONSES message with DONE, which has the responses that `execute` returned. Requests without one
are left to their senders (`naiad_stub.sender`). If `execute` returns a coroutine, the event loop runs it: in the
default mode the next batch waits for it, in decoupled mode the batch is DONE at once and the coroutine responds by
senders.

Texts of errors are the reference's (PB src/pb_stub.cc), because clients and tests look for them.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Coroutine
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from naiad_stub import limits, loader, wire
from naiad_stub.blocks import KeptBlocks
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.exchange import Batch, RequestRecord, ResponseWriter, error_entry, mark_entry, responses_frame
from naiad_stub.primitives import get_ident
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse
from naiad_stub.sender import HostSenders

_RELEASE_RESCHEDULE = 2
_DEVICE_MEMORY = "naiad_stub.cuda.memory"
_OF_NO_TENSOR = re.compile(r"'NoneType' object has no attribute '(as_numpy|name|shape|triton_dtype|is_cpu|to_dlpack)'")


class Execution:
    """Runs batches on one model.

    Args:
        channel: To the host.
        writer: Encodes responses.
        senders: The response senders.
        execute: The model's method, None if it has none.
        instance_name: For errors.
        model_file: For errors.
        log: Writes an error to the server's log, with a file and line of the model.
    """

    def __init__(
        self,
        channel: Channel,
        writer: ResponseWriter,
        senders: HostSenders,
        execute: Optional[Callable[[Any], Any]],
        instance_name: str,
        model_file: str,
        log: Callable[[str, Tuple[str, int]], None],
    ) -> None:
        self._channel = channel
        self._writer = writer
        self._senders = senders
        self._execute = execute
        self._instance_name = instance_name
        self._model_file = model_file
        self._log = log
        self._kept = KeptBlocks(channel.release_input)
        utils = sys.modules.get("triton_python_backend_utils")
        self._missing_input: Dict[str, Any] = getattr(utils, "_missing_input", {})  # a custom one has none
        self._batch: Optional[Batch] = None  # whose entries are being made
        self._thread = 0  # the thread that makes them
        self._entries: List[bytes] = []  # made and not yet sent
        self._early: Set[bytes] = set()  # keys of entries that were sent before their batch was done

    def begin(self, batch: Batch) -> Any:
        """Call `execute` and end the batch; if it is a coroutine, return that for `complete` instead."""
        self._senders.on_execute_start(batch)
        batch.started = time.monotonic_ns()
        if self._missing_input:
            self._missing_input.clear()
        if batch.failed and not batch.requests:
            self._finish(batch, [])
            return None
        try:
            if self._execute is None:
                raise TritonModelException(f"Python model {self._model_file} does not implement `execute` method.")
            # A copy of the list: the model may change it, and responses are matched to requests by position.
            returned = self._execute(batch.requests[:])
            # Looked at first, as `isinstance` with an abstract class costs as much as a small array.
            if type(returned) is not list and isinstance(returned, Coroutine):
                return returned
            entries = self._entries_of(batch, returned)
        except BaseException as error:  # noqa: BLE001 - models may raise anything, also SystemExit
            self._raise_if_gone(error)
            entries = self._fail(batch.records, error)
        returned = None
        self._finish(batch, entries)
        return None

    def _raise_if_gone(self, error: BaseException) -> None:
        """Raise *error* if the host is gone. That of a forked child, which a pool raises here, is the model's own."""
        if isinstance(error, HostGoneError) and self._channel.is_gone:
            raise error

    async def complete(self, batch: Batch, coroutine: Any) -> None:
        """Run the coroutine that `execute` returned, and end the batch."""
        decoupled = self._senders.decoupled
        late = _OpenBatch(batch) if decoupled else None
        if late is not None:  # the next batch need not wait for this one
            self._finish(batch, [], is_running=True)
        try:
            returned = await coroutine
            if late is None:
                entries = self._entries_of(batch, returned)
            else:
                self._reject_returned(returned)
                entries = self._reschedule_marks(late.requests, late.records)
        except BaseException as error:  # noqa: BLE001 - models may raise anything, also SystemExit
            self._raise_if_gone(error)
            # The reference leaves the clients of a decoupled model waiting.
            entries = self._fail(batch.records if late is None else late.records, error)
        returned = None
        if late is None:
            self._finish(batch, entries)
            return
        self._send_late(batch, entries)
        if late.is_forgotten():
            import asyncio  # the event loop has imported it already

            # As in `_finish`, but in the loop's next turn: this coroutine refers to the requests.
            asyncio.get_running_loop().call_soon(gc.collect)

    def _entries_of(self, batch: Batch, returned: Any) -> List[bytes]:
        """Entries for what `execute` returned.

        Raises:
            TritonModelException: If it may not return that; the whole batch fails.
        """
        if self._senders.decoupled:
            self._reject_returned(returned)
            return self._reschedule_marks(batch.requests, batch.records)
        if returned is None:
            return self._reschedule_marks(batch.requests, batch.records)
        if not isinstance(returned, list):
            raise TritonModelException(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(batch.requests):
            raise TritonModelException(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(batch.requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for response, request, record in zip(returned, batch.requests, batch.records):
            if type(response) is not InferenceResponse or request._release_flags == _RELEASE_RESCHEDULE:
                _check_returned(response, request)
            if record.sender_state is not None and response is not None:
                record.sender_state.check(has_response=True, final=True)
        self._batch, self._thread, self._entries = batch, get_ident(), []
        for response, request, record in zip(returned, batch.requests, batch.records):
            if response is not None:
                entry = self._entry(record, response)
                self._entries.append(entry)
                _close(record, 1)
            elif request._release_flags == _RELEASE_RESCHEDULE:
                self._entries.append(mark_entry(record.key, wire.RESCHEDULE))
        entries, self._entries, self._thread = self._entries, [], 0
        return entries

    def send_early(self) -> None:
        """Send the entries made so far: a later one needs a block, which may become free only by sending these."""
        if self._batch is not None and self._entries and get_ident() == self._thread:
            entries, self._entries = self._entries, []
            self._early.update(_key(entry) for entry in entries)
            self._channel.send(responses_frame(self._batch, entries, 0, time.monotonic_ns()))

    def _reject_returned(self, returned: Any) -> None:
        if returned is not None:
            raise TritonModelException(
                f"Python model '{self._instance_name}' is using the decoupled mode and the execute function must "
                "return None."
            )

    def _reschedule_marks(self, requests: List[InferenceRequest], records: List[RequestRecord]) -> List[bytes]:
        """Entries for the requests that the model asks to be scheduled again."""
        return [
            mark_entry(record.key, wire.RESCHEDULE)
            for request, record in zip(requests, records)
            if request._release_flags == _RELEASE_RESCHEDULE and _close(record)
        ]

    def _entry(self, record: RequestRecord, response: InferenceResponse) -> bytes:
        try:
            return self._writer.response(record, response, wire.FINAL)[0]
        except HostGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - this response cannot be sent; the others can
            return error_entry(record.key, TritonError.INTERNAL, self._message(str(error)), wire.FINAL)

    def _finish(self, batch: Batch, entries: List[bytes], *, is_running: bool = False) -> None:
        """Tell the host that `execute` has returned, with the responses it returned."""
        ended = time.monotonic_ns()
        unanswered: List[RequestRecord] = []
        if len(entries) < len(batch.records):
            answered = {_key(entry) for entry in entries}.union(self._early)
            self._early.clear()
            unanswered = [t for t in batch.records if t.key.to_bytes(8, "little") not in answered]
        self._senders.on_execute_return(batch, unanswered)
        end_batch(self._channel, self._kept, batch, entries, ended)
        if unanswered and not is_running and not all(record.has_sender for record in unanswered):
            # A request without response and without sender was most likely forgotten: its record is dropped, which
            # ends the request with an error. If the model left it in a reference cycle, only the garbage collector
            # drops it, and the client would wait until that runs by chance. So it runs here; models that respond to
            # every request never pay for it.
            del unanswered
            gc.collect()

    def _fail(self, records: List[RequestRecord], error: BaseException) -> List[bytes]:
        """Error entries for all requests of *records* that do not have their last response."""
        message = self._describe(error)
        return [
            error_entry(record.key, TritonError.INTERNAL, message, wire.FINAL) for record in records if _close(record)
        ]

    def _send_late(self, batch: Batch, entries: List[bytes]) -> None:
        """Send entries of a batch that was DONE before."""
        if entries:
            self._channel.send(responses_frame(batch, entries, 0, time.monotonic_ns()))

    def _describe(self, error: BaseException) -> str:
        """The text for clients; the log gets the traceback as well."""
        limits.exit_if_out_of_memory(error)
        memory = sys.modules.get(_DEVICE_MEMORY)
        if memory is not None and limits.is_device_full(error):
            memory.free_reserves()  # so that the next request has them
        text, traceback_text = loader.format_exception(error)
        if isinstance(error, TritonModelException) and error.__traceback__ is not None:
            # If this module raised it and not the model's code, the frames are the stub's and do not help the user.
            innermost = error.__traceback__
            while innermost.tb_next is not None:
                innermost = innermost.tb_next
            if innermost.tb_frame.f_globals.get("__name__") == __name__:
                text = str(error)
        message = self._message(text)
        log = f"{message}\n{traceback_text}" if text not in traceback_text else message
        self._log(f"{log}{self._advice(error)}", loader.place(error))
        return message

    def _advice(self, error: BaseException) -> str:
        """Which input the request had not, where a model took that for a tensor; empty otherwise."""
        if not self._missing_input or not isinstance(error, AttributeError) or not _OF_NO_TENSOR.match(str(error)):
            return ""
        import difflib  # only here: most models never need it

        name, names = self._missing_input["name"], self._missing_input["names"]
        close = [each for each in names if each.lower() == name.lower()]
        close = close or difflib.get_close_matches(name, names, 1, 0.5)
        meant = f"; is '{close[0]}' meant?" if close else ""
        had = ", ".join(f"'{each}'" for each in names) or "none"
        return (
            f"\nThe request has no input '{name}', so get_input_tensor_by_name returned None. Its inputs: {had}{meant}"
        )

    def _message(self, text: str) -> str:
        return f"Failed to process the request(s) for model '{self._instance_name}', message: {text}"


def end_batch(
    channel: Channel, kept: KeptBlocks, batch: Batch, entries: List[bytes], ended: int, reports: Sequence[bytes] = ()
) -> None:
    """Send the message that ends *batch*, with its remaining entries, and release its inputs if nothing uses them.

    *reports* are what a native backend has reported of it, packed, at most `wire.MAX_REPORTS`.
    """
    flags, packed = wire.DONE, b""
    if reports:
        flags, packed = flags | len(reports) << wire.REPORTS_SHIFT, b"".join(reports)
    if batch.failed:
        entries = [*entries, *batch.failed]
    batch.requests = []
    borrowed, batch.borrowed = batch.borrowed, None
    reference = None if borrowed is None else borrowed.drop()
    if reference is not None:
        flags |= wire.KEPT
    shared, batch.shared = batch.shared, None
    shared_references = () if shared is None else [each.drop() for each in shared.values()]
    is_shared_kept = any(each is not None for each in shared_references)
    if is_shared_kept:
        flags |= wire.KEPT_SHARED
    channel.send(responses_frame(batch, entries, flags, ended, packed))
    if reference is not None:  # only now: the host must know that the block is kept before it is released
        kept.add(batch.block, reference)
    if is_shared_kept:
        kept.add(-1 - batch.number, *shared_references)
    batch.records = []


def _check_returned(response: Any, request: InferenceRequest) -> None:
    """Raise if `execute` may not return *response* for *request*."""
    if request._release_flags == _RELEASE_RESCHEDULE:
        if response is not None:
            raise TritonModelException(
                "Expected a None object in the execute function return list for reschduled request, "
                f"found type '{type(response)}'."
            )
    elif response is not None and not isinstance(response, InferenceResponse):
        raise TritonModelException(
            "Expected an 'InferenceResponse' object in the execute function return list, "
            f"found type '{type(response)}'."
        )


def _key(entry: bytes) -> bytes:
    return entry[:8]  # an entry begins with its key


class _OpenBatch:
    """What a coroutine needs of its batch after that was DONE."""

    __slots__ = ("records", "requests")

    def __init__(self, batch: Batch) -> None:
        self.requests = batch.requests
        self.records = batch.records

    def is_forgotten(self) -> bool:
        """Whether the model has not responded to one of the requests, and does not have its sender."""
        return any(not record.has_sender and not record.sender_state.is_closed for record in self.records)


def _close(record: RequestRecord, responses: int = 0) -> bool:
    """Close the request's sender; False if it had its last response already."""
    record.closed_after = responses
    if record.sender_state is None:
        return True
    was_open = not record.sender_state.is_closed
    record.sender_state.is_closed = True
    return was_open
