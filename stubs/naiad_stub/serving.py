"""One initialised model and the loop that serves it.

The thread that waits for messages is the thread that runs the model. Once `execute` has returned a coroutine, that
thread runs an event loop which watches the channel, so that whatever the model started on the loop goes on between
batches, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Set, Tuple

from naiad_stub import loader, request, tensor, wire
from naiad_stub.blocks import OutputBlocks
from naiad_stub.calls import CallDesk
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.exchange import Batch, BatchReader, ResponseWriter
from naiad_stub.execution import Execution
from naiad_stub.messages import TO_MAIN_THREAD, Finalize, Log, Trim, pack, unpack
from naiad_stub.model_loading import initialize_model
from naiad_stub.segment import Segment
from naiad_stub.sender import InferenceResponseSender, Sending

if TYPE_CHECKING:
    import asyncio

_ERROR_LEVEL = 2
_WARNING_LEVEL = 1
_INFO_LEVEL = 0
_LOOP_END_SECONDS = 1.0


class ModelServer:
    """One model of one guest.

    Attributes:
        model: The model's own object.
    """

    def __init__(self, channel: Channel, inputs: Segment, outputs: Segment, spec: Mapping[str, str]) -> None:
        """Import, construct and initialise the model.

        Raises:
            LoadError: If any of that raises.
        """
        self._channel = channel
        self._instance_name = spec["instance_name"]
        output_names, state_names = _names(spec["outputs"]), _names(spec.get("states", ""))
        self._blocks = OutputBlocks(outputs, channel)
        os.register_at_fork(after_in_child=self._blocks.forget)
        self._reader = BatchReader(inputs.view, _names(spec["inputs"]), output_names, state_names)
        writer = ResponseWriter(self._blocks, list(dict.fromkeys(output_names + state_names)))
        self._sending = Sending(
            channel, writer, self._instance_name, self._log_warning, decoupled=spec["decoupled"] == "1"
        )
        self._calls = CallDesk(channel, self._blocks, inputs.view)
        self._calls.get_response_sender_of = self._sender_of
        request.calls = self._calls
        request.is_cancelled = self._sending.is_cancelled
        tensor.hold = self._blocks.hold
        self.model = initialize_model(spec)
        self._calls.is_open = True
        self._execution = Execution(
            channel,
            writer,
            self._sending,
            getattr(self.model, "execute", None),
            self._instance_name,
            spec["model_file"],
            self._log_failure,
        )
        self._blocks.before_waiting = self._execution.send_early
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._tasks: Set[asyncio.Task[None]] = set()
        self._is_busy = False  # a batch runs on the loop, which the next one has to wait for
        self._is_scheduled = False
        self._is_stopped = False

    def run(self) -> None:
        """Serve until the host says to finalize.

        Raises:
            HostGoneError: If the host disappears.
        """
        while True:
            kind, payload = self._channel.receive()
            if kind == wire.Kind.EXECUTE:
                batch = self._reader.read(payload)
                coroutine = self._execution.begin(batch)
                if coroutine is not None:
                    self._run_on_loop(batch, coroutine)
                    return
            elif self._is_end(kind, payload):
                return

    def running_loop(self) -> Optional[asyncio.AbstractEventLoop]:
        """The event loop that this thread runs, None where it runs none."""
        return self._loop

    def finalize(self) -> None:
        """Call the model's `finalize`; what it raises is logged only (as the reference does)."""
        self._end_loop()
        self._calls.is_open = False
        finalize = getattr(self.model, "finalize", None)
        if finalize is None:
            return
        try:
            finalize()
        except BaseException as error:  # noqa: BLE001 - likewise
            text = loader.format_exception(error)[1]
            self._log(_INFO_LEVEL, f"finalize of '{self._instance_name}' failed: {text}", loader.place(error))

    # -- on an event loop -----------------------------------------------------------------------------------------

    def _run_on_loop(self, batch: Batch, coroutine: Any) -> None:
        import asyncio  # dear, and few models need it

        self._loop = loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._channel.queued = self._schedule
        loop.call_soon(self._channel.watch, loop)
        loop.call_soon(self._take_queued)  # what was read before anybody could be told of it
        self._begin_task(batch, coroutine)
        try:
            self._run_until_stopped(loop)
        finally:
            self._channel.queued = None
            self._channel.unwatch(loop)
        if self._channel.is_gone:
            raise HostGoneError

    def _run_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run *loop* on, whatever the model's own tasks do: stop it, or raise what asyncio lets through."""
        while not self._is_stopped:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                text = loader.format_exception(error)[1]
                self._log(_ERROR_LEVEL, f"a task of '{self._instance_name}' failed: {text}", loader.place(error))

    def _is_end(self, kind: int, payload: bytes) -> bool:
        """Act on a message other than EXECUTE; True if it is the order to finalize the model.

        Raises:
            WireError: If the message is not one that the host may send now.
        """
        message = unpack(TO_MAIN_THREAD, kind, payload)
        if isinstance(message, Trim):
            self._blocks.trim()
            return False
        if isinstance(message, Finalize):
            return True
        raise wire.WireError("LOAD was sent twice")

    def _stop(self) -> None:
        assert self._loop is not None
        self._is_stopped = True
        self._loop.stop()

    def _schedule(self) -> None:
        """Have the loop look at queued frames. Called by whichever thread reads them."""
        if not self._is_scheduled and self._loop is not None:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take_queued)

    def _take_queued(self) -> None:
        self._is_scheduled = False
        assert self._loop is not None
        if self._channel.is_gone:
            self._stop()
            return
        while not self._is_busy:
            frame = self._channel.take()
            if frame is None:
                return
            kind, payload = frame
            if kind == wire.Kind.EXECUTE:
                batch = self._reader.read(payload)
                coroutine = self._execution.begin(batch)
                if coroutine is not None:
                    self._begin_task(batch, coroutine)
            elif self._is_end(kind, payload):
                self._stop()
                return

    def _begin_task(self, batch: Batch, coroutine: Any) -> None:
        assert self._loop is not None
        self._is_busy = not self._sending.decoupled
        task = self._loop.create_task(self._execution.complete(batch, coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._is_busy = False
        if not task.cancelled() and task.exception() is not None:  # the host is gone
            self._stop()
            return
        self._take_queued()

    def _end_loop(self) -> None:
        """Cancel what still runs on the loop and close it."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        import asyncio

        tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=_LOOP_END_SECONDS))
            loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()

    # -- hooks of the API -----------------------------------------------------------------------------------------

    def _sender_of(self, received: request.InferenceRequest) -> InferenceResponseSender:
        ticket = received._handle  # noqa: SLF001 - made for this
        if ticket is not None:
            ticket.has_sender = True
        return InferenceResponseSender._of(self._sending, ticket)  # noqa: SLF001 - likewise

    def _log(self, level: int, message: str, place: Tuple[str, int] = ("model.py", 0)) -> None:
        # Posted: a sender's finalizer logs, too, and may run while this thread sends.
        self._channel.post(pack(Log(level, *place, message)))

    def _log_failure(self, message: str, place: Tuple[str, int]) -> None:
        self._log(_ERROR_LEVEL, message, place)

    def _log_warning(self, message: str) -> None:
        self._log(_WARNING_LEVEL, message)


def _names(joined: str) -> list[str]:
    return joined.split("\0") if joined else []
