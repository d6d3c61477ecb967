"""The processes beside the coordinator: started, restarted with back-off, drained and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from naiad.core.errors import NaiadError
from naiad.engine.engine import Engine
from naiad.engine.lifecycle.process_placement import COORDINATOR
from naiad.frontends.metrics.families import Family, MetricType, Sample
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.processes.calls import Service
from naiad.server.processes.dealing import ConnectionDealer
from naiad.server.processes.peer import Peer, exited_error
from naiad.server.processes.process_metrics import FamilySum, received_family
from naiad.server.processes.replicas import ReplicaProcesses
from naiad.server.processes.served_process import serve_process
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
    silent: int  # how many pings in a row have found the one before unanswered; set with `ping`

    def __init__(self, number: int, process: subprocess.Popen[bytes], peer: Peer) -> None:
        self.number = number
        self.process = process
        self.peer = peer
        self.started = time.monotonic()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # done once it serves
        self.families: Sequence[Family] = ()  # its metrics, as it reported them last
        self.collecting: asyncio.Future[Sequence[Family]] | None = None
        self.exited: asyncio.Future[int] | None = None
        self.ping: asyncio.Future[None] | None = None

    def collect(self) -> asyncio.Future[Sequence[Family]]:
        """Have it report its metrics; done when it has, or has exited."""
        if self.collecting is None or self.collecting.done():
            self.collecting = self.peer.calls.call("metrics")
            self.collecting.add_done_callback(self._keep_families)
        return self.collecting

    def _keep_families(self, collected: asyncio.Future[Sequence[Family]]) -> None:
        if collected.exception() is None:
            self.families = collected.result()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


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
        replicas: ReplicaProcesses,
    ) -> None:
        """*configuration* is the first message to each of *count* processes; those of *spawned* are taken first."""
        self._engine = engine
        self._memory = memory
        self._tracer = tracer
        self._configuration = configuration
        self._spawned = spawned
        self._replicas = replicas  # what the processes run of models
        self._listening: Any = None  # what a process gets to open the ports; None until it may
        self.services: dict[str, Service] = {}  # see `serve_process`; to be complete before `start`
        self._loop = asyncio.get_running_loop()
        self._numbers = range(1, count + 1)
        self._running: dict[int, _RunningProcess] = {}
        self._delays = dict.fromkeys(self._numbers, _FIRST_DELAY)
        self._restarts: dict[int, asyncio.TimerHandle] = {}
        self._is_stopping = False
        self._sum = FamilySum()
        self._watching: asyncio.TimerHandle | None = None
        self.restart_count = 0  # processes that were started in place of others
        # Deals the connections of clients, to be set before `start`; None for none.
        self.connections: ConnectionDealer | None = None
        # Names and arguments of what is called of a process before it opens the ports.
        self.first_calls: Callable[[], Sequence[tuple[str, tuple[Any, ...]]]] = tuple
        engine.on_routes_changed(self._on_routes_changed)

    @property
    def pids(self) -> Mapping[int, int]:
        return {number: each.process.pid for number, each in sorted(self._running.items())}

    def connect(self) -> None:
        """Start all processes. They run replicas from now on, and wait for `start` to open the ports."""
        for number in self._numbers:
            self._start(number).ready.add_done_callback(self._log_failure)

    async def start(self, listening: Any) -> None:
        """Have all processes open the ports, for which they need *listening*; NaiadError if one cannot serve."""
        self._listening = listening
        waiting = []
        for number in self._numbers:
            if number in self._restarts:
                raise NaiadError(f"cannot start process {number} of the server: it exited while the models were loaded")
            started = self._running.get(number)
            if started is None:
                started = self._start(number)
            else:
                self._listen(started)
            waiting.append(started.ready)
        await asyncio.gather(*waiting)
        self._watch_later()

    def drain(self) -> None:
        """Serve on, and ask clients to connect to other servers."""
        self._is_stopping = True
        self.broadcast("drain")

    def reopen_logs(self) -> None:
        self.broadcast("reopen_log")

    async def stop(self, grace: float, for_models: float = 0.0) -> None:
        """Stop all processes; requests in flight have *grace* seconds, and models then *for_models*."""
        self._is_stopping = True
        if self._watching is not None:
            self._watching.cancel()
        for restart in self._restarts.values():
            restart.cancel()
        self.broadcast("stop", grace, for_models)
        running = list(self._running.values())
        exits = [self._exit_of(each) for each in running]
        if exits:
            await asyncio.wait(exits, timeout=grace + for_models + _EXIT_SECONDS)
        for each in running:
            each.kill()
            each.peer.close()
        if exits:
            await asyncio.wait(exits)
        for number in self._numbers:
            self._replicas.disconnect(number)

    def broadcast(self, name: str, *arguments: Any) -> None:
        """Call a service of all processes."""
        for each in self._running.values():
            each.peer.calls.notify(name, *arguments)

    async def wait_sent(self) -> None:
        """Wait until the sockets of all processes have what was broadcast: it comes before a client's next request.

        A process that does not read is waited for only so long.
        """
        end = self._loop.time() + _SENT_LIMIT_SECONDS
        for each in self._running.values():
            each.peer.link.flush()
        while any(each.peer.link.has_backlog for each in self._running.values()) and self._loop.time() < end:
            await asyncio.sleep(_SENT_SECONDS)

    async def announce(self, name: str, *arguments: Any) -> None:
        """Call a service of all processes, and wait until those that serve have done it."""
        await self._call_all(name, *arguments)

    async def take_regions(self, names: Sequence[str]) -> Sequence[str]:
        """Have all processes take regions of shared memory out of their registries; those that one of them uses.

        A process that does not respond may use all of them.
        """
        results, is_late = await self._call_all("take_regions", names)
        return names if is_late else [name for used in results for name in used]

    async def _call_all(self, name: str, *arguments: Any) -> tuple[list[Any], bool]:
        """The results of the processes that serve, and whether one of them is late."""
        calls = [(each.ready, each.peer.calls.call(name, *arguments)) for each in self._running.values()]
        waiting = [call for ready, call in calls if ready.done()]
        if not waiting:
            return [], False
        done, late = await asyncio.wait(waiting, timeout=_CONFIRM_SECONDS)
        return [call.result() for call in done if call.exception() is None], bool(late)

    def _on_routes_changed(self) -> None:
        for each in self._running.values():
            each.peer.session.on_routes_changed()

    # -- metrics --------------------------------------------------------------------------------------------------

    async def collect(self) -> None:
        """Have all processes report their metrics, which `families` adds up; slow ones keep what they reported last."""
        asked = [each.collect() for each in self._running.values() if each.ready.done()]
        if asked:
            await asyncio.wait(asked, timeout=_COLLECT_SECONDS)

    @property
    def request_count(self) -> int:
        """Number of requests that the processes have sent here, without their last response."""
        return sum(each.peer.session.request_count for each in self._running.values())

    def families(self, own: Sequence[Family], received_here: int) -> list[Family]:
        """The metrics of all processes, as reported last; *own* and the requests *received_here* are this one's."""
        received = {COORDINATOR: received_here, **dict.fromkeys(self._numbers, 0)}
        received.update({number: each.peer.session.received_count for number, each in self._running.items()})
        restarts = Family(
            "naiad_process_restarts_total",
            "Number of processes of the server that were started in place of others",
            MetricType.COUNTER,
            [Sample({}, self.restart_count)],
        )
        here = [*own, received_family(received), restarts]
        return self._sum.total([here, *(each.families for each in self._running.values())])

    async def figures(self) -> Mapping[int, Mapping[str, int]]:
        """What each process has to do now, by its id, under the names that people read."""
        await self.collect()
        found = {}
        for each in self._running.values():
            sums = {family.name: sum(sample.value for sample in family.samples) for family in each.families}
            found[each.process.pid] = {
                "connections": int(sums.get("naiad_process_connections", 0)),
                "requests": each.peer.session.received_count,
            }
        return found

    # -- one process ----------------------------------------------------------------------------------------------

    def _start(self, number: int) -> _RunningProcess:
        process, own = self._spawned.take()
        exited, take_back = exited_error(number), self._replicas.take_back
        peer = serve_process(
            own,
            lambda: self._on_end(started),
            self._engine,
            self._memory,
            self._tracer,
            self.services,
            exited,
            take_back,
        )
        started = _RunningProcess(number, process, peer)
        peer.calls.notify("configure", number, self._configuration)
        self._replicas.connect(number, peer)
        for other in self._running.values():
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            peer.calls.notify_with(ends[0].fileno(), "peer", other.number)
            other.peer.calls.notify_with(ends[1].fileno(), "peer", number)
            for end in ends:
                end.close()
        self._running[number] = started
        if self._listening is not None:
            self._listen(started)
        return started

    def _listen(self, each: _RunningProcess) -> None:
        calls = each.peer.calls
        if self.connections is not None:
            with self.connections.join(each.number) as end:
                calls.notify_with(end.fileno(), "connections")
            calls.services["connection_ended"] = partial(self.connections.on_ended, each.number)
        for name, arguments in self.first_calls():
            calls.notify(name, *arguments)
        calls.call("listen", self._listening).add_done_callback(partial(self._on_listening, each))

    def _on_listening(self, each: _RunningProcess, listening: asyncio.Future[None]) -> None:
        error = listening.exception()
        if each.ready.done():
            return
        if error is not None:
            each.ready.set_exception(error)
            return
        each.ready.set_result(None)
        if self.connections is not None:
            self.connections.begin(each.number)
        logger.info("process %d of the server serves (pid %d)", each.number, each.process.pid)

    def _on_end(self, each: _RunningProcess) -> None:
        each.peer.close()
        self._sum.retire([*each.families, received_family({each.number: each.peer.session.received_count})])
        if self.connections is not None:
            self.connections.leave(each.number)
        self._replicas.disconnect(each.number)
        exited = self._exit_of(each)
        del self._running[each.number]
        if not each.ready.done():
            each.ready.set_exception(
                NaiadError(f"cannot start process {each.number} of the server: it exited while it started")
            )
        if not self._is_stopping:
            exited.add_done_callback(lambda done: self._restart_later(each, done.result()))

    def _restart_later(self, each: _RunningProcess, status: int) -> None:
        if self._is_stopping:
            return
        number = each.number
        if time.monotonic() - each.started >= _STABLE_SECONDS:
            self._delays[number] = _FIRST_DELAY
        delay, self._delays[number] = self._delays[number], min(2 * self._delays[number], _LONGEST_DELAY)
        cause = f"signal {-status}" if status < 0 else f"exit code {status}"
        logger.error(
            "process %d of the server (pid %d) exited (%s); another one starts in %g s",
            number,
            each.process.pid,
            cause,
            delay,
        )
        self._restarts[number] = self._loop.call_later(delay, self._restart, number)

    def _restart(self, number: int) -> None:
        del self._restarts[number]
        self.restart_count += 1
        try:
            started = self._start(number)
        except OSError as error:
            logger.error("cannot start process %d of the server: %s", number, error)  # noqa: TRY400 - the cause is the system
            self._restarts[number] = self._loop.call_later(_LONGEST_DELAY, self._restart, number)
            return
        started.ready.add_done_callback(self._log_failure)

    def _log_failure(self, ready: asyncio.Future[None]) -> None:
        error = None if ready.cancelled() else ready.exception()
        if error is not None and not self._is_stopping:
            logger.error("%s", error)

    def _watch_later(self) -> None:
        self._watching = self._loop.call_later(HANG_SECONDS / _PINGS, self._watch)

    def _watch(self) -> None:
        """Ask all processes for a sign of life, and kill those that are hung: another one is started for each."""
        for each in self._running.values():
            if not each.ready.done() or each.exited is not None:
                continue
            each.peer.requests.trim()
            if each.ping is None or each.ping.done():
                each.ping = each.peer.calls.call("ping")
                each.silent = 0
            else:
                each.silent += 1
            if each.silent >= _PINGS:
                logger.error(
                    "process %d of the server (pid %d) has not responded for %g s and is killed",
                    each.number,
                    each.process.pid,
                    HANG_SECONDS,
                )
                each.kill()
        self._watch_later()

    def _exit_of(self, each: _RunningProcess) -> asyncio.Future[int]:
        if each.exited is None:
            each.exited = self._loop.run_in_executor(None, each.process.wait)
        return each.exited
