"""The branches that this process runs by order of the coordinator, and the requests to them."""

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
from naiad.engine.serving.branches import BranchOrder, BranchReport, ProcessCounts
from naiad.engine.serving.readiness import are_ready
from naiad.engine.serving.version import ModelVersion
from naiad.engine.statistics.counters import Statistics
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes.far_guests import GuestRelay, Routes
from naiad.server.processes.load_board import LoadBoard
from naiad.server.processes.messages import CallResult, FrameKind, RemoteCall, Told, error_fields, pack
from naiad.server.processes.own_ensembles import OwnEnsemble
from naiad.server.processes.request_session import GoneError

__all__ = ["OwnBranch", "OwnBranches"]

logger = logging.getLogger("naiad.engine")

_REPORT_SECONDS = 1.0
_ARRIVED_SECONDS = 0.01
"""A message that has arrived is handled by then, also if the loop has more to do than one turn takes in."""


class OwnBranch:
    """One branch, and the way of this process's requests to it.

    Attributes:
        version: The version that runs it.
    """

    def __init__(self, version: ModelVersion, row: int, board: LoadBoard) -> None:
        """The branch that *version* runs, which takes no requests yet; *row* is where its loads are on the board."""
        self.version = version
        self._row = row
        self._board = board
        self._is_open = False
        self._instances = 0  # that can serve now
        version.observe_load(self.note_load)

    def open(self) -> None:
        """Take requests from now on."""
        self._is_open = True
        self.on_change()

    def close(self) -> None:
        """Take none any more; those in flight go on."""
        self._is_open = False
        self.on_change()

    def on_change(self) -> None:
        """An instance can serve again, or cannot any more."""
        self._instances = self.version.serving_count if self._is_open else 0
        self._board.note_instances(self._row, self._instances)

    def note_load(self, in_flight: int) -> None:
        """Have other processes know how many requests it has."""
        self._board.note_requests(self._row, in_flight)

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
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
            found = self._board.better_process(self._row, 0, 0)
            return COORDINATOR if found is None else found
        if version.takes_at_once():
            return None
        return self._board.better_process(self._row, version.in_flight, self._instances)

    def submit(self, opened: OpenRequest) -> None:
        """Submit a request, which stays here.

        Raises:
            NaiadError: See `EngineDoor.submit`.
        """
        version = self.version
        version.submit(opened)
        self._board.note_requests(self._row, version.in_flight)

    def submit_call(self, opened: OpenRequest, on_taken: Callable[[str], None]) -> None:
        """Submit a call of another process to an idle instance. *on_taken* gets the instance's name.

        Raises:
            NaiadError: See `EngineDoor.submit`; `GoneError` if no instance is idle.
        """
        version = self.version
        if not version.has_idle():
            raise GoneError(f"no instance of model '{version.config.name}' is idle any more; send the call again")
        version.submit(opened)
        self.note_load(version.in_flight)
        on_taken("" if opened.worker is None else opened.worker.spec.name)

    def report(self) -> BranchReport:
        """What the coordinator is to know of it."""
        version = self.version
        workers = [each.worker for each in version.instances if each.worker is not None]
        return BranchReport(
            version.counts(),
            version.statuses(),
            any(worker.readiness is not None for worker in workers),
            version.typical,
        )


