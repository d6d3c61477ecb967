"""What is below the engine, simulated: a clock, an event loop, sockets and processes. A seed decides everything.

The engine, its schedulers, loads, workers, channels and segments run unchanged. Time passes only when the loop has
nothing to do, and a little in each of its turns. Sockets deliver bytes late, in order, and cut anywhere. What runs on
threads runs on the loop, at a time that the seed decides.

The processes of one server share the loop. What belongs to one of them runs in a context that names it (`OWNER`), so that
nothing of a process that was killed is called any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import math
import random
import selectors
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from naiad.core import clock
from naiad.guests.launch import LaunchedGuest, LaunchSpec
from naiad.guests.memory.instance import InstanceMemory

SECOND = 1_000_000_000
START_NS = 1_000 * SECOND
MOST_TURNS = 60_000
QUIET_NS = SECOND // 4
"""If nothing happens for so long, everything that is due has been done."""


OWNER: contextvars.ContextVar[object] = contextvars.ContextVar("owner", default=None)
"""The process of the server that runs now; None for the coordinator, and for what is no process of the server."""


class Stalled(Exception):
    """Nothing will ever happen any more, or the loop never rests."""


class World:
    """One simulated world.

    Attributes:
        rng: Decides what is left open.
        now_ns: The time.
        events: What has happened, as time and words.
        problems: Exceptions that reached the loop.
        on_quiet: Called when nothing will happen for `QUIET_NS`.
        on_moment: Called with the name of each event of a guest (`Moment` in `histories`).
        context: That of what happens by itself: bytes that arrive, guests.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ns = START_NS
        self.events: list[tuple[Any, ...]] = []
        self.problems: list[str] = []
        self.on_quiet: Callable[[], None] = lambda: None
        self.on_moment: Callable[[str, str], None] = lambda what, model: None
        self.context = contextvars.copy_context()
        self.loop = SimulatedLoop(self)

    def later(self, seconds: float, function: Callable[..., object], *args: object) -> None:
        """Call a function by itself, whichever process calls this."""
        self.loop.call_later(seconds, function, *args, context=self.context)

    def note(self, *event: object) -> None:
        """Add to the events."""
        self.events.append((self.now_ns - START_NS, *event))

    def digest(self) -> str:
        """A hash of all events: equal for equal histories, in any process."""
        return hashlib.blake2b(repr(self.events).encode(), digest_size=8).hexdigest()

    def monotonic(self) -> float:
        return self.now_ns / SECOND

    def monotonic_ns(self) -> int:
        return self.now_ns

    def perf_counter(self) -> float:
        """Now and then much time has passed, so that work which has a share of a turn is deferred."""
        if self.rng.random() < 0.1:
            self.now_ns += self.rng.choice((100_000, 1_000_000, 3_000_000))
        return self.now_ns / SECOND

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let the engine read this clock."""
        before = clock.monotonic, clock.monotonic_ns, clock.perf_counter
        clock.monotonic, clock.monotonic_ns, clock.perf_counter = self.monotonic, self.monotonic_ns, self.perf_counter
        try:
            yield
        finally:
            clock.monotonic, clock.monotonic_ns, clock.perf_counter = before

    def close(self) -> None:
        """End the loop, whatever is left."""
        self.loop.end_tasks()
        self.loop._scheduled.clear()
        self.loop._ready.clear()
        self.loop.close()


class _Selector(selectors.BaseSelector):
    """Never waits: lets the clock go to the next timer. It knows sockets by what `SimulatedLoop` keeps of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turns = 0
        self.readable: dict[int, SimulatedSocket] = {}
        self._keys: dict[object, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Any:
        return self._keys

    def close(self) -> None:
        self._keys.clear()

    def select(self, timeout: float | None = None) -> Any:
        world, rng = self.world, self.world.rng
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Stalled("the loop never rests")
        world.now_ns += 200 + int(20_000 * rng.random())  # code takes time, too
        if self.readable and (timeout != 0 or rng.random() < 0.8):  # else timers that are due come first
            found = list(self.readable.values())
            self.readable.clear()
            rng.shuffle(found)
            for each in found:
                if each.on_readable is not None:
                    world.loop.call_soon(each.on_readable, context=each.reader)
        elif self.readable:
            pass
        elif timeout is None:
            world.on_quiet()
            raise Stalled("nothing will ever happen")
        elif timeout > 0:
            if timeout * SECOND > QUIET_NS:
                world.on_quiet()
            world.now_ns += math.ceil(timeout * SECOND)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose sockets are `SimulatedSocket`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._simulated = _Selector(world)
        super().__init__(self._simulated)
        self._clock_resolution = 1e-9
        self._dead: set[object] = set()
        self._ending: object = None  # whose tasks are ended, which may make others
        self._tasks: dict[asyncio.Task[Any], object] = {}
        self.set_exception_handler(self._on_exception)
        self.set_task_factory(self._make_task)

    @property
    def turns(self) -> int:
        return self._simulated.turns

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        owner = self._ending or OWNER.get()
        if owner is not None:
            self._tasks[task] = owner
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self._unless_dead(super().call_soon(callback, *args, context=context))

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self._unless_dead(super().call_at(when, callback, *args, context=context))

    def _unless_dead(self, handle: Any) -> Any:
        if self._dead and handle._context.get(OWNER) in self._dead:
            handle.cancel()
        return handle

    def kill(self, owner: object) -> None:
        """Call nothing of a process any more."""
        self._dead.add(owner)
        for handle in (*self._scheduled, *self._ready):
            if not handle.cancelled():
                self._unless_dead(handle)

    def tasks_of(self, owner: object) -> list[asyncio.Task[Any]]:
        """The tasks of a process that have not ended."""
        return [task for task, of in self._tasks.items() if of is owner and not task.done()]

    def tasks_of_dead(self) -> set[asyncio.Task[Any]]:
        """The tasks of processes that were killed."""
        return {task for task, owner in self._tasks.items() if owner in self._dead}

    def end_tasks(self) -> None:
        """End what is left of processes that were killed, without a word."""
        asyncio._set_running_loop(self)  # what they do in the end may make tasks
        while self._tasks:
            task, owner = self._tasks.popitem()
            if owner in self._dead and not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._ending = owner
                with contextlib.suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
        asyncio._set_running_loop(None)

    def _on_exception(self, _: object, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.problems.append(f"{context['message']}: {type(error).__name__}: {error}")

    def time(self) -> float:
        return self._world.now_ns / SECOND

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run the function on the loop, at once or later."""
        waited_for = getattr(getattr(func, "__self__", None), "exited", None)
        if waited_for is not None:  # a thread would wait for the end of a process
            return waited_for  # type: ignore[no-any-return]
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        delay = self._world.rng.choice((0, 0, 0, 1e-4, 2e-3))
        if delay:
            self.call_later(delay, run)
        else:
            self.call_soon(run)
        return future

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        fd.on_readable, fd.reader = callback, contextvars.copy_context()
        if fd.arrived or fd.is_ended:
            self.mark_readable(fd)

    def remove_reader(self, fd: Any) -> bool:
        fd.on_readable = None
        return self._simulated.readable.pop(fd.number, None) is not None

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        fd.on_writable, fd.writer = callback, contextvars.copy_context()
        fd.offer_room()

    def remove_writer(self, fd: Any) -> bool:
        fd.on_writable = None
        return True

    def mark_readable(self, socket: SimulatedSocket) -> None:
        self._simulated.readable[socket.number] = socket

    def scheduled(self) -> list[str]:
        """What is still to be called, by name."""
        handles = [each for each in (*self._scheduled, *self._ready) if not each.cancelled()]
        return sorted(getattr(each._callback, "__qualname__", repr(each._callback)) for each in handles)


class SimulatedSocket:
    """One end of a pair of stream sockets."""

    CAPACITY = 1 << 16

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.peer: SimulatedSocket
        self.arrived = bytearray()
        self.is_ended = self.was_reset = self.is_closed = False
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.reader = self.writer = world.context
        self._coming: deque[bytes] = deque()
        self._under_way = 0
        self._last_arrival = 0

    def send(self, data: Any) -> int:
        peer, rng = self.peer, self.world.rng
        if self.is_closed or peer.is_closed or peer.was_reset:
            raise BrokenPipeError
        room = self.CAPACITY - peer._under_way - len(peer.arrived)
        if room <= 0:
            raise BlockingIOError
        data = bytes(data[:room])
        cut = rng.randrange(1, len(data)) if len(data) > 1 and rng.random() < 0.05 else 0
        for part in (data[:cut], data[cut:]) if cut else (data,):
            peer._arrive_later(part)
        return len(data)

    def _arrive_later(self, part: bytes) -> None:
        rng = self.world.rng
        self._under_way += len(part)
        delay = rng.choice((0, 0, 20_000, 100_000, 1_000_000)) if rng.random() < 0.95 else rng.randrange(30_000_000)
        self._last_arrival = max(self._last_arrival + 1, self.world.now_ns + delay)  # a stream keeps its order
        self._coming.append(part)
        self.world.loop.call_at(self._last_arrival / SECOND, self._arrive, context=self.world.context)

    def _arrive(self) -> None:
        if not self._coming:
            return  # it was hurried
        part = self._coming.popleft()
        self._under_way -= len(part)
        if not self.is_closed:
            self.arrived += part
            self.world.loop.mark_readable(self)

    def hurry(self) -> None:
        """All that was sent arrives now: somebody waits for it while time stands still."""
        while self._coming:
            self._arrive()

    def recv_into(self, buffer: Any) -> int:
        if self.arrived:
            size = min(len(buffer), len(self.arrived))
            buffer[:size] = self.arrived[:size]
            del self.arrived[:size]
            if self.arrived or self.is_ended:
                self.world.loop.mark_readable(self)
            self.peer.offer_room()
            return size
        if self.was_reset:
            raise ConnectionResetError
        if self.is_ended:
            return 0
        raise BlockingIOError

    def take(self) -> bytes:
        """All that has arrived."""
        data, self.arrived = bytes(self.arrived), bytearray()
        self.peer.offer_room()
        return data

    def offer_room(self) -> None:
        if self.on_writable is not None and len(self.peer.arrived) + self.peer._under_way < self.CAPACITY:
            self.world.loop.call_soon(lambda: self.on_writable and self.on_writable(), context=self.writer)

    def end(self) -> None:
        """The process at this end has exited: what it has sent arrives first."""
        self.is_closed = True
        at = max(self.peer._last_arrival + 1, self.world.now_ns)
        self.world.loop.call_at(at / SECOND, self._end_peer, bool(self.arrived), context=self.world.context)

    def _end_peer(self, reset: bool) -> None:
        self.peer.is_ended, self.peer.was_reset = True, reset
        self.world.loop.mark_readable(self.peer)

    def close(self) -> None:
        self.is_closed = True

    def fileno(self) -> int:
        return -1


class SimulatedProcesses:
    """Implements `naiad.guests.launch.GuestProcesses`.

    Attributes:
        guests: All guests, by process id, also those that have exited.
    """

    FIRST_PID = 1 << 23
    """Above the ids of real processes."""

    def __init__(
        self, world: World, make_guest: Callable[[int, LaunchSpec, InstanceMemory, SimulatedSocket], Any]
    ) -> None:
        self.guests: dict[int, Any] = {}
        self._world = world
        self._make_guest = make_guest
        _current.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """How to start a guest is sent to other processes of the server, which start it here, too."""
        return _current_processes, ()

    def _pair(self, number: int) -> tuple[SimulatedSocket, SimulatedSocket]:
        one, other = SimulatedSocket(self._world, number), SimulatedSocket(self._world, number + 1)
        one.peer, other.peer = other, one
        return one, other

    async def launch(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
        await asyncio.sleep(self._world.rng.choice((0, 0, 1e-3)))
        pid = self.FIRST_PID + len(self.guests)
        channel, theirs = self._pair(4 * pid)
        side, other = self._pair(4 * pid + 2)
        bridges = SimpleNamespace(close=lambda: None)
        guest = self.guests[pid] = self._make_guest(pid, spec, memory, theirs)
        guest.side, guest.owner = other, OWNER.get()
        sockets: Any = SimpleNamespace(channel=channel, side=side, bridges=bridges)
        return LaunchedGuest(
            pid=pid, output=(), sockets=sockets, guest_id=str(pid), reap=lambda ended: ended(guest.status, "")
        )

    def watch(self, launched: LaunchedGuest, on_exit: Callable[[], None]) -> None:
        self.guests[launched.pid].watch(on_exit)

    def kill(self, pid: int) -> None:
        self.guests[pid].exit(-9)

    def send_signal(self, pid: int, number: int) -> None:
        pass

    def cpu_seconds(self, pid: int) -> float:
        return 0.0

    def close(self) -> None:
        pass

    def running(self) -> list[int]:
        return [pid for pid, guest in self.guests.items() if guest.status is None]


_current: deque[SimulatedProcesses] = deque(maxlen=1)


def _current_processes() -> SimulatedProcesses:
    return _current[0]
