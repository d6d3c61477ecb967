"""The replicas that this process runs by order of the coordinator, and the requests to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.server.options import ServerOptions
from naiad.core.errors import NaiadError, NotReadyError, unexpected_error
from naiad.core.logs import ServerLine
from naiad.engine.ensembles.execution import EnsembleExecution, graph_of
from naiad.engine.ensembles.step import StepModels
from naiad.engine.lifecycle.placement import COORDINATOR
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.readiness import are_ready
from naiad.engine.serving.replicas import ProcessCounts, ReplicaOrder, ReplicaReport
from naiad.engine.serving.version import ModelVersion
from naiad.engine.statistics.counters import Statistics
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.messages import CallResult, FrameKind, Notice, RemoteCall, error_fields, pack
from naiad.server.processes.own_ensembles import OwnEnsemble
from naiad.server.processes.remote_guests import GuestRelay, Routes
from naiad.server.processes.request_session import GoneError

logger = logging.getLogger("naiad.engine")

_REPORT_SECONDS = 1.0
# A message that has arrived is handled by then, also if the loop has more to do than one turn takes in.
_ARRIVED_SECONDS = 0.01


class OwnReplica:
    """One replica, and the way of this process's requests to it, which it takes after `open`."""

    def __init__(self, version: ModelVersion, row: int, table: LoadTable) -> None:
        self.version = version
        self._row = row
        self._table = table
        self._is_open = False
        self._instances = 0  # that can serve now
        version.observe_load(self.note_load)

    def open(self) -> None:
        self._is_open = True
        self.on_change()

    def close(self) -> None:
        """Take none any more; those in flight go on."""
        self._is_open = False
        self.on_change()

    def on_change(self) -> None:
        self._instances = self.version.serving_count if self._is_open else 0
        self._table.note_instances(self._row, self._instances)

    def note_load(self, in_flight: int) -> None:
        self._table.note_requests(self._row, in_flight)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        return self.version.reserve_input(size, ahead)

    def takes_call(self, *, is_decoupled: bool) -> bool:
        """Whether it executes a call of a guest of this process, by an instance that is idle."""
        version = self.version
        if not self._is_open or version.reason or (version.config.decoupled and not is_decoupled):
            return False
        return version.has_idle()

    def better_process(self) -> int | None:
        """The process in which a request is better off than here; None for none."""
        version = self.version
        if not self._instances or version.reason:
            found = self._table.better_process(self._row, 0, 0)
            return COORDINATOR if found is None else found
        if version.takes_at_once():
            return None
        return self._table.better_process(self._row, version.in_flight, self._instances)

    def submit(self, opened: OpenRequest) -> None:
        """Submit a request, which stays here; raises as `EngineFacade.submit`."""
        version = self.version
        version.submit(opened)
        self._table.note_requests(self._row, version.in_flight)

    def submit_call(self, opened: OpenRequest, on_taken: Callable[[str], None]) -> None:
        """Submit a call of another process; *on_taken* gets the idle instance's name; `GoneError` without one."""
        version = self.version
        if not version.has_idle():
            raise GoneError(f"no instance of model '{version.config.name}' is idle any more; send the call again")
        version.submit(opened)
        self.note_load(version.in_flight)
        on_taken("" if opened.worker is None else opened.worker.spec.name)

    def report(self) -> ReplicaReport:
        version = self.version
        workers = [each.worker for each in version.instances if each.worker is not None]
        return ReplicaReport(
            version.counts(),
            version.statuses(),
            any(worker.readiness is not None for worker in workers),
            version.typical,
        )


