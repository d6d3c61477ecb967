"""One model of one guest, and the loop that serves it.

The thread that waits for messages is the thread that runs the model, the main thread: a request needs no hand-over
between threads. Models with a coroutine for `execute` are served differently. When `execute` returns the first
coroutine, the main thread starts an event loop and stays in it. The loop watches the channel, so that tasks the model
left on the loop continue between batches.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Set, Tuple

from naiad_stub import loader, wire
from naiad_stub.blocks import OutputBlocks
from naiad_stub.bridges import Bridges
from naiad_stub.calls import HostCalls
from naiad_stub.channel import HostGoneError
from naiad_stub.exchange import Batch, BatchReader, ResponseWriter
from naiad_stub.execution import Execution
from naiad_stub.forked_calls import ForkedCalls
from naiad_stub.load_spec import LoadSpec, NativeCode
from naiad_stub.messages import TO_MAIN_THREAD, Finalize, Log, Trim, pack, unpack
from naiad_stub.model_loading import LoadError, initialize_model, method_of
from naiad_stub.queries import ServerQueries
from naiad_stub.readable_gpus import ReadableGpus
from naiad_stub.segment import Segment
from naiad_stub.sender import HostSenders

if TYPE_CHECKING:
    import asyncio

_NO_BYTES = memoryview(b"")
_ERROR_LEVEL = 2
_WARNING_LEVEL = 1
_CPU_ONLY = "FORCE_CPU_ONLY_INPUT_TENSORS"
_INFO_LEVEL = 0
_LOOP_END_SECONDS = 1.0


def _takes_device(spec: LoadSpec) -> bool:
    """Whether the model takes inputs in GPU memory (PB src/python_be.cc)."""
    if isinstance(spec.code, NativeCode) or _CPU_ONLY not in spec.model_config:
        return False
    import json  # needed by no model without such inputs

    parameters = json.loads(spec.model_config).get("parameters", {})
    return bool(parameters.get(_CPU_ONLY, {}).get("string_value") == "no")


class ModelServer:
    """Serves one model.

    Attributes:
        blocks: The blocks of the output segment.
        calls: The model's calls to other models.
        senders: Its response senders.
        queries: Its queries to the server.
        model: The model's own object, once it is loaded.
    """

    def __init__(
        self,
        queries: ServerQueries,
        inputs: Segment,
        outputs: Segment,
        spec: LoadSpec,
        shared: memoryview = _NO_BYTES,
        bridges: Optional[Bridges] = None,
    ) -> None:
        self.queries = queries
        channel = queries.channel
        self._channel = channel
        self._spec = spec
        self._instance_name = spec.instance_name
        output_names, state_names = list(spec.outputs), list(spec.states)
        self.blocks = OutputBlocks(outputs, channel, spec.gpu_pools, bridges)
        os.register_at_fork(after_in_child=self.blocks.detach)
        self._reader = BatchReader(
            inputs.view, list(spec.inputs), output_names, state_names, shared, lambda: _takes_device(spec), bridges
        )
        self._writer = ResponseWriter(
            self.blocks,
            list(dict.fromkeys(output_names + state_names)),
            self._log_once,
            is_decoupled=spec.is_decoupled,
        )
        self.senders = HostSenders(
            channel, self._writer, self._instance_name, self._log_warning, decoupled=spec.is_decoupled
        )
        self.blocks.on_notice = self._log_once
        self._gpus = ReadableGpus(channel, spec.instance_kind, spec.device_id)
        self.calls = HostCalls(channel, self.blocks, inputs.view, self._gpus.report)
        ForkedCalls(self.calls).register()
        self.model: Any = None
        self._execution: Any = None  # an Execution or NativeExecution
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._tasks: Set[asyncio.Task[None]] = set()
        self._is_busy = False  # a batch runs on the loop, and the next one must wait for it
        self._is_scheduled = False
        self._is_stopped = False

    def load(self) -> None:
        """Import, construct and initialise the model, whose runtime must be installed.

        Raises:
            LoadError: If any of that raises.
        """
        code = self._spec.code
        if isinstance(code, NativeCode):
            from naiad_stub.native.errors import ApiCallError
            from naiad_stub.native.model import load_native  # needed by no model in Python

            try:
                self.model, self._execution = load_native(
                    self._spec, code, self._writer, self.senders, self.blocks, self.calls, self.queries
                )
            except ApiCallError as error:
                raise LoadError(error.message, "", error.code) from error
        else:
            self.model = initialize_model(self._spec, code)
            self._execution = Execution(
                self._channel,
                self._writer,
                self.senders,
                method_of(self.model, "execute"),
                self._instance_name,
                code.file,
                self._log_failure,
            )
        if _takes_device(self._spec):
            self._gpus.report()  # before READY, after which tensors arrive
        self.calls.is_open = True
        self.blocks.before_waiting = self._execution.send_early

    def run(self) -> None:
        """Serve until the host sends FINALIZE.

        Raises:
            HostGoneError: If the host closes the channel.
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
        """The event loop that the main thread runs, None where it runs none."""
        return self._loop

    def finalize(self) -> None:
        """Call the model's `finalize`; what it raises is logged only, as by the reference."""
        self._end_loop()
        self.calls.is_open = False
        finalize = method_of(self.model, "finalize")
        if finalize is None:
            return
        try:
            finalize()
        except BaseException as error:  # noqa: BLE001 - models may raise anything, SystemExit included
            text = loader.format_exception(error)[1]
            self._log(_INFO_LEVEL, f"finalize of '{self._instance_name}' failed: {text}", loader.place(error))

    def _is_end(self, kind: int, payload: bytes) -> bool:
        """Act on a message other than EXECUTE; True if it is the order to finalize the model.

        Raises:
            WireError: If the message is not one that the host may send now.
        """
        message = unpack(TO_MAIN_THREAD, kind, payload)
        if isinstance(message, Trim):
            self.blocks.trim()
            sharing = sys.modules.get("naiad_stub.cuda.sharing")
            if sharing is not None:
                sharing.imports.trim()
            return False
        if isinstance(message, Finalize):
            return True
        raise wire.WireError("LOAD was sent twice")

    # -- on an event loop -----------------------------------------------------------------------------------------

    def _run_on_loop(self, batch: Batch, coroutine: Any) -> None:
        import asyncio  # expensive to import, and few models need it

        self._loop = loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._channel.on_queued = self._schedule
        loop.call_soon(self._channel.watch, loop)
        loop.call_soon(self._take_queued)  # what was queued before `on_queued` was set
        self._begin_task(batch, coroutine)
        try:
            self._run_until_stopped(loop)
        finally:
            self._channel.on_queued = None
            self._channel.unwatch(loop)
        if self._channel.is_gone:
            raise HostGoneError

    def _run_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run *loop*, even if the model's own tasks stop it or raise what asyncio does not catch."""
        while not self._is_stopped:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                text = loader.format_exception(error)[1]
                self._log(_ERROR_LEVEL, f"a task of '{self._instance_name}' failed: {text}", loader.place(error))

    def _stop(self) -> None:
        assert self._loop is not None
        self._is_stopped = True
        self._loop.stop()

    def _schedule(self) -> None:
        """Have the loop handle queued frames. Called by the thread that read them."""
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
        self._is_busy = not self.senders.decoupled
        task = self._loop.create_task(self._execution.complete(batch, coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._is_busy = False
        if not task.cancelled() and task.exception() is not None:  # HostGoneError: all others were sent as errors
            self._stop()
            return
        self._take_queued()

    def _end_loop(self) -> None:
        """Cancel what still runs on the loop, and close it."""
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

    # -- log ------------------------------------------------------------------------------------------------------

    def _log(self, level: int, message: str, place: Tuple[str, int] = ("model.py", 0)) -> None:
        # Posted, not sent: a sender's finalizer logs as well, and may run while this thread holds the send lock.
        self._channel.post(pack(Log(level, *place, message)))

    def _log_failure(self, message: str, place: Tuple[str, int]) -> None:
        self._log(_ERROR_LEVEL, message, place)

    def _log_warning(self, message: str) -> None:
        self._log(_WARNING_LEVEL, message)

    def _log_once(self, message: str) -> None:
        self._log(_WARNING_LEVEL | wire.LOG_ONCE, message)
