"""Several instances of one native model in one guest: each executes batches on its own thread.

The main thread reads messages, as in any guest, and hands batches to the threads. Backend and model exist once; each
thread has a TRITONBACKEND_ModelInstance. The API forbids concurrent calls for one instance alone.
"""

from __future__ import annotations

import queue
import threading
from typing import Dict, List, Optional, Sequence

from naiad_stub.channel import HostGoneError
from naiad_stub.exchange import Batch
from naiad_stub.native.execution import NativeExecution


class Lanes:
    """Runs batches on several instances, each by a `NativeExecution`."""

    def __init__(self, executions: Sequence[NativeExecution]) -> None:
        self._batches: queue.SimpleQueue[Optional[Batch]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(execution,), name=f"naiad-instance-{number}", daemon=True)
            for number, execution in enumerate(executions)
        ]
        self._by_thread: Dict[int, NativeExecution] = {}
        for thread in self._threads:
            thread.start()

    def begin(self, batch: Batch) -> None:
        """Have an idle instance execute a batch."""
        self._batches.put(batch)

    def send_early(self) -> None:
        """See `NativeExecution.send_early`, for the instance of the calling thread."""
        execution = self._by_thread.get(threading.get_ident())
        if execution is not None:
            execution.send_early()

    def finish(self) -> None:
        """Wait until all batches are executed, and end the threads."""
        for _ in self._threads:
            self._batches.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, execution: NativeExecution) -> None:
        self._by_thread[threading.get_ident()] = execution
        while True:
            batch = self._batches.get()
            if batch is None:
                return
            try:
                execution.begin(batch)
            except HostGoneError:
                return
            batch = None  # its inputs are kept while anything refers to it


def executing(executions: List[NativeExecution]) -> Optional[NativeExecution]:
    """The one of *executions* that executes a batch on the calling thread."""
    thread = threading.get_ident()
    return next((execution for execution in executions if execution.reports.thread == thread), None)
