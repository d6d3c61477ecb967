"""The guest's end of the socket: whole messages in, whole messages out, from any thread.

Whoever waits for a message reads the socket, so nothing polls and no thread exists only to read. Where several threads
wait, one of them leads: it reads for all, wakes those whose message has come, and hands the lead on when it has its
own. An event loop takes part by watching the socket.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Type, TypeVar, Union

from naiad_stub import wire
from naiad_stub.busy_poll import BusyPoll
from naiad_stub.messages import TO_ANY_THREAD, ReleaseInputs, ToAnyThread, pack, unpack

if TYPE_CHECKING:  # dear to import, and few models need it
    import asyncio

_RECEIVE = 1 << 16
_RETURNS_RIDE = 16
"""Small input blocks that are given back together: for each one alone a frame would cost more than keeping it."""


M = TypeVar("M", bound=ToAnyThread)


def running_loop() -> Optional[asyncio.AbstractEventLoop]:
    """The event loop that runs on this thread, None where there is none."""
    module = sys.modules.get("asyncio")
    loop: Optional[asyncio.AbstractEventLoop] = None if module is None else module._get_running_loop()  # noqa: SLF001 - the public one raises
    return loop


class HostGoneError(Exception):
    """The host closed the socket: there is nobody left to serve."""


class Waiter:
    """What a thread waits for.

    Attributes:
        is_done: Whether it has come; set through `Channel.finish`.
    """

    __slots__ = ("_wake", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._wake: Optional[threading.Lock] = None


class Channel:
    """Frames over a connected stream socket.

    Attributes:
        handlers: What is called with the payload of each frame of a kind, by whichever thread reads it; it must
            neither wait nor fail. Frames of all other kinds are queued for `receive`.
        on_queued: Called when a thread has queued frames; None while the main thread waits in `receive`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._busy = BusyPoll(0)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._reader = wire.FrameReader()
        self._frames: deque[tuple[int, bytes]] = deque()
        # A buffer of its own: socket.recv(n) makes one of n bytes each time, which costs three system calls.
        self._buffer = bytearray(_RECEIVE)
        self._view = memoryview(self._buffer)
        self.handlers: Dict[int, Callable[[bytes], None]] = {}
        self.on_queued: Optional[Callable[[], None]] = None
        self._send_lock = threading.Lock()
        self._posted: deque[Union[bytes, Callable[[], bytes]]] = deque()
        self._returned: deque[int] = deque()  # input blocks to be given back with one of the next messages
        self._is_return_due = False  # with the very next one
        self._leading = threading.Lock()  # held by the thread that reads
        self._mutex = threading.Lock()  # guards what follows
        self._followers: Dict[Waiter, None] = {}
        self._receiver = Waiter()  # the thread in `receive`, while another one leads
        self._is_gone = False
        self._watches: Dict[asyncio.AbstractEventLoop, int] = {}

    def add_handler(self, message_class: Type[M], handler: Callable[[M], None]) -> None:
        """Have *handler* called with each message of a class, by whichever thread reads it.

        It must neither block nor raise: the thread that reads may be any thread of the model.
        """
        kind = message_class.kind

        def handle(payload: bytes) -> None:
            message = unpack(TO_ANY_THREAD, kind, payload)
            assert isinstance(message, message_class)
            handler(message)

        self.handlers[kind] = handle

    def enable_busy_poll(self, limit_us: int) -> None:
        """From now on ask again and again, instead of sleeping, where messages come every *limit_us* microseconds."""
        self._busy = BusyPoll(limit_us)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send one or more whole frames.

        Raises:
            HostGoneError: If the host has closed its end.
        """
        with self._send_lock:
            if self._posted or self._is_return_due:
                data = self._take_posted() + data
            self._write(data)
        if self._posted:
            self.flush()

    def post(self, data: bytes) -> None:
        """Send one or more whole frames, from where nothing may wait for a lock, such as a finalizer."""
        self._posted.append(data)
        self.flush()

    def post_later(self, make: Callable[[], bytes]) -> None:
        """Have the next message, or `flush`, take along the frames that *make* makes then. Callable anywhere."""
        self._posted.append(make)

    def release_input(self, block: int) -> None:
        """Tell the host with the next message that nothing refers to an input block any more. Callable anywhere."""
        self._returned.append(block)
        self._is_return_due = True

    def release_small_input(self, block: int) -> None:
        """Likewise for a block that may as well wait for others."""
        self._returned.append(block)
        if len(self._returned) >= _RETURNS_RIDE:
            self._is_return_due = True

    def flush(self) -> None:
        """Send what is posted, unless another thread is sending and will see to it. Never raises."""
        # Whoever holds the lock looks at the queue again when it has let go.
        while self._posted and self._send_lock.acquire(blocking=False):
            try:
                data = self._take_posted()
                if data:
                    self._write(data)
            except HostGoneError:
                return
            finally:
                self._send_lock.release()

    def _take_posted(self) -> bytes:
        parts = []
        returned = self._returned
        self._is_return_due = False
        if returned:
            blocks = [returned.popleft() for _ in range(len(returned))]
            parts.append(pack(ReleaseInputs(blocks)))
        posted = self._posted
        while posted:
            item = posted.popleft()
            parts.append(item if isinstance(item, bytes) else item())
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:  # the host's end is closed, or ours: in a process that a model forked
            raise HostGoneError from error

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self) -> tuple[int, bytes]:
        """Wait for the next queued frame. For one thread at a time.

        Raises:
            HostGoneError: If the host has closed its end.
        """
        frames = self._frames
        while not frames:
            if self._leading.acquire(blocking=False):
                try:
                    while not frames:
                        self._read(waits=True)
                finally:
                    self._hand_on()
            else:
                self._receiver.is_done = False
                self._follow(self._receiver)
        self._pass_by()
        return frames.popleft()

    def take(self) -> Optional[tuple[int, bytes]]:
        """The next queued frame, if there is one."""
        return self._frames.popleft() if self._frames else None

    def wait(self, waiter: Waiter) -> None:
        """Wait until *waiter* is done.

        Raises:
            HostGoneError: If the host has closed its end.
        """
        while not waiter.is_done:
            if self._leading.acquire(blocking=False):
                try:
                    while not waiter.is_done:
                        self._read(waits=True)
                finally:
                    self._hand_on()
            else:
                self._follow(waiter)
        self._pass_by()

    def finish(self, waiter: Waiter) -> None:
        """Mark *waiter* as done and wake its thread."""
        with self._mutex:
            waiter.is_done = True
            self._wake(waiter)

    def poll(self) -> None:
        """Handle what has arrived by now; never waits, also not for another thread that reads."""
        if not self._leading.acquire(blocking=False):
            return
        try:
            while self._read(waits=False):
                pass
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        """End leading."""
        self._leading.release()
        if self._followers:
            self._promote()

    def _pass_by(self) -> None:
        """A thread that goes on may have been woken to lead, and found its own message there: then another has to."""
        if self._followers and not self._leading.locked():
            self._promote()

    def _follow(self, waiter: Waiter) -> None:
        """Sleep until *waiter* is done or it is its thread's turn to lead."""
        with self._mutex:
            if self._is_gone:
                raise HostGoneError
            if waiter.is_done:
                return
            waiter._wake = wake = threading.Lock()  # noqa: SLF001 - one class with this one
            wake.acquire()
            self._followers[waiter] = None
        if waiter is self._receiver and self._frames:  # queued before the leader could see this follower
            self.finish(waiter)
            return
        if not self._leading.locked():  # the leader left before it could see this follower
            self._promote()
        try:
            wake.acquire()
        except BaseException:  # raised by a signal handler of the model
            with self._mutex:
                self._followers.pop(waiter, None)
            self._pass_by()
            raise

    def _promote(self) -> None:
        """Wake one follower, who will lead."""
        with self._mutex:
            for waiter in self._followers:
                self._wake(waiter)
                return

    def _wake(self, waiter: Waiter) -> None:
        if self._followers.pop(waiter, waiter) is None and waiter._wake is not None:  # noqa: SLF001 - likewise
            waiter._wake.release()  # noqa: SLF001 - likewise

    def _read(self, *, waits: bool) -> bool:
        """Handle what has arrived; False where that is nothing, and waiting was not allowed."""
        size = self._receive()
        while size < 0:
            if not waits:
                return False
            size = self._wait()
        if not size:
            self._end()
            raise HostGoneError
        for kind, payload in self._reader.feed(bytes(self._view[:size])):
            handler = self.handlers.get(kind)
            if handler is not None:
                handler(payload)
            else:
                self._frames.append((kind, payload))
                if self._followers:
                    self.finish(self._receiver)
                if self.on_queued is not None:
                    self.on_queued()
        return True

    def _wait(self) -> int:
        """Wait until something arrives, and receive it."""
        busy = self._busy
        now = time.monotonic_ns()
        busy.beat(now)
        while busy.is_on:
            os.sched_yield()
            size = self._receive()
            before, now = now, time.monotonic_ns()
            if size >= 0:
                busy.beat(now)
                busy.gave_way(before, now, found=True)
                return size
            busy.gave_way(before, now, found=False)
        # Not a blocking recv: that is woken, in vain, each time the host reads what this end has sent (the system then
        # tells all who wait at this socket that there is room in it), in the midst of the host's work.
        self._poll.poll()
        busy.beat(time.monotonic_ns())
        return self._receive()

    def _receive(self) -> int:
        """Fill the buffer without waiting: how many bytes, 0 at the end of the stream, -1 for none now."""
        try:
            return self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return -1
        except OSError:
            return 0

    def _end(self) -> None:
        with self._mutex:
            self._is_gone = True
            waiting: List[Waiter] = list(self._followers)
            for waiter in waiting:
                self._wake(waiter)

    # -- event loops --------------------------------------------------------------------------------------------

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have *loop*, which runs on this thread, read what arrives; as often as it was called, `unwatch` must be."""
        count = self._watches.get(loop, 0)
        if not count:  # loops that were closed before their calls were answered
            for closed in [other for other in list(self._watches) if other.is_closed()]:
                self._watches.pop(closed, None)
        self._watches[loop] = count + 1
        if not count:
            loop.add_reader(self._socket.fileno(), self._arrived, loop)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """End one `watch`."""
        count = self._watches.pop(loop, 0) - 1
        if count > 0:
            self._watches[loop] = count
        elif not loop.is_closed():
            loop.remove_reader(self._socket.fileno())

    def _arrived(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.poll()
        except HostGoneError:
            loop.remove_reader(self._socket.fileno())
            if self.on_queued is not None:
                self.on_queued()

    @property
    def is_gone(self) -> bool:
        """Whether the host has closed its end."""
        return self._is_gone

    def detach(self) -> None:
        """In a process the model forked: this socket is its parent's, two voices on it would be none."""
        self._is_gone = True
        self._send_lock = threading.Lock()
        self._leading = threading.Lock()
        self._mutex = threading.Lock()
        self._followers = {}
        with contextlib.suppress(OSError):
            self._socket.close()
