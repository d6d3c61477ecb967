"""The other processes of a simulated server, and the links between them.

Each has the real classes of a process beside the coordinator; their sockets, their memory and their ends are simulated.
All share one loop: what belongs to a process runs in a context that names it (`world.OWNER`). When it is killed, nothing
of that is called any more, its sockets end, and its guests exit a little later. The coordinator's pool starts another one.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import contextvars
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from simulation.world import OWNER, SECOND, SimulatedSocket, Stalled, World
from support.idle import leftovers_of
from support.links import held_by

from naiad.core.turns import LoopTurns
from naiad.engine.engine import Engine
from naiad.engine.settings import EngineSettings
from naiad.frontends.tracing.tracer import Tracer
from naiad.guests import channel
from naiad.guests.memory.link_memory import LinkMemory
from naiad.server.further_process import _Commands
from naiad.server.processes import link as link_module
from naiad.server.processes import load_table, request_link
from naiad.server.processes import pool as pool_module
from naiad.server.processes import remote_engine as remote_engine_module
from naiad.server.processes.link import Link
from naiad.server.processes.messages import ProcessConfiguration
from naiad.server.processes.own_replicas import OwnReplicas
from naiad.server.processes.peer import Peer
from naiad.server.processes.pool import ProcessPool
from naiad.server.processes.remote_engine import RemoteEngine
from naiad.server.processes.replicas import ReplicaProcesses
from naiad.server.processes.spawned import SpawnedProcess

if TYPE_CHECKING:
    from simulation.run import ServerRun

_MAINTAIN_SECONDS = 2.0
_LONG = 1 << 14
"""Payloads of more bytes are long where a history is deep, so that few of them need long inputs."""
_ROWS = 64
"""Of the table of loads: making the usual number takes a millisecond in each process."""
_FIRST_PID = 1 << 22
_ANSWERS = 100
"""How often a process that blocks takes in what has come, until its answer is there."""


class LinkSocket(SimulatedSocket):
    """One end of a link: bytes come late and cut anywhere, descriptors with the first byte that they were sent with."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.sent = self.taken = 0
        self.passed: deque[tuple[int, int, int]] = deque()  # first and last byte, and descriptor

    def setblocking(self, _: bool) -> None:
        pass

    def send(self, data: Any) -> int:
        return self.sendmsg([data], [])

    def sendmsg(self, buffers: Any, ancillary: Any) -> int:
        (data,) = buffers
        peer, rng = self.peer, self.world.rng
        assert isinstance(peer, LinkSocket)
        if self.is_closed or peer.is_closed or peer.was_reset:
            raise BrokenPipeError
        room = self.CAPACITY - peer._under_way - len(peer.arrived)
        if room <= 0:
            raise BlockingIOError
        data = bytes(data[:room])
        for _, _, descriptors in ancillary:
            peer.passed += [(self.sent, self.sent + len(data), os.dup(each)) for each in descriptors]
        self.sent += len(data)
        cuts = [rng.randrange(len(data)) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
            if end > start:
                peer._arrive_later(data[start:end])
        return len(data)

    def recvmsg_into(self, buffers: Any, _: int, __: int) -> tuple[int, list[Any], int, None]:
        (buffer,) = buffers
        size, ancillary = len(buffer), []
        if self.arrived and self.passed:
            first, last, descriptor = self.passed[0]
            if self.taken < first:
                size = min(size, first - self.taken)
            else:
                self.passed.popleft()
                size = min(size, last - self.taken)
                content = array.array("i", [descriptor]).tobytes()
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, content)]
        read = self.recv_into(memoryview(buffer)[:size])
        self.taken += read
        return read, ancillary, 0, None

    def close(self) -> None:
        if not self.is_closed:
            self.end()


