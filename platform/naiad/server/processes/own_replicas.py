"""The replicas that this process runs by order of the coordinator, and the requests to them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Protocol

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, freeze
from naiad.config.server.options import ServerOptions
from naiad.core.errors import NotReadyError
from naiad.engine.ensembles.execution import EnsembleExecution, graph_of
from naiad.engine.ensembles.step import StepModels
from naiad.engine.lifecycle.process_placement import COORDINATOR
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.readiness import are_ready
from naiad.engine.serving.replicas import ProcessCounts, ReplicaCounts, ReplicaOrder, ReplicaReport
from naiad.engine.serving.version import ModelVersion
from naiad.engine.statistics.counters import Statistics
from naiad.guests.memory.link_memory import LinkMemory
from naiad.protocol.inference import InferRequest
from naiad.server.processes.calls import Service
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.remote_guests import GuestRelay, Routes
from naiad.server.processes.request_session import GoneError

_REPORT_SECONDS = 1.0
# A message that has arrived is handled by then, also if the loop has more to do than one turn takes in.
_ARRIVED_SECONDS = 0.01


class OwnReplica:
    """A replica or an ensemble, and the way of this process's requests to it, which it takes after `open`."""

    def __init__(
        self, execution: ModelVersion | EnsembleExecution, version: ModelVersion | None, row: int, table: LoadTable
    ) -> None:
        """*version* is the same as *execution*; None for an ensemble, which has no instances."""
        self.version = version
        self.number = execution.number
        self.totals = execution.totals
        self.stop = execution.stop
        self.is_open = False
        self._execution = execution
        self._row = row
        self._table = table
        self._instances = 0  # that can serve now
        execution.observe_load(lambda in_flight: table.note_requests(row, in_flight))

    def open(self) -> None:
        self.is_open = True
        self.on_change()

    def close(self) -> None:
        """Take none any more; those in flight go on."""
        self.is_open = False
        self.on_change()

    def on_change(self) -> None:
        if self.version is not None:
            self._instances = self.version.serving_count if self.is_open else 0
            self._table.note_instances(self._row, self._instances)

    @property
    def config(self) -> ModelConfig:
        return self._execution.config

    @property
    def in_flight(self) -> int:
        return self._execution.in_flight

    def note_load(self) -> None:
        """Have other processes know how many requests it has: the coordinator waits for them at an unload."""
        self._table.note_requests(self._row, self._execution.in_flight)

    def reserve_input(self, size: int, ahead: int) -> memoryview | None:
        """See `EngineFacade`. Which instance gets the inputs of an ensemble is known when the steps are dispatched."""
        return None if self.version is None else self.version.reserve_input(size, ahead)

    def takes_call(self, *, is_decoupled: bool) -> bool:
        """Whether it executes a call of a guest of this process, by an instance that is idle.

        An ensemble does not: the coordinator, which looks for deadlocks, knows what each step of it waits for.
        """
        version = self.version
        if version is None or not self.is_open or version.reason or (version.config.decoupled and not is_decoupled):
            return False
        return version.has_idle()

    def better_process(self) -> int | None:
        """The process in which a request is better off than here; None for none."""
        version = self.version
        if version is None:
            return None if self.is_open else COORDINATOR
        if not self._instances or version.reason:
            found = self._table.better_process(self._row, 0, 0)
            return COORDINATOR if found is None else found
        if version.takes_at_once():
            return None
        return self._table.better_process(self._row, version.in_flight, self._instances)

    def accept(self, opened: OpenRequest) -> None:
        """Take a request, which stays here; `GoneError` if it needs an idle instance, and there is none."""
        if opened.needs_idle and self.version is not None and not self.version.has_idle():
            raise GoneError(f"no instance of model '{self.config.name}' is idle any more; send the call again")
        self._execution.accept(opened)
        self.note_load()

    def maintain(self) -> None:
        if self.version is not None:
            self.version.maintain()
        self.note_load()
        self.on_change()

    def report(self) -> ReplicaReport:
        version = self.version
        if version is None:
            return ReplicaReport(ReplicaCounts(self.totals), (), is_asked=False, typical=0)
        workers = [each.worker for each in version.instances if each.worker is not None]
        return ReplicaReport(
            version.counts(),
            version.statuses(),
            any(worker.readiness is not None for worker in workers),
            version.typical,
        )


