"""Runs a model's `auto_complete_config` in a guest that exits afterwards."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from naiad.core.errors import GuestExitedError, NaiadError
from naiad.core.logs import GUEST_LEVELS, GuestName, log_guest_line, log_guest_record
from naiad.guests.calls import ModelCall
from naiad.guests.exchange import ExecutingBatch, ExecutionReport, GuestResponse, ModelInterface, SingleResponse
from naiad.guests.launch import LaunchSpec
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferRequest, InferResponse
from naiad.protocol.request_plan import RequestPlan

logger = logging.getLogger("naiad.guest")


async def complete_in_guest(spec: LaunchSpec) -> str:
    """The configuration as JSON, completed by the guest that *spec* describes; its LOAD must ask for completion.

    The guest is a separate process, so that nothing the model does during completion affects its instances. ModelError
    if the model's code failed, GuestExitedError if the process exited or made no progress.
    """
    worker = Worker(
        spec, _CompletionDelegate(), ModelInterface(RequestPlan(model_name=spec.name, model_version=0)), NoServices()
    )
    try:
        return await worker.start()
    finally:
        await worker.kill()


class _CompletionDelegate:
    """Logs what the guest prints and logs; nothing else can happen before a model serves."""

    def __init__(self) -> None:
        self.requests = _NoRequests()
        self.log = self

    def on_hang(self, worker: Worker) -> None:
        """Never called: such a guest is not watched."""

    def on_stall(self, worker: Worker, keys: Sequence[int], seconds: float) -> None:
        """Never called: such a guest executes nothing."""

    def on_exit(self, worker: Worker, error: GuestExitedError) -> None:
        """Do nothing: `start` reports the exit."""

    def on_log_record(self, worker: Worker, level: int, file: str, line: int, message: str) -> None:
        log_guest_record(_guest(worker), GUEST_LEVELS.get(level, logging.INFO), file, line, message)

    def on_output_line(self, worker: Worker, stream: str, line: str) -> None:
        log_guest_line(_guest(worker), stream, line)


class _NoRequests:
    """The account of no request: none is sent, so hardly anything of this is called."""

    def on_response(self, worker: Worker, response: GuestResponse, started: int, ended: int) -> None: ...

    def on_forwarded_response(self, worker: Worker, response: SingleResponse, batch: ExecutingBatch) -> None: ...

    def request_of(self, key: int) -> InferRequest | None:  # noqa: ARG002 - the signature of the protocol
        return None

    def is_refill_urgent(self, took_ns: int) -> bool:  # noqa: ARG002 - the signature of the protocol
        return False

    def on_batch_done(self, worker: Worker, batch: ExecutingBatch, started: int, ended: int) -> None: ...

    def on_batch_unsent(self, worker: Worker, batch: ExecutingBatch, error: Exception) -> None: ...

    def is_held_back(self, worker: Worker) -> bool:  # noqa: ARG002 - the signature of the protocol
        return False

    def on_reports(self, reports: Sequence[ExecutionReport]) -> None: ...

    def on_progress(self, key: int, started: int) -> None: ...


def _guest(worker: Worker) -> GuestName:
    load = worker.spec.load
    return GuestName(load.model_name, load.model_version, worker.spec.name, worker.pid)


class NoServices:
    """Rejects the calls and queries of a model during completion: it has no server yet."""

    def on_call(self, worker: Worker, call: ModelCall) -> None:
        worker.send_result(call.number, InferResponse(call.request.model_name, -1, error=_no_services()), True)

    def on_results_consumed(self, worker: Worker, number: int, count: int) -> None: ...

    def on_calls_cancelled(self, worker: Worker, numbers: Sequence[int]) -> None: ...

    def on_results_discarded(self, worker: Worker, numbers: Sequence[int]) -> None: ...

    def is_calling(self, worker: Worker) -> bool:  # noqa: ARG002 - the signature of the protocol
        return False

    def on_query(self, worker: Worker, number: int, what: str, fields: Mapping[str, str]) -> None:  # noqa: ARG002 - the signature of the protocol
        worker.reply(number, error=_no_services())

    def on_notification(self, worker: Worker, what: str, fields: Mapping[str, str]) -> None: ...

    def on_worker_exit(self, worker: Worker) -> None:
        """Do nothing: the guest held nothing."""


def _no_services() -> NaiadError:
    return NaiadError(
        "the server does nothing for a model that is completing its configuration; do this in initialize or execute"
    )