class OwnBranches:
    """All branches of this process.

    Attributes:
        options: The server's options; set before the first order.
        memory: The memory that guests here share with other processes; None to share none.
        received: How many requests of this process's clients it has answered, or sent to other branches.
        models: Where to find the models of ensembles' steps; set before the first order.
        is_exiting: Whether the server exits: clients' requests go to the coordinator, which rejects them.
        on_closed: Called when a branch takes requests no more.
    """

    options: ServerOptions
    models: StepModels

    def __init__(
        self,
        send: Callable[[bytes], None],
        on_opened: Callable[[int], None],
        routes: Routes,
    ) -> None:
        """No branches yet.

        Args:
            send: Sends a frame to the coordinator.
            on_opened: Called with the number of the load of a branch that takes requests, or has ended.
            routes: See `GuestRelay`.
        """
        self.memory: LinkMemory | None = None
        self._send = send
        self._on_opened = on_opened
        self._loop = asyncio.get_running_loop()
        self._board: LoadBoard | None = None
        self._branches: dict[int, OwnBranch] = {}
        self._ensembles: dict[int, OwnEnsemble] = {}
        self.is_exiting = False
        self._starts: dict[int, asyncio.Task[None]] = {}
        self._stops: dict[int, asyncio.Task[None]] = {}
        self.received = 0
        self.on_closed: Callable[[], None] = lambda: None
        self._relay = GuestRelay(self._tell, routes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._orders: Mapping[str, Callable[..., Any]] = {
            "start": self._start,
            "stop": self._stop,
            "check": self._check,
            "report": self._report,
            "waits": self._report_waits,
        }
        self._told: Mapping[str, Callable[..., None]] = {
            "exiting": self._close,
        }
        self._reporting = self._loop.create_task(self._report_periodically())

    def use_board(self, descriptor: int, processes: int, own: int) -> None:
        """Tell other processes on that board how much there is to do here."""
        self._board = LoadBoard(descriptor, processes, own)

    def find(self, number: int) -> OwnBranch | None:
        """The branch of the version with that number of its load, if this process has one."""
        return self._branches.get(number)

    def find_ensemble(self, number: int) -> OwnEnsemble | None:
        """The ensemble with that number of its load, if this process executes requests to it."""
        return self._ensembles.get(number)

    @property
    def request_count(self) -> int:
        """Number of requests of this process's branches and ensembles without their last response."""
        ensembles = sum(ensemble.execution.in_flight for ensemble in self._ensembles.values())
        return ensembles + sum(branch.version.in_flight for branch in self._branches.values())

    def process_of(self, row: int | None) -> int:
        """The process with the least to do for a version without a branch here; *row* as in `VersionRoute`."""
        found = None if row is None or self._board is None else self._board.better_process(row, 0, 0)
        return COORDINATOR if found is None else found

    def note_sent(self, row: int, process: int) -> None:
        """A request was sent to a branch of another process."""
        if self._board is not None:
            self._board.note_sent(row, process)

    def maintain(self) -> None:
        """Return idle memory; called periodically."""
        for branch in self._branches.values():
            branch.version.maintain()
            branch.note_load(branch.version.in_flight)
            branch.on_change()

    async def finish_requests(self, timeout: float) -> None:
        """Let the requests of all branches finish within *timeout* seconds; cancelled ones are not waited for."""
        await asyncio.gather(*(each.version.finish_requests(timeout) for each in self._branches.values()))

    async def stop(self, timeout: float) -> None:
        """End all branches within *timeout* seconds."""
        self._reporting.cancel()
        self._relay.close()
        deadline = self._loop.time() + timeout
        await asyncio.gather(*(self._stop(number, timeout) for number in list(self._ensembles)))  # their steps go on
        left = max(deadline - self._loop.time(), 0.0)
        await asyncio.gather(*(self._stop(number, left) for number in {*self._branches, *self._starts}))

    # -- orders ---------------------------------------------------------------------------------------------------

    def on_order(self, order: RemoteCall) -> None:
        """Carry out an order, and report that to the coordinator."""
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

    async def _start(self, order: BranchOrder) -> BranchReport:
        """Start the instances of a branch, unless it ends meanwhile."""
        if order.steps:
            return self._start_ensemble(order)
        task = self._starts[order.number] = self._loop.create_task(self._start_version(order))
        try:
            await task
        finally:
            del self._starts[order.number]
        branch = self._branches[order.number]
        branch.open()
        self._on_opened(order.number)
        return branch.report()

    async def _start_version(self, order: BranchOrder) -> None:
        config = _config_of(order)
        inputs = None if self.memory is None else self.memory.add_inputs(config.name)
        specs = [replace(spec, link_memory=self.memory, inputs=inputs) for spec in order.specs]
        version = ModelVersion(
            config, order.version, specs, order.policy, self._relay, order.samples, number=order.number
        )
        self._log_there(version)
        self._measure(version.totals, order, config)
        assert self._board is not None
        branch = OwnBranch(version, order.row, self._board)
        await version.start()
        self._branches[order.number] = branch
        version.on_change = lambda: self._on_change(branch)

    def _start_ensemble(self, order: BranchOrder) -> BranchReport:
        config = _config_of(order)
        graph = graph_of(config.message, order.steps)
        execution = EnsembleExecution(config, order.version, order.number, graph, self.models, lambda _: None)
        self._measure(execution.totals, order, config)
        assert self._board is not None
        ensemble = self._ensembles[order.number] = OwnEnsemble(execution, order.row, self._board)
        self._on_opened(order.number)
        return ensemble.report()

    def _measure(self, totals: Statistics, order: BranchOrder, config: ModelConfig) -> None:
        totals.namespace = order.namespace
        totals.measure(self.options.metrics.config, config)
        if self.options.http.ui:
            totals.count_latencies(config)

    def _log_there(self, version: ModelVersion) -> None:
        """Have the coordinator log what the guests of a branch log: some of it once for all instances of a version."""
        version.log.pass_on(partial(self._tell, "record", version.number), partial(self._tell, "output"))

    def tell_lines(self, lines: Sequence[ServerLine]) -> None:
        """Have the coordinator keep lines of this process's log, for the page."""
        self._tell("lines", lines)

    def _on_change(self, branch: OwnBranch) -> None:
        branch.on_change()
        self._send_reports()

    async def _stop(self, number: int, timeout: float) -> None:
        stopping = self._stops.get(number)
        if stopping is None:
            stopping = self._stops[number] = self._loop.create_task(self._stop_branch(number, timeout))
            stopping.add_done_callback(lambda _: self._stops.pop(number))
        await asyncio.shield(stopping)

    async def _stop_branch(self, number: int, timeout: float) -> None:
        if number in self._starts:
            starting = self._starts[number]
            starting.cancel()
            await asyncio.wait([starting])
        if number in self._ensembles:
            await self._stop_ensemble(number, timeout)
            return
        branch = self._branches.get(number)
        if branch is None:
            return
        branch.close()
        self.on_closed()
        await branch.version.stop(timeout)
        self._send_reports()
        self._branches.pop(number, None)
        self._on_opened(number)

    async def _stop_ensemble(self, number: int, timeout: float) -> None:
        ensemble = self._ensembles[number]
        ensemble.close()
        await ensemble.execution.stop(timeout)
        self._send_reports()
        del self._ensembles[number]
        self._on_opened(number)

    async def _check(self, number: int) -> bool:
        branch = self._branches.get(number)
        return branch is None or await are_ready([branch.version])

    async def _report(self) -> ProcessCounts:
        return self._reports()

    async def _report_waits(self) -> None:
        """Report what guests wait for, once responses have been taken in that other processes have sent before."""
        await asyncio.sleep(_ARRIVED_SECONDS)
        self._relay.report_waits()

    def _reports(self) -> ProcessCounts:
        reports = {number: branch.report() for number, branch in self._branches.items()}
        reports.update({number: ensemble.report() for number, ensemble in self._ensembles.items()})
        return ProcessCounts(self.received, self._relay.made, reports)

    def _send_reports(self) -> None:
        self._tell("reports", self._reports())

    async def _report_periodically(self) -> None:
        """Report what was counted, so that little is lost where this process is killed."""
        before: object = None
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            marks = [(each.version.totals.last, each.version.in_flight) for each in self._branches.values()]
            marks += [(each.execution.totals.last, each.execution.in_flight) for each in self._ensembles.values()]
            if marks != before:
                before = marks
                self._send_reports()

    def _tell(self, name: str, *arguments: Any) -> None:
        self._send(pack(FrameKind.TELL_COORDINATOR, Told(name, arguments)))

    # -- requests of the coordinator ------------------------------------------------------------------------------

    def on_told(self, name: str, arguments: Sequence[Any]) -> None:
        """Handle what the coordinator has sent."""
        handler = self._told.get(name)
        if handler is not None:
            handler(*arguments)
        else:
            self._relay.on_told(name, arguments)

    def _close(self) -> None:
        self.is_exiting = True
        for ensemble in self._ensembles.values():
            ensemble.close()
        for branch in self._branches.values():
            branch.close()


def _config_of(order: BranchOrder) -> ModelConfig:
    message = pb.ModelConfig()
    message.ParseFromString(order.config)
    return freeze(message)