class EngineAccess(Routes, StepModels, Protocol):
    """What the replicas of a process use of its engine."""

    @property
    def memory(self) -> LinkMemory:
        """That guests here share with other processes."""

    def on_replica_opened(self, load: int) -> None:
        """A replica takes requests from now on, or has ended."""

    def on_replica_closed(self) -> None:
        """A replica takes no requests any more."""


class OwnReplicas:
    """All replicas of this process, and the ensembles that it executes. Implements `OwnModels`."""

    options: ServerOptions  # set before the first order

    def __init__(self, engine: EngineAccess) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._table: LoadTable | None = None
        self._replicas: dict[int, OwnReplica] = {}  # by the number of the load
        # Whether the coordinator rejects clients' requests: they go there.
        self.is_exiting = False
        self._starts: dict[int, asyncio.Task[None]] = {}
        self._stops: dict[int, asyncio.Task[None]] = {}
        self.received = 0  # requests of this process's clients that it has answered, or sent to other replicas
        self._relay = GuestRelay(engine)
        self._reporting: asyncio.Task[None] | None = None
        self.services: dict[str, Service] = {  # what the coordinator calls
            "table": self.use_table,
            "start": self._start,
            "stop_replica": self._stop,
            "check": self._check,
            "report": self._reports,
            "report_waits": self._report_waits,
            "exiting": self._close,
            **self._relay.services,
        }

    def begin(self, options: ServerOptions) -> None:
        """Take orders, and report regularly what was counted."""
        self.options = options
        self._reporting = self._loop.create_task(self._report_periodically())

    def use_table(self, descriptor: int, processes: int, own: int) -> None:
        """Tell other processes on that table how much there is to do here."""
        self._table = LoadTable(descriptor, processes, own)

    def find(self, number: int) -> OwnReplica | None:
        """What executes requests to the version with that number of its load here, if this process does."""
        return self._replicas.get(number)

    def admitted_target(self, request: InferRequest, load: int) -> OwnReplica:
        """See `OwnModels`: a request of another process goes to the load that was meant, and stays here."""
        replica = self._replicas.get(load)
        if replica is None or not replica.is_open:
            raise GoneError(f"model '{request.model_name}' was unloaded while the request was received; send it again")
        return replica

    def find_target(self, name: str, version: int, load: int) -> ModelVersion:
        found = self.admitted_target(InferRequest(name, version, ()), load).version
        assert found is not None  # no process sends another one requests to ensembles
        return found

    @property
    def request_count(self) -> int:
        """Number of requests of this process's replicas and ensembles without their last response."""
        return sum(replica.in_flight for replica in self._replicas.values())

    def process_of(self, row: int | None) -> int:
        """The process with the least to do for a version without a replica here; *row* as in `VersionRoute`."""
        found = None if row is None or self._table is None else self._table.better_process(row, 0, 0)
        return COORDINATOR if found is None else found

    def note_sent(self, row: int, process: int) -> None:
        if self._table is not None:
            self._table.note_sent(row, process)

    def maintain(self) -> None:
        for replica in self._replicas.values():
            replica.maintain()

    def _versions(self) -> list[ModelVersion]:
        return [each.version for each in self._replicas.values() if each.version is not None]

    async def finish_requests(self, timeout: float) -> None:
        """Let the requests of all replicas finish within *timeout* seconds; cancelled ones are not waited for."""
        await asyncio.gather(*(version.finish_requests(timeout) for version in self._versions()))

    async def stop(self, timeout: float) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        deadline = self._loop.time() + timeout
        ensembles = [number for number, each in self._replicas.items() if each.version is None]
        await asyncio.gather(*(self._stop(number, timeout) for number in ensembles))  # their steps go on
        left = max(deadline - self._loop.time(), 0.0)
        await asyncio.gather(*(self._stop(number, left) for number in {*self._replicas, *self._starts}))

    # -- orders ---------------------------------------------------------------------------------------------------

    async def _start(self, order: ReplicaOrder) -> ReplicaReport:
        if order.steps:
            self._start_ensemble(order)
        else:
            task = self._starts[order.number] = self._loop.create_task(self._start_version(order))
            try:
                await task
            except asyncio.CancelledError:
                raise NotReadyError("the model is being unloaded") from None
            finally:
                del self._starts[order.number]
        replica = self._replicas[order.number]
        replica.open()
        self._engine.on_replica_opened(order.number)
        return replica.report()

    async def _start_version(self, order: ReplicaOrder) -> None:
        config, memory = _config_of(order), self._engine.memory
        inputs = memory.add_inputs(config.name)
        specs = [replace(spec, link_memory=memory, inputs=inputs) for spec in order.specs]
        version = ModelVersion(
            config, order.version, specs, order.policy, self._relay, order.samples, number=order.number
        )
        # The coordinator logs what the guests of a replica log: some of it once for all instances of a version.
        notify = self._engine.notify
        version.log.pass_on(partial(notify, "log_record", version.number), partial(notify, "log_output"))
        self._measure(version.totals, order, config)
        assert self._table is not None
        replica = OwnReplica(version, version, order.row, self._table)
        await version.start()
        self._replicas[order.number] = replica
        version.on_change = lambda: self._on_change(replica)

    def _start_ensemble(self, order: ReplicaOrder) -> None:
        config = _config_of(order)
        graph = graph_of(config.message, order.steps)
        execution = EnsembleExecution(config, order.version, order.number, graph, self._engine, lambda _: None)
        self._measure(execution.totals, order, config)
        assert self._table is not None
        self._replicas[order.number] = OwnReplica(execution, None, order.row, self._table)

    def _measure(self, totals: Statistics, order: ReplicaOrder, config: ModelConfig) -> None:
        totals.namespace = order.namespace
        totals.measure(self.options.metrics.config, config)
        if self.options.http.ui:
            totals.count_latencies(config)

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
        replica = self._replicas.get(number)
        if replica is None:
            return
        replica.close()
        self._engine.on_replica_closed()
        await replica.stop(timeout)
        self._send_reports()
        self._replicas.pop(number, None)
        self._engine.on_replica_opened(number)

    async def _check(self, number: int) -> bool:
        replica = self._replicas.get(number)
        return replica is None or replica.version is None or await are_ready([replica.version])

    async def _report_waits(self) -> None:
        """Report what guests wait for, once responses have been taken in that other processes have sent before."""
        await asyncio.sleep(_ARRIVED_SECONDS)
        self._relay.report_waits()

    def _reports(self) -> ProcessCounts:
        reports = {number: replica.report() for number, replica in self._replicas.items()}
        return ProcessCounts(self.received, self._relay.made, reports)

    def _send_reports(self) -> None:
        self._engine.notify("reports", self._reports())

    async def _report_periodically(self) -> None:
        """Report what was counted, so that little is lost where this process is killed."""
        before: object = None
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            marks = [(each.totals.last, each.in_flight) for each in self._replicas.values()]
            if marks != before:
                before = marks
                self._send_reports()

    def _close(self) -> None:
        self.is_exiting = True
        for replica in self._replicas.values():
            replica.close()


def _config_of(order: ReplicaOrder) -> ModelConfig:
    message = pb.ModelConfig()
    message.ParseFromString(order.config)
    return freeze(message)
