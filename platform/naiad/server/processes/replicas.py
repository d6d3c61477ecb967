"""The replicas of all versions, as the coordinator sees them: started, counted and ended in the other processes.

A process that has exited is replaced by another one, which gets all replicas of the one before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from naiad.core.errors import Code, NaiadError, NotReadyError
from naiad.core.gathering import finish_all
from naiad.core.logs import ServerLine, log_guest_line
from naiad.engine.calls.services import ModelServices
from naiad.engine.lifecycle.process_placement import COORDINATOR
from naiad.engine.open_request import OpenRequest
from naiad.engine.serving.replicas import ProcessCounts, ReplicaCounts, ReplicaOrder, ReplicaReport
from naiad.engine.serving.version_log import VersionLog
from naiad.guests.launch import LaunchSpec, server_id
from naiad.guests.worker import Worker
from naiad.protocol.metadata import InstanceStatus
from naiad.server.processes.calls import ProcessExitedError
from naiad.server.processes.load_table import LoadTable
from naiad.server.processes.peer import Peer, exited_error
from naiad.server.processes.remote_guests import RemoteGuests

logger = logging.getLogger("naiad.engine")

_GATHER_SECONDS = 1.0
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_PROCESS_EXIT = "process exit"  # why an instance was restarted, where its process has exited


class _ReplicaProcess:
    def __init__(self, peer: Peer, services: ModelServices) -> None:
        self.peer = peer
        self.guests = RemoteGuests(services, peer.calls.notify, peer.requests.trace_of)
        peer.requests.find_guest = self.guests.of
        peer.session.on_call = self.guests.on_call
        peer.calls.services.update(self.guests.services)
        self.gathering: asyncio.Future[ProcessCounts] | None = None  # done once it has reported what it has counted
        self.received = 0  # requests of its clients that it has executed or sent elsewhere, as it reported last
        self.calls: Mapping[tuple[str, str], int] = {}  # that it has executed itself, as it reported last


class _Replica:
    def __init__(self, specs: tuple[LaunchSpec, ...]) -> None:
        self.specs = specs  # how to start its guests
        self.report: ReplicaReport | None = None  # its last one; None before that, and after its process has exited
        self.before: ReplicaCounts | None = None  # what it had counted in processes that have exited; None if none has
        # How often each of its instances was restarted in those.
        self.restarts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.starting: asyncio.Task[None] | None = None  # starts it in the next process; None while it runs

    def on_process_end(self) -> None:
        report, self.report = self.report, None
        if report is not None:
            counted, before = report.counts.statistics, self.before
            self.before = ReplicaCounts(counted if before is None else before.statistics.with_counts_of([counted]))
            for status in report.statuses:
                self.restarts[status.name].update(status.restarts)
                self.restarts[status.name][_PROCESS_EXIT] += 1

    def counts(self) -> list[ReplicaCounts]:
        return [each for each in (self.before, None if self.report is None else self.report.counts) if each is not None]


def _plain(specs: Sequence[LaunchSpec], number: int) -> tuple[LaunchSpec, ...]:
    """How another process starts guests of the load *number*, without what belongs to the coordinator."""
    plain = [replace(spec, lease=None, restore=None, prewarm=None, link_memory=None, inputs=None) for spec in specs]
    return tuple([replace(spec, server_id=server_id(), load_number=number) for spec in plain])


class VersionReplicas:
    """Implements `naiad.engine.serving.replicas.Replicas`."""

    log: VersionLog
    take_back: Callable[[OpenRequest], None]

    def __init__(
        self, processes: ReplicaProcesses, order: ReplicaOrder, model: str, specs: Mapping[int, Sequence[LaunchSpec]]
    ) -> None:
        self._processes = processes
        self._order = order
        self._of = model, order.version
        self.row = order.row
        self.is_decoupled = False
        self._table = processes.table
        self._replicas = {number: _Replica(_plain(own, order.number)) for number, own in specs.items()}
        self.is_open = False
        self.typical = 0
        self._asked = COORDINATOR  # the process that was asked last whether it has an idle instance

    async def start(self) -> None:
        self.is_open = True
        await finish_all([self._start_in(number) for number in self._replicas], except_for=(ProcessExitedError,))

    async def _start_in(self, number: int) -> None:
        replica = self._replicas[number]
        replica.report = await self._processes.order(number, "start", self._order._replace(specs=replica.specs))

    def on_process(self, number: int) -> None:
        """A process serves in place of one that has exited: have it run the replica, as soon as it can."""
        replica = self._replicas.get(number)
        if replica is not None and self.is_open and replica.starting is None:
            replica.starting = asyncio.get_running_loop().create_task(self._start_again(number, replica))

    async def _start_again(self, number: int, replica: _Replica) -> None:
        pause = _FIRST_PAUSE
        try:
            while self.is_open:
                try:
                    await self._start_in(number)
                except ProcessExitedError:
                    return
                except NaiadError as error:
                    logger.error("cannot start instances of '%s' again: %s", self._of[0], error.message)  # noqa: TRY400 - the model's error
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    return
        finally:
            replica.starting = None

    def on_process_end(self, number: int) -> None:
        self._table.clear(self._order.row, number)
        if number in self._replicas:
            self._replicas[number].on_process_end()

    async def stop(self, timeout: float) -> None:
        self.note_instances(0)  # before the other processes end theirs: nothing is sent here any more
        self.is_open = False
        for replica in self._replicas.values():
            if replica.starting is not None:
                replica.starting.cancel()
        await asyncio.gather(*(self._stop_in(number, timeout) for number in self._replicas))
        self._processes.forget(self._order.number, self._order.row)

    async def _stop_in(self, number: int, timeout: float) -> None:
        try:
            await self._processes.order(number, "stop_replica", self._order.number, timeout)
        except ProcessExitedError:
            pass
        except NaiadError as error:
            logger.error("cannot end instances of '%s': %s", self._of[0], error.message)  # noqa: TRY400 - the cause is there

    # -- state ----------------------------------------------------------------------------------------------------

    def on_report(self, number: int, report: ReplicaReport) -> None:
        replica = self._replicas.get(number)
        if replica is not None:
            replica.report = report
            reports = [each.report for each in self._replicas.values() if each.report is not None]
            self.typical = max(each.typical for each in reports)

    @property
    def processes(self) -> Collection[int]:
        return self._replicas.keys()

    @property
    def in_flight(self) -> int:
        is_alive = self._processes.has_version(self._order.number)
        return self._table.requests_elsewhere(self._order.row) if is_alive else 0

    def is_serving(self) -> bool:
        return any(status.state == "ready" for status in self._known())

    def are_all_serving(self) -> bool:
        return all(status.state == "ready" for status in self.statuses())

    def _known(self) -> list[InstanceStatus]:
        reports = [replica.report for replica in self._replicas.values() if replica.report is not None]
        return [status for report in reports for status in report.statuses]

    def statuses(self) -> Sequence[InstanceStatus]:
        found = []
        for replica in self._replicas.values():
            if replica.report is not None:
                for status in replica.report.statuses:
                    restarts = replica.restarts[status.name] + Counter(status.restarts)
                    found.append(replace(status, restarts=dict(restarts)))
                continue
            found += [self._missing(spec.name, replica) for spec in replica.specs]
        return found

    def _missing(self, name: str, replica: _Replica) -> InstanceStatus:
        return InstanceStatus(
            model=self._of[0],
            namespace=self._order.namespace,
            version=str(self._of[1]),
            name=name,
            pid=0,
            state="restarting",
            restarts=dict(replica.restarts[name]),
            input_byte_size=0,
            borrowed_outputs=0,
        )

    def counts(self) -> Sequence[ReplicaCounts]:
        return [counts for replica in self._replicas.values() for counts in replica.counts()]

    def queries(self) -> Sequence[Awaitable[bool]]:
        return [
            self._is_not_ready(number)
            for number, replica in self._replicas.items()
            if replica.report is not None and replica.report.is_asked
        ]

    async def _is_not_ready(self, number: int) -> bool:
        try:
            return not await self._processes.order(number, "check", self._order.number)
        except ProcessExitedError:
            return False  # as for an instance that is being started again

    # -- requests -------------------------------------------------------------------------------------------------

    def note_load(self, in_flight: int) -> None:
        if self.is_open:  # the row may be another version's afterwards
            self._table.note_requests(self._order.row, in_flight)

    def note_instances(self, count: int) -> None:
        if self.is_open:
            self._table.note_instances(self._order.row, count)

    def least_loaded(self, in_flight: int, instances: int) -> int | None:
        return self._table.better_process(self._order.row, in_flight, instances, self._counts())

    def idle_process(self) -> int | None:
        return self._table.idle_process(self._order.row, self._counts())

    def process_to_ask(self) -> int | None:
        serving = self._table.serving_processes(self._order.row)
        self._asked = next((process for process in serving if process > self._asked), next(iter(serving), COORDINATOR))
        return None if self._asked == COORDINATOR else self._asked

    def _counts(self) -> Mapping[int, int]:
        """How many requests were sent to each process, and have no last response."""
        running, load = self._processes.running, self._order.number
        return {number: running[number].peer.requests.count_of(load) for number in self._replicas if number in running}

    def send(self, process: int, opened: OpenRequest) -> None:
        if process not in self._processes.running:
            opened.fail(exited_error(process), self._of)
            return
        link = self._processes.running[process].peer.requests
        try:
            link.send_request(opened, link.route_to(self._order.number, is_decoupled=self.is_decoupled))
        except NaiadError as error:
            opened.fail(error, self._of)

    def on_refused(self, opened: OpenRequest) -> None:
        """A replica has not taken a request: it ends, or has no idle instance any more for a call."""
        if opened.is_cancelled:
            opened.fail(NaiadError("Request was cancelled", code=Code.CANCELLED), self._of)
            return
        self.take_back(opened)
        self._processes.services.calls.on_call_waiting()

    def workers(self) -> Collection[Worker] | None:
        found = []
        for number, replica in self._replicas.items():
            process = self._processes.running.get(number)
            if process is None or replica.report is None:
                return None
            found += [process.guests.of(self._order.number, spec.name) for spec in replica.specs]
        return found


class ReplicaProcesses:
    """The processes that run replicas; implements `naiad.engine.serving.replicas.ReplicaMaker`."""

    services: ModelServices  # what models may use of the server; set before the first process is connected

    def __init__(self, processes: int) -> None:
        self.processes = processes  # their number, the coordinator included
        self.table = LoadTable.create(processes)  # the loads of all versions in all processes
        # Gets the lines that the other processes log, if a page shows them.
        self.keep_lines: Callable[[Sequence[ServerLine]], None] = lambda _: None
        self.running: dict[int, _ReplicaProcess] = {}
        self._versions: dict[int, VersionReplicas] = {}

    def make(self, order: ReplicaOrder, model: str, specs: Mapping[int, Sequence[LaunchSpec]]) -> VersionReplicas:
        assert COORDINATOR not in specs
        order = order._replace(row=self.table.take_row())
        made = self._versions[order.number] = VersionReplicas(self, order, model, specs)
        return made

    def has_version(self, number: int) -> bool:
        """Whether a version has not ended in all processes."""
        return number in self._versions

    def forget(self, number: int, row: int) -> None:
        if self._versions.pop(number, None) is not None:
            self.table.free_row(row)

    # -- processes ------------------------------------------------------------------------------------------------

    def connect(self, number: int, peer: Peer) -> None:
        process = self.running[number] = _ReplicaProcess(peer, self.services)
        peer.calls.services.update(
            {
                "reports": lambda counts: self._on_reports(process, number, counts),
                "log_record": self._on_log_record,
                "log_output": log_guest_line,
                "log_lines": lambda lines: self.keep_lines(lines),  # noqa: PLW0108 - it is set later
            }
        )
        peer.calls.notify_with(self.table.descriptor, "table", self.processes, number)
        for version in list(self._versions.values()):
            version.on_process(number)

    def disconnect(self, number: int) -> None:
        process = self.running.pop(number, None)
        if process is None:
            return
        process.guests.close()
        for version in list(self._versions.values()):
            version.on_process_end(number)

    async def order(self, number: int, method: str, *arguments: Any) -> Any:
        """Have a process do something, and wait for that; NaiadError if it fails, ProcessExitedError if it exits."""
        if number not in self.running:
            raise exited_error(number)
        return await self.running[number].peer.calls.call(method, *arguments)

    def take_back(self, opened: OpenRequest) -> None:
        """A process has not taken a request to its replica of a version."""
        version = self._versions.get(opened.load)
        if version is None:
            opened.fail(NotReadyError(f"model '{opened.request.model_name}' was unloaded; send the request again"))
        else:
            version.on_refused(opened)

    def close_replicas(self) -> None:
        """Have replicas take no further requests: the server exits, and rejects them."""
        for process in self.running.values():
            process.peer.calls.notify("exiting")

    async def gather(self) -> None:
        """Have all processes report what they have counted; slow ones keep what they reported last."""
        if self._versions and self.running:
            await asyncio.gather(*(self._gather_from(*each) for each in list(self.running.items())))

    async def _gather_from(self, number: int, process: _ReplicaProcess) -> None:
        if process.gathering is None or process.gathering.done():
            process.gathering = process.peer.calls.call("report")
        gathering = process.gathering
        done, _ = await asyncio.wait([gathering], timeout=_GATHER_SECONDS)
        if done and gathering.exception() is None:
            self._on_reports(process, number, gathering.result())

    def _on_log_record(self, load: int, *record: Any) -> None:
        if load in self._versions:
            self._versions[load].log.record(*record)

    def _on_reports(self, process: _ReplicaProcess, number: int, counts: ProcessCounts) -> None:
        process.peer.session.received_count += counts.received - process.received
        process.received = counts.received
        self.services.calls.made.update(counts.calls)
        self.services.calls.made.subtract(process.calls)
        process.calls = counts.calls
        for version, report in counts.replicas.items():
            if version in self._versions:
                self._versions[version].on_report(number, report)

    def gather_waits(self, then: Callable[[], None]) -> None:
        """Have the processes report again whose guests wait, as they reported last; call *then* when they have."""
        asked = [process.peer.calls for process in self.running.values() if process.guests.are_waiting]
        # What a process that exits has reported ends with it.
        reports = asyncio.gather(*(calls.call("report_waits") for calls in asked), return_exceptions=True)
        reports.add_done_callback(lambda _: then())

    def close(self) -> None:
        self.table.close()