class OwnReplicas:
    """All replicas of this process."""

    options: ServerOptions  # set before the first order
    models: StepModels  # where to find the models of ensembles' steps; set before the first order

    def __init__(
        self,
        send: Callable[[bytes], None],
        on_opened: Callable[[int], None],
        routes: Routes,
    ) -> None:
        """*send* is to the coordinator; *on_opened* gets the load of a replica that takes requests, or has ended."""
        self.memory: LinkMemory | None = None  # that guests here share with other processes; None to share none
        self._send = send
        self._on_opened = on_opened
        self._loop = asyncio.get_running_loop()
        self._table: LoadTable | None = None
        self._replicas: dict[int, OwnReplica] = {}
        self._ensembles: dict[int, OwnEnsemble] = {}
        self.is_exiting = False  # clients' requests go to the coordinator, which rejects them
        self._starts: dict[int, asyncio.Task[None]] = {}
        self._stops: dict[int, asyncio.Task[None]] = {}
        self.received = 0  # requests of this process's clients that it has answered, or sent to other replicas
        self.on_closed: Callable[[], None] = lambda: None  # called when a replica takes requests no more
        self._relay = GuestRelay(self._notify, routes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._orders: Mapping[str, Callable[..., Any]] = {
            "start": self._start,
            "stop": self._stop,
            "check": self._check,
            "report": self._report,
            "waits": self._report_waits,
        }
        self._on_notices: Mapping[str, Callable[..., None]] = {
            "exiting": self._close,
        }
        self._reporting = self._loop.create_task(self._report_periodically())

    def use_table(self, descriptor: int, processes: int, own: int) -> None:
        """Tell other processes on that table how much there is to do here."""
        self._table = LoadTable(descriptor, processes, own)

    def find(self, number: int) -> OwnReplica | None:
        """The replica of the version with that number of its load, if this process has one."""
        return self._replicas.get(number)

    def find_ensemble(self, number: int) -> OwnEnsemble | None:
        """The ensemble with that number of its load, if this process executes requests to it."""
        return self._ensembles.get(number)

    @property
    def request_count(self) -> int:
        """Number of requests of this process's replicas and ensembles without their last response."""
        ensembles = sum(ensemble.execution.in_flight for ensemble in self._ensembles.values())
        return ensembles + sum(replica.version.in_flight for replica in self._replicas.values())

    def process_of(self, row: int | None) -> int:
        """The process with the least to do for a version without a replica here; *row* as in `VersionRoute`."""
        found = None if row is None or self._table is None else self._table.better_process(row, 0, 0)
        return COORDINATOR if found is None else found

    def note_sent(self, row: int, process: int) -> None:
        if self._table is not None:
            self._table.note_sent(row, process)

    def maintain(self) -> None:
        for replica in self._replicas.values():
            replica.version.maintain()
            replica.note_load(replica.version.in_flight)
            replica.on_change()

    async def finish_requests(self, timeout: float) -> None:
        """Let the requests of all replicas finish within *timeout* seconds; cancelled ones are not waited for."""
        await asyncio.gather(*(each.version.finish_requests(timeout) for each in self._replicas.values()))

    async def stop(self, timeout: float) -> None:
        self._reporting.cancel()
        self._relay.close()
        deadline = self._loop.time() + timeout
        await asyncio.gather(*(self._stop(number, timeout) for number in list(self._ensembles)))  # their steps go on
        left = max(deadline - self._loop.time(), 0.0)
        await asyncio.gather(*(self._stop(number, left) for number in {*self._replicas, *self._starts}))

    # -- orders ---------------------------------------------------------------------------------------------------

    def on_order(self, order: RemoteCall) -> None:
        task = self._loop.create_task(self._carry_out(order))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, order: RemoteCall) -> None:
        value, error = None, None
        try:
            value = await self._orders[order.method](*order.arguments)
        except NaiadError as problem:
            error = error_fields(problem)
        except asyncio.CancelledError:
            error = error_fields(NotReadyError("the model is being unloaded"))
        except Exception as problem:
            logger.exception("cannot carry out '%s'", order.method)
            error = error_fields(unexpected_error(f"carry out '{order.method}'", problem))
        self._send(pack(FrameKind.ORDERED, CallResult(order.number, value, error)))

    async def _start(self, order: ReplicaOrder) -> ReplicaReport:
        if order.steps:
            return self._start_ensemble(order)
        task = self._starts[order.number] = self._loop.create_task(self._start_version(order))
        try:
            await task
        finally:
            del self._starts[order.number]
        replica = self._replicas[order.number]
        replica.open()
        self._on_opened(order.number)
        return replica.report()

    async def _start_version(self, order: ReplicaOrder) -> None:
        config = _config_of(order)
        inputs = None if self.memory is None else self.memory.add_inputs(config.name)
        specs = [replace(spec, link_memory=self.memory, inputs=inputs) for spec in order.specs]
        version = ModelVersion(
            config, order.version, specs, order.policy, self._relay, order.samples, number=order.number
        )
        self._log_there(version)
        self._measure(version.totals, order, config)
        assert self._table is not None
        replica = OwnReplica(version, order.row, self._table)
        await version.start()
        self._replicas[order.number] = replica
        version.on_change = lambda: self._on_change(replica)

    def _start_ensemble(self, order: ReplicaOrder) -> ReplicaReport:
        config = _config_of(order)
        graph = graph_of(config.message, order.steps)
        execution = EnsembleExecution(config, order.version, order.number, graph, self.models, lambda _: None)
        self._measure(execution.totals, order, config)
        assert self._table is not None
        ensemble = self._ensembles[order.number] = OwnEnsemble(execution, order.row, self._table)
        self._on_opened(order.number)
        return ensemble.report()

    def _measure(self, totals: Statistics, order: ReplicaOrder, config: ModelConfig) -> None:
        totals.namespace = order.namespace
        totals.measure(self.options.metrics.config, config)
        if self.options.http.ui:
            totals.count_latencies(config)

    def _log_there(self, version: ModelVersion) -> None:
        """Have the coordinator log what the guests of a replica log: some of it once for all instances of a version."""
        version.log.pass_on(partial(self._notify, "record", version.number), partial(self._notify, "output"))

    def notify_lines(self, lines: Sequence[ServerLine]) -> None:
        """Have the coordinator keep lines of this process's log, for the page."""
        self._notify("lines", lines)

    def _on_change(self, replica: OwnReplica) -> None:
        replica.on_change()
        self._send_reports()

    async def _stop(self, number: int, timeout: float) -> None:
        stopping = self._stops.get(number)
        if stopping is None:
            stopping = self._stops[number] = self._loop.create_task(self._stop_replica(number, timeout))
            stopping.add_done_callback(lambda _: self._stops.pop(number))
        await asyncio.shield(stopping)

    async def _stop_replica(self, number: int, timeout: float) -> None:
        if number in self._starts:
            starting = self._starts[number]
            starting.cancel()
            await asyncio.wait([starting])
        if number in self._ensembles:
            await self._stop_ensemble(number, timeout)
            return
        replica = self._replicas.get(number)
        if replica is None:
            return
        replica.close()
        self.on_closed()
        await replica.version.stop(timeout)
        self._send_reports()
        self._replicas.pop(number, None)
        self._on_opened(number)

    async def _stop_ensemble(self, number: int, timeout: float) -> None:
        ensemble = self._ensembles[number]
        ensemble.close()
        await ensemble.execution.stop(timeout)
        self._send_reports()
        del self._ensembles[number]
        self._on_opened(number)

    async def _check(self, number: int) -> bool:
        replica = self._replicas.get(number)
        return replica is None or await are_ready([replica.version])

    async def _report(self) -> ProcessCounts:
        return self._reports()

    async def _report_waits(self) -> None:
        """Report what guests wait for, once responses have been taken in that other processes have sent before."""
        await asyncio.sleep(_ARRIVED_SECONDS)
        self._relay.report_waits()

    def _reports(self) -> ProcessCounts:
        reports = {number: replica.report() for number, replica in self._replicas.items()}
        reports.update({number: ensemble.report() for number, ensemble in self._ensembles.items()})
        return ProcessCounts(self.received, self._relay.made, reports)

    def _send_reports(self) -> None:
        self._notify("reports", self._reports())

    async def _report_periodically(self) -> None:
        """Report what was counted, so that little is lost where this process is killed."""
        before: object = None
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            marks = [(each.version.totals.last, each.version.in_flight) for each in self._replicas.values()]
            marks += [(each.execution.totals.last, each.execution.in_flight) for each in self._ensembles.values()]
            if marks != before:
                before = marks
                self._send_reports()

    def _notify(self, name: str, *arguments: Any) -> None:
        self._send(pack(FrameKind.NOTIFY_COORDINATOR, Notice(name, arguments)))

    # -- requests of the coordinator ------------------------------------------------------------------------------

    def on_notice(self, name: str, arguments: Sequence[Any]) -> None:
        handler = self._on_notices.get(name)
        if handler is not None:
            handler(*arguments)
        else:
            self._relay.on_notice(name, arguments)

    def _close(self) -> None:
        self.is_exiting = True
        for ensemble in self._ensembles.values():
            ensemble.close()
        for replica in self._replicas.values():
            replica.close()


def _config_of(order: ReplicaOrder) -> ModelConfig:
    message = pb.ModelConfig()
    message.ParseFromString(order.config)
    return freeze(message)