class _PassedEnd:
    """An end of a socket pair that is sent to another process: a file stands for it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("naiad-simulated-end")
        self.inode = os.fstat(self.descriptor).st_ino

    def fileno(self) -> int:
        return self.descriptor

    def close(self) -> None:
        os.close(self.descriptor)


class FurtherProcess:
    """A process beside the coordinator; as `subprocess.Popen` for the pool that starts it.

    Attributes:
        number: Its number in the server; 0 until it knows that.
        status: Its exit status, once it has exited.
        engine: What its clients use.
        is_listening: Whether it takes clients.
        exited: Done when it has exited.
    """

    engine: RemoteEngine
    replicas: OwnReplicas
    link: Link

    def __init__(self, server: Server, pid: int, own: LinkSocket) -> None:
        self.pid = pid
        self.number = 0
        self.status: int | None = None
        self.is_listening = False
        self.ends = [own]
        self._server, self._socket, world = server, own, server.world
        self._world = world
        self.exited: asyncio.Future[int] = world.loop.create_future()
        self._context = contextvars.copy_context()
        self._context.run(OWNER.set, self)
        self._has_begun = False
        world.loop.call_later(world.rng.choice((1e-4, 1e-3, 0.05)), self._begin, context=self._context.copy())

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as this process."""
        return self._context.copy().run(function, *args)

    def _begin(self) -> None:
        self._has_begun = True
        loop = self._world.loop
        taken_in: Any = self._socket
        engine = self.engine = RemoteEngine(taken_in, lambda: self.exit(1))
        replicas = self.replicas = engine.replicas
        measure = replicas._measure

        def note_and_measure(totals: Any, order: Any, config: Any) -> None:
            self._server.run.note_totals(config.name, totals)
            measure(totals, order, config)

        replicas._measure = note_and_measure  # type: ignore[method-assign]
        self._commands = _Commands(loop, engine)
        self.link = engine.coordinator.link
        self._receive = self.link.receive
        self.link.receive = self._receive_answered  # type: ignore[method-assign]
        self._serving = loop.create_task(self._serve())

    def _receive_answered(self, timeout: float | None = 0) -> bool:
        """Let the coordinator answer while this process blocks: time stands still meanwhile."""
        if timeout == 0:
            return self._receive(0)
        for _ in range(_ANSWERS):
            self.link.flush()
            self.link._write()
            self._socket.peer.hurry()
            self._server.answer(self)
            self._socket.hurry()
            if self._receive(0):
                return True
            if not self.link.is_open:
                return False
        raise Stalled("a process that blocks gets no answer")

    async def _serve(self) -> None:
        commands = self._commands
        self.number, _ = await commands.configuration
        await asyncio.wait([commands.listen, commands.stop], return_when=asyncio.FIRST_COMPLETED)
        if not commands.stop.done():
            await asyncio.sleep(self._world.rng.choice((0, 1e-3, 0.02)))
            self.is_listening = True
            self._world.note("serves", self.number)
            commands.listening.set_result(None)
            maintaining = asyncio.get_running_loop().create_task(self._maintain())
            await commands.stop
            maintaining.cancel()
            await self._server.run.stop_clients(self, commands.stop.result()[0])
        self.is_listening = False
        await self.replicas.finish_requests(commands.for_requests())
        await self.replicas.stop(commands.for_models())
        self.link.flush()
        self.exit(0)

    async def _maintain(self) -> None:
        while True:
            await asyncio.sleep(_MAINTAIN_SECONDS)
            while self.engine.trim():
                await asyncio.sleep(0)
            self.replicas.maintain()

    # -- its end ------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """As `subprocess.Popen` has it."""
        self.exit(-9)

    def wait(self) -> None:
        """Never called: `SimulatedLoop.run_in_executor` waits for `exited`."""

    def exit(self, status: int) -> None:
        """Exit: nothing of it is called any more."""
        if self.status is not None:
            return
        self.status = status
        self._world.note("process exits", self.number, status)
        loop = self._world.loop
        loop.kill(self)
        for end in self.ends:
            while end.passed:
                self._server.lose(end.passed.popleft()[2])
            end.end()
        self._server.lose_unsent(self)
        if self._has_begun:
            while self.link.descriptors:
                self._server.lose(self.link.descriptors.popleft())
            self._close_memory()
        for guest in self._server.run.processes.guests.values():
            if guest.owner is self and guest.status is None:
                self._world.later(self._world.rng.choice((0, 1e-4, 5e-3)), guest.exit, -9)
        self._server.run.on_process_exit(self)
        self._world.context.copy().run(self.exited.set_result, status)

    def _close_memory(self) -> None:
        """Close what the system would close."""
        if self.replicas._table is not None:
            self.replicas._table.close()
        for link in self.links():
            for _, descriptor in link._outgoing:
                if descriptor is not None:
                    self._server.lose(descriptor)
            link._outgoing.clear()
        for shared in self.engine.memory.inputs.values():
            os.close(shared.descriptor)
            shared.descriptor = -1
        for outputs in self.engine.memory._outputs.values():
            os.close(outputs.descriptor)
        self.engine.memory._outputs.clear()
        for guest in self._server.run.processes.guests.values():
            if guest.owner is self:
                guest.memory.close_descriptors()

    def links(self) -> list[Link]:
        """Its ends of all links."""
        return [peer.link for peer in self.engine._peers()]

    def leftovers(self) -> Iterator[str]:
        """What it still has when nothing is in progress."""
        engine, replicas, name = self.engine, self.replicas, f"process {self.number}"
        for version in replicas._versions():
            yield from (f"{name}: {each}" for each in leftovers_of(version))
        if replicas.request_count:
            yield f"{name}: requests of replicas or ensembles"
        counts = {
            "calls to the coordinator": len(engine.coordinator.calls._open),
            "routes that are sought": len(engine._sought),
            "calls of guests that are relayed": len(replicas._relay._relayed),
            "calls of guests": sum(map(len, replicas._relay._own._calls.values())),
            "starts": len(replicas._starts),
            "stops": len(replicas._stops),
        }
        yield from (f"{name}: {count} {what}" for what, count in counts.items() if count)
        yield from _of_peer(f"{name} and the coordinator", engine.coordinator, engine.memory)
        for number, peer in engine.peers.items():
            yield from _of_peer(f"{name} and process {number}", peer, engine.memory)


