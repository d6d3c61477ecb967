"""The processes beside the coordinator: started, restarted with back-off, drained and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naiad.core.errors import NaiadError
from naiad.engine.engine import Engine
from naiad.engine.lifecycle.placement import COORDINATOR
from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes.dealing import ConnectionDealer
from naiad.server.processes.link import Link
from naiad.server.processes.messages import FrameKind, ProcessReport, error_of
from naiad.server.processes.peer import exited_error
from naiad.server.processes.process_metrics import FamilySum, received_family
from naiad.server.processes.replicas import ReplicaProcesses
from naiad.server.processes.session import ProcessSession, Service
from naiad.server.processes.spawned import SpawnedProcesses

logger = logging.getLogger("naiad.frontends")

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 10.0
_SENT_SECONDS = 0.001
_COLLECT_SECONDS = 1.0
_CONFIRM_SECONDS = 1.0
_STABLE_SECONDS = 60.0  # after so long a service, an exit is the first of a new series
# A process that answers nothing for so long is killed: far longer than its loop is ever held by a request, or by a
# machine that swaps.
HANG_SECONDS = 30.0
# It is asked so often within that time. Where the coordinator itself was stopped meanwhile, one interval counts.
_PINGS = 6
_SENT_LIMIT_SECONDS = 5.0  # a process that does not read its socket for so long is hung, or will be late in any case
_EXIT_SECONDS = 1.0  # how long a process may take to exit beyond the time that its requests have


class _RunningProcess:
    def __init__(self, process: subprocess.Popen[bytes], session: ProcessSession, link: Link) -> None:
        self.process = process
        self.session = session
        self.link = link
        self.started = time.monotonic()
        self.ready: asyncio.Future[Sequence[str]] = asyncio.get_running_loop().create_future()
        self.families: Sequence[Family] = ()
        self.collecting: asyncio.Future[None] | None = None
        self.exited: asyncio.Future[int] | None = None
        self.silent = 0  # how many pings in a row have found the one before unanswered


class ProcessPool:
    """The processes of a server beside the coordinator."""

    def __init__(
        self,
        engine: Engine,
        memory: LinkMemory,
        tracer: Tracer,
        count: int,
        configuration: Any,
        spawned: SpawnedProcesses,
        replicas: ReplicaProcesses | None = None,
    ) -> None:
        """*configuration* is the first message to each of *count* processes; those of *spawned* are taken first.

        *replicas* is what the processes run of models; None if they run none.
        """
        self._engine = engine
        self._memory = memory
        self._tracer = tracer
        self._configuration = configuration
        self._spawned = spawned
        self._replicas = replicas
        self._listening: Any = None  # what a process gets to open the ports; None until it may
        self.services: dict[str, Service] = {}  # see `ProcessSession`; to be complete before `start`
        self._loop = asyncio.get_running_loop()
        self._processes: list[_RunningProcess | None] = [None] * count
        self._delays = [_FIRST_DELAY] * count
        self._restarts: dict[int, asyncio.TimerHandle] = {}
        self._is_stopping = False
        self._sum = FamilySum()
        self._received = [0] * count  # requests that the processes before the current ones have received
        self._watching: asyncio.TimerHandle | None = None
        self.restart_count = 0  # processes that were started in place of others
        # Deals the connections of clients, to be set before `start`; None for none.
        self.connections: ConnectionDealer | None = None
        # Kinds and contents of what a process gets after its configuration.
        self.first_messages: Callable[[], Sequence[tuple[int, Any]]] = tuple
        self._region_calls = itertools.count(1)
        engine.on_routes_changed(self._on_routes_changed)
        memory.on_inputs_removed = self._on_inputs_removed
        memory.on_outputs_removed = self._on_outputs_removed

    @property
    def pids(self) -> Mapping[int, int]:
        return {slot + 1: each.process.pid for slot, each in enumerate(self._processes) if each is not None}

    def connect(self) -> None:
        """Start all processes. They run replicas from now on, and wait for `start` to open the ports."""
        for slot in range(len(self._processes)):
            self._start(slot).ready.add_done_callback(self._log_failure)

    async def start(self, listening: Any = None) -> None:
        """Have all processes open the ports, for which they need *listening*; NaiadError if one cannot serve."""
        self._listening = listening
        waiting = []
        for slot, each in enumerate(self._processes):
            if each is None and slot in self._restarts:
                raise NaiadError(
                    f"cannot start process {slot + 1} of the server: it exited while the models were loaded"
                )
            started = self._start(slot) if each is None else each
            if started is each and listening is not None:
                self._listen(started)
            waiting.append(started.ready)
        await asyncio.gather(*waiting)
        self._watch_later()

    def drain(self) -> None:
        """Serve on, and ask clients to connect to other servers."""
        self._is_stopping = True
        self.broadcast(FrameKind.DRAIN, None)

    def reopen_logs(self) -> None:
        self.broadcast(FrameKind.REOPEN, None)

    async def stop(self, grace: float, for_models: float = 0.0) -> None:
        """Stop all processes; requests in flight have *grace* seconds, and models then *for_models*."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        for restart in self._restarts.values():
            restart.cancel()
        self.broadcast(FrameKind.STOP, (grace, for_models))
        running = [(number, each) for number, each in enumerate(self._processes, 1) if each is not None]
        exits = [self._exit_of(each) for _, each in running]
        if exits:
            await asyncio.wait(exits, timeout=grace + for_models + _EXIT_SECONDS)
        for number, each in running:
            with contextlib.suppress(ProcessLookupError):
                each.process.kill()
            each.session.close(exited_error(number))
        if exits:
            await asyncio.wait(exits)
        if self._replicas is not None:
            for slot in range(len(self._processes)):
                self._replicas.disconnect(slot + 1)

    def broadcast(self, kind: int, message: Any, but: ProcessSession | None = None) -> None:
        for each in self._processes:
            if each is not None and each.session is not but:
                each.session.send(kind, message)

    async def wait_sent(self) -> None:
        """Wait until the sockets of all processes have what was broadcast: it comes before a client's next request.

        A process that does not read is waited for only so long.
        """
        end = self._loop.time() + _SENT_LIMIT_SECONDS
        while any(each is not None and each.link.has_backlog for each in self._processes) and self._loop.time() < end:
            await asyncio.sleep(_SENT_SECONDS)

    async def announce(self, kind: int, message: Any) -> None:
        """Send a message to all processes, and wait until those that serve have taken it in."""
        waiting = []
        for each in self._processes:
            if each is not None:
                confirmed = each.session.announce(kind, message)
                if each.ready.done():
                    waiting.append(confirmed)
        if waiting:
            await asyncio.wait(waiting, timeout=_CONFIRM_SECONDS)

    async def take_regions(self, names: Sequence[str]) -> Sequence[str]:
        """Have all processes take regions of shared memory out of their registries; those that one of them uses.

        A process that does not respond may use all of them.
        """
        number = next(self._region_calls)
        waiting = []
        for each in self._processes:
            if each is not None:
                taken = each.session.take_regions(number, names)
                if each.ready.done():
                    waiting.append(taken)
        if not waiting:
            return ()
        done, late = await asyncio.wait(waiting, timeout=_CONFIRM_SECONDS)
        return names if late else [name for taken in done for name in taken.result()]

    def _on_routes_changed(self) -> None:
        for each in self._processes:
            if each is not None:
                each.session.on_routes_changed()

    def _on_inputs_removed(self, number: int) -> None:
        for each in self._processes:
            if each is not None:
                each.session.forget_part(number)

    def _on_outputs_removed(self, number: int) -> None:
        for each in self._processes:
            if each is not None:
                each.session.forget_segment(number)

    # -- metrics --------------------------------------------------------------------------------------------------

    async def collect(self) -> None:
        """Have all processes report their metrics, which `families` adds up; slow ones keep what they reported last."""
        asked = []
        for each in self._processes:
            if each is None or not each.ready.done():
                continue
            if each.collecting is None or each.collecting.done():
                each.collecting = self._loop.create_future()
                each.session.send(FrameKind.COLLECT, None)
            asked.append(each.collecting)
        if asked:
            await asyncio.wait(asked, timeout=_COLLECT_SECONDS)

    @property
    def request_count(self) -> int:
        """Number of requests that the processes have sent here, without their last response."""
        return sum(each.session.requests.request_count for each in self._processes if each is not None)

    def families(self, own: Sequence[Family], received_here: int) -> list[Family]:
        """The metrics of all processes, as reported last; *own* and the requests *received_here* are this one's."""
        received = {str(COORDINATOR): received_here}
        for slot, each in enumerate(self._processes):
            current = 0 if each is None else each.session.received_count + each.session.answered_count
            received[str(slot + 1)] = self._received[slot] + current
        restarts = Family(
            "naiad_process_restarts_total",
            "Number of processes of the server that were started in place of others",
            MetricType.COUNTER,
            [Sample({}, self.restart_count)],
        )
        reports = [own, *(each.families for each in self._processes if each is not None)]
        return [*self._sum.total(reports), received_family(received), restarts]

    async def figures(self) -> Mapping[int, Mapping[str, int]]:
        """What each process has to do now, by its id, under the names that people read."""
        await self.collect()
        found = {}
        for each in self._processes:
            if each is not None:
                sums = {family.name: sum(sample.value for sample in family.samples) for family in each.families}
                found[each.process.pid] = {
                    "connections": int(sums.get("naiad_process_connections", 0)),
                    "requests": each.session.received_count + each.session.answered_count,
                }
        return found

    # -- one process ----------------------------------------------------------------------------------------------

    def _start(self, slot: int) -> _RunningProcess:
        process, own = self._spawned.take()
        on_gone = None if self._replicas is None else self._replicas.take_back
        session = ProcessSession(self._engine, self._memory, self._tracer, self.services, self._on_report, on_gone)

        def on_end() -> None:
            self._on_end(slot, started)

        link = Link(own, self._loop, session.on_frame, on_end, session.to_replicas.on_received)
        started = self._processes[slot] = _RunningProcess(process, session, link)
        session.connect(link)
        session.send(FrameKind.CONFIGURATION, (slot + 1, self._configuration))
        if self._replicas is not None:
            self._replicas.connect(slot + 1, session)
        self._join(slot, session)
        for kind, message in self.first_messages():
            session.send(kind, message)
        if self._listening is not None:
            self._listen(started)
        return started

    def _join(self, slot: int, session: ProcessSession) -> None:
        """Give a process that starts a link to each of the others."""
        for other, each in enumerate(self._processes):
            if each is not None and each.session is not session:
                ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                session.send_descriptor(FrameKind.PEER, other + 1, ends[0].fileno())
                each.session.send_descriptor(FrameKind.PEER, slot + 1, ends[1].fileno())
                for end in ends:
                    end.close()

    def _listen(self, each: _RunningProcess) -> None:
        if self.connections is not None:
            with self.connections.join(self._number_of(each)) as end:
                each.session.send_descriptor(FrameKind.CONNECTIONS, None, end.fileno())
        each.session.send(FrameKind.LISTEN, self._listening)

    def _on_report(self, session: ProcessSession, report: ProcessReport) -> None:
        each = next(each for each in self._processes if each is not None and each.session is session)
        if report.families is not None:
            each.families = report.families
            if each.collecting is not None and not each.collecting.done():
                each.collecting.set_result(None)
            return
        if each.ready.done():
            return
        if report.error is not None:
            each.ready.set_exception(error_of(report.error))
        else:
            each.ready.set_result(report.started)
            if self.connections is not None:
                self.connections.begin(self._number_of(each))
            logger.info("process %d of the server serves (pid %d)", self._number_of(each), each.process.pid)

    def _on_end(self, slot: int, each: _RunningProcess) -> None:
        each.session.close(exited_error(slot + 1))
        self._sum.retire(each.families)
        self._received[slot] += each.session.received_count + each.session.answered_count
        if self.connections is not None:
            self.connections.leave(slot + 1)
        if self._replicas is not None:
            self._replicas.disconnect(slot + 1)
        if each.collecting is not None and not each.collecting.done():
            each.collecting.set_result(None)
        exited = self._exit_of(each)
        self._processes[slot] = None
        if not each.ready.done():
            each.ready.set_exception(
                NaiadError(f"cannot start process {slot + 1} of the server: it exited while it started")
            )
        if self._is_stopping:
            return
        exited.add_done_callback(lambda done: self._restart_later(slot, each, done.result()))

    def _restart_later(self, slot: int, each: _RunningProcess, status: int) -> None:
        if self._is_stopping:
            return
        if time.monotonic() - each.started >= _STABLE_SECONDS:
            self._delays[slot] = _FIRST_DELAY
        delay, self._delays[slot] = self._delays[slot], min(2 * self._delays[slot], _LONGEST_DELAY)
        cause = f"signal {-status}" if status < 0 else f"exit code {status}"
        logger.error(
            "process %d of the server (pid %d) exited (%s); another one starts in %g s",
            slot + 1,
            each.process.pid,
            cause,
            delay,
        )
        self._restarts[slot] = self._loop.call_later(delay, self._restart, slot)

    def _restart(self, slot: int) -> None:
        del self._restarts[slot]
        self.restart_count += 1
        try:
            started = self._start(slot)
        except OSError as error:
            logger.error("cannot start process %d of the server: %s", slot + 1, error)  # noqa: TRY400 - the cause is the system
            self._restarts[slot] = self._loop.call_later(_LONGEST_DELAY, self._restart, slot)
            return
        started.ready.add_done_callback(self._log_failure)

    def _log_failure(self, ready: asyncio.Future[Sequence[str]]) -> None:
        error = None if ready.cancelled() else ready.exception()
        if error is not None and not self._is_stopping:
            logger.error("%s", error)

    def _watch_later(self) -> None:
        self._watching = self._loop.call_later(HANG_SECONDS / _PINGS, self._watch)

    def _watch(self) -> None:
        """Ask all processes for a sign of life, and kill those that are hung: another one is started for each."""
        for each in self._processes:
            if each is None or not each.ready.done() or each.exited is not None:
                continue
            each.session.to_replicas.trim()
            each.silent = 0 if each.session.ping() else each.silent + 1
            if each.silent >= _PINGS:
                logger.error(
                    "process %d of the server (pid %d) has not responded for %g s and is killed",
                    self._number_of(each),
                    each.process.pid,
                    HANG_SECONDS,
                )
                with contextlib.suppress(ProcessLookupError):
                    each.process.kill()
        self._watch_later()

    def _number_of(self, each: _RunningProcess) -> int:
        return self._processes.index(each) + 1

    def _exit_of(self, each: _RunningProcess) -> asyncio.Future[int]:
        if each.exited is None:
            each.exited = self._loop.run_in_executor(None, each.process.wait)
        return each.exited