def _of_peer(name: str, peer: Peer, memory: LinkMemory) -> Iterator[str]:
    link, session = peer.requests, peer.session
    held = held_by(link)
    alive = {each.number for each in memory._outputs.values()}
    counts = {
        "requests there": held.requests,
        "copied requests": held.copied,
        "abandoned requests": held.abandoned,
        "bytes of inputs": held.input_bytes,
        "counts": len(link._counts),
        "deferred messages": len(peer.link._frames),
        "references": len(link._references),
        "requests from there": len(session._open),
        "lent responses": len(session._lent),
        "traces": len(session._traces),
        "segments of guests that have exited": len(session._segments - alive),
    }
    yield from (f"{name}: {count} {what}" for what, count in counts.items() if count)


class Server:
    """All processes of a simulated server: what its coordinator has of the others, and how they are started.

    Attributes:
        processes: All that were started beside the coordinator.
        facade: What the coordinator's clients use.
    """

    def __init__(self, run: ServerRun, count: int, patch: pytest.MonkeyPatch) -> None:
        self.run, self.world = run, run.world
        self.processes: list[FurtherProcess] = []
        patch.setattr(load_table, "_ROWS", _ROWS)
        self.replicas = ReplicaProcesses(count)
        self.memory = LinkMemory(count - 1)
        self._count = count
        self._ends: dict[int, LinkSocket] = {}
        self._turns: dict[object, LoopTurns] = {}
        sockets = SimpleNamespace(
            AF_UNIX=socket.AF_UNIX, SOCK_STREAM=socket.SOCK_STREAM, socketpair=self._pair, socket=self._adopt
        )
        patch.setattr(pool_module, "socket", sockets)
        patch.setattr(remote_engine_module, "socket", sockets)
        for module in (link_module, channel):
            patch.setattr(module, "turns_of", self._turns_of)
        if run.history.deep:
            patch.setattr(link_module, "LONG_FRAME", _LONG)
            patch.setattr(link_module, "_PIECE", _LONG)
            patch.setattr(request_link, "COPIED_AT_ONCE", _LONG)

    def start(self, engine: Engine, settings: EngineSettings) -> None:
        """Start all processes, which wait for the ports to be opened: see `app.start_processes`."""
        self.engine = engine
        self.replicas.services = engine.services
        engine.services.calls.ask_again = self.replicas.gather_waits
        engine.count_elsewhere = self.replicas.gather
        options: Any = SimpleNamespace(
            metrics=SimpleNamespace(config=settings.metrics),
            http=SimpleNamespace(ui=False),
            general=SimpleNamespace(allow_client_shm=False),
        )
        log: Any = None
        configuration = ProcessConfiguration(options, log, self._count, 0)
        spawned: Any = self
        self.pool = ProcessPool(engine, self.memory, Tracer(), self._count - 1, configuration, spawned, self.replicas)
        engine.wait_announced = self.pool.wait_sent
        self.facade = engine
        self.pool.connect()

    async def stop(self) -> None:
        """End all other processes: see `coordinator.listen_in_processes`."""
        exit_time = self.engine.exit_time
        grace = exit_time.for_requests()
        await asyncio.gather(self.pool.stop(grace, exit_time.for_models()), self.run.stop_clients(None, grace))

    # -- how they are started -----------------------------------------------------------------------------------

    def take(self) -> SpawnedProcess:
        """See `SpawnedProcesses.take`."""
        own, other = self._new_pair()
        process: Any = FurtherProcess(self, _FIRST_PID + len(self.processes), other)
        self.processes.append(process)
        ours: Any = own
        return SpawnedProcess(process, ours)

    def _new_pair(self) -> tuple[LinkSocket, LinkSocket]:
        number = (1 << 40) + 2 * len(self._ends) + 4 * SECOND * len(self.processes)
        one, other = LinkSocket(self.world, number), LinkSocket(self.world, number + 1)
        one.peer, other.peer = other, one
        return one, other

    def _pair(self, *_: object) -> tuple[_PassedEnd, _PassedEnd]:
        """As `socket.socketpair`."""
        passed = _PassedEnd(), _PassedEnd()
        for each, end in zip(passed, self._new_pair(), strict=True):
            self._ends[each.inode] = end
        return passed

    def _adopt(self, *, fileno: int) -> LinkSocket:
        """As `socket.socket`, in the process that has got the descriptor."""
        end = self._ends[os.fstat(fileno).st_ino]
        os.close(fileno)
        process = OWNER.get()
        assert isinstance(process, FurtherProcess)
        process.ends.append(end)
        return end

    def lose(self, descriptor: int) -> None:
        """A process exits that was sent a descriptor, and has not taken it."""
        self._lose_end(descriptor)
        os.close(descriptor)

    def _lose_end(self, descriptor: int) -> None:
        end = self._ends.get(os.fstat(descriptor).st_ino)
        if end is not None:
            end.end()

    def lose_unsent(self, process: FurtherProcess) -> None:
        """A process exits: it gets no descriptors any more that wait to be sent."""
        link = self._link_to(process)
        for _, descriptor in () if link is None else link._outgoing:
            if descriptor is not None:
                self._lose_end(descriptor)

    def _link_to(self, process: FurtherProcess) -> Link | None:
        found: Any = self.pool._running.values()
        return next((each.peer.link for each in found if each.process is process), None)

    def answer(self, process: FurtherProcess) -> None:
        """Let the coordinator handle what a process has sent that blocks."""
        link = self._link_to(process)
        if link is None or not link.is_open:
            process._socket.is_ended = True
            return

        def handle() -> None:
            link.receive()
            link.flush()
            link._write()

        self.world.context.copy().run(handle)

    def _turns_of(self, loop: asyncio.AbstractEventLoop) -> LoopTurns:
        """Those of a process: it does not resume what another one has deferred."""
        owner = OWNER.get()
        if owner not in self._turns:
            self._turns[owner] = LoopTurns(loop)
        return self._turns[owner]

    # -- what is left -------------------------------------------------------------------------------------------

    def running(self) -> Mapping[int, FurtherProcess]:
        """The processes that run and have their number."""
        return {each.number: each for each in self.processes if each.status is None and each.number}

    def leftovers(self) -> Iterator[str]:
        """What is left when nothing is in progress."""
        running = self.running()
        serving = [number for number, each in running.items() if each.is_listening]
        if len(serving) < self._count - 1:
            yield f"processes that do not serve: {self._count - 1 - len(serving)}"
            return
        for number, process in running.items():
            yield from process.leftovers()
            if missing := running.keys() - {number, *process.engine.peers}:
                yield f"process {number} has no link to {sorted(missing)}"
        for number, run in self.replicas.running.items():
            name = f"the coordinator and process {number}"
            yield from _of_peer(name, run.peer, self.memory)
            results = sum(len(each.results) for each in run.guests._guests.values())
            yield from (f"{name}: {results} results" for _ in range(bool(results)))
            orders = len(run.peer.calls._open)
            yield from (f"{name}: {orders} orders" for _ in range(bool(orders)))
        alive = self.engine._registry.versions_alive
        for number, version in self.replicas._versions.items():
            if number not in alive:
                yield f"replicas of a version that is gone: {version._of[0]}"
            elsewhere = self.replicas.table.requests_elsewhere(version.row)
            yield from (f"{version._of[0]}: {elsewhere} requests elsewhere" for _ in range(bool(elsewhere)))
            for place, replica in version._replicas.items():
                has = running[place].replicas.find(number)
                if (has is None) != (replica.report is None):
                    yield f"{version._of[0]}: process {place} and the coordinator know different things"
        for number, process in running.items():
            for load in process.replicas._replicas:
                if load not in self.replicas._versions:
                    yield f"process {number} runs a replica of a version that is gone"

    def close(self) -> None:
        """Close what the system has for the coordinator, after its stop."""
        for process in self.processes:
            process.exit(-9)
        with contextlib.suppress(OSError):
            self.replicas.close()
