"""The guest's end of the socket: whole messages in, whole messages out, from any thread.

**Receiving.** No thread exists only to read: on the request path it would have to wake the thread that runs the model
for each message. Instead, a thread that waits reads the socket itself. Where several threads wait, one of them leads
(it holds `_leading`): it reads on behalf of all, and calls the handler of each message, which marks a `Waiter` as done.
The others follow: each sleeps on its own lock, until its waiter is done or it is woken to lead. An event loop takes
part by watching the socket (`watch`).

The risk of this design is a deadlock: all threads sleep, and none leads. So every thread that stops leading,
and every follower that was woken and leaves, promotes one follower (`_promote_follower`, `_on_wait_end`). A follower
that registers just when the leader leaves checks for that itself (`_follow`). Promoting one too many is harmless: the
woken thread looks whether it must lead, and sleeps again.

**Sending.** `send` takes the send lock. Finalizers, which run at any line of any thread, must not wait for a lock: they
`post`. Posted frames are sent by the thread that holds the lock, or by the next message. Each thread looks at the queue
again after it has released the lock, so nothing stays in it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import deque
from select import POLLIN
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Type, TypeVar, Union

from naiad_stub import wire
from naiad_stub.busy_poll import BusyPoll
from naiad_stub.messages import TO_ANY_THREAD, ReleaseInputs, ToAnyThread, pack, unpack
from naiad_stub.primitives import Lock, Socket, allocate_lock, poll

if TYPE_CHECKING:  # slow to import, and few models need it
    import asyncio

_RECEIVE = 1 << 16
_SMALL_BLOCKS_TOGETHER = 16
"""Small input blocks are released this many at a time: a frame for each would cost more than keeping it longer."""


M = TypeVar("M", bound=ToAnyThread)


def running_loop() -> Optional[asyncio.AbstractEventLoop]:
    """The event loop that runs on this thread, None if none does."""
    module = sys.modules.get("asyncio")
    loop: Optional[asyncio.AbstractEventLoop] = None if module is None else module._get_running_loop()
    return loop


FORKED = (
    "this process was forked from the model's and can only call other models: respond, load models and use metrics "
    "in the process that runs `execute`; a function of a pool may return what is needed for that"
)


class HostGoneError(Exception):
    """The host closed the socket, or this process is a child that the model forked."""


class Waiter:
    """An event that a thread waits for.

    Attributes:
        is_done: Whether it has happened; set by `Channel.finish`.
    """

    __slots__ = ("_wake", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._wake: Optional[Lock] = None


class Channel:
    """Frames over a connected stream socket.

    Attributes:
        handlers: Called with the payload of each frame of a kind, by the thread that reads it; a handler must neither
            block nor raise. Frames of all other kinds are queued for `receive`.
        on_queued: Called when a thread has queued frames; None while the main thread waits in `receive`.
    """

    def __init__(self, sock: Socket, limit: int = wire.MAX_FRAME) -> None:
        """Read frames of up to *limit* bytes from *sock*, and write frames to it."""
        sock.settimeout(None)  # a prewarmed module may have set another default
        self._socket = sock
        self._busy = BusyPoll(0)
        self._poll = poll()
        self._poll.register(sock.fileno(), POLLIN)
        self._reader = wire.FrameReader(limit)
        self._frames: deque[tuple[int, bytes]] = deque()
        # One buffer for all reads: socket.recv(n) allocates n bytes each time, which costs three system calls.
        self._buffer = bytearray(_RECEIVE)
        self._view = memoryview(self._buffer)
        self.handlers: Dict[int, Callable[[bytes], None]] = {}
        self.on_queued: Optional[Callable[[], None]] = None
        self._send_lock = allocate_lock()
        self._posted: deque[Union[bytes, Callable[[], bytes]]] = deque()
        self._released: deque[int] = deque()  # input blocks to be released with one of the next messages
        self._is_release_due = False  # with the very next one
        self._leading = allocate_lock()  # held by the thread that reads
        self._mutex = allocate_lock()  # guards what follows
        self._followers: Dict[Waiter, None] = {}
        self._receiver = Waiter()  # of the main thread in `receive`, while another thread leads
        self._is_gone = False
        self._is_detached = False
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
        """From now on poll instead of sleeping while messages come every *limit_us* microseconds."""
        self._busy = BusyPoll(limit_us)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send one or more whole frames.

        Raises:
            HostGoneError: If the host has closed its end.
        """
        with self._send_lock:
            if self._posted or self._is_release_due:
                data = self._take_posted() + data
            self._write(data)
        if self._posted:
            self.flush()

    def post(self, data: bytes) -> None:
        """Send one or more whole frames without waiting for a lock: callable from finalizers."""
        self._posted.append(data)
        self.flush()

    def post_later(self, make: Callable[[], bytes]) -> None:
        """Send the frames that *make* returns with the next message or `flush`. Callable from finalizers."""
        self._posted.append(make)

    def release_input(self, block: int) -> None:
        """Release an input block with the next message. Callable from finalizers."""
        self._released.append(block)
        self._is_release_due = True

    def release_small_input(self, block: int) -> None:
        """Release an input block together with others. Callable from finalizers."""
        self._released.append(block)
        if len(self._released) >= _SMALL_BLOCKS_TOGETHER:
            self._is_release_due = True

    def flush(self) -> None:
        """Send what is posted, unless another thread is sending and will send it. Never raises."""
        # The thread that holds the lock looks at the queue again after it has released it.
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
        released = self._released
        self._is_release_due = False
        if released:
            blocks = [released.popleft() for _ in range(len(released))]
            parts.append(pack(ReleaseInputs(blocks)))
        posted = self._posted
        while posted:
            item = posted.popleft()
            parts.append(item if isinstance(item, bytes) else item())
        return b"".join(parts)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:  # the host's end is closed, or ours, in a child that the model forked
            raise self.gone_error() from error

    def gone_error(self) -> HostGoneError:
        """The error for what needs the host when it is gone, with the reason."""
        return HostGoneError(FORKED if self._is_detached else "the server has closed its connection to this process")

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
                    self._stop_leading()
            else:
                self._receiver.is_done = False
                self._follow(self._receiver)
        self._on_wait_end()
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
                    self._stop_leading()
            else:
                self._follow(waiter)
        self._on_wait_end()

    def finish(self, waiter: Waiter) -> None:
        """Mark *waiter* as done and wake its thread."""
        with self._mutex:
            waiter.is_done = True
            self._wake(waiter)

    def poll(self) -> None:
        """Handle what has arrived by now; returns at once, also while another thread reads."""
        if not self._leading.acquire(blocking=False):
            return
        try:
            while self._read(waits=False):
                pass
        finally:
            self._stop_leading()

    def _stop_leading(self) -> None:
        """Give up the lead, and have a follower take it."""
        self._leading.release()
        if self._followers:
            self._promote_follower()

    def _on_wait_end(self) -> None:
        """Have another follower lead, if this thread was woken to lead but found its own waiter done."""
        if self._followers and not self._leading.locked():
            self._promote_follower()

    def _follow(self, waiter: Waiter) -> None:
        """Sleep until *waiter* is done or this thread is to lead."""
        with self._mutex:
            if self._is_gone:
                raise self.gone_error()
            if waiter.is_done:
                return
            waiter._wake = wake = allocate_lock()
            wake.acquire()
            self._followers[waiter] = None
        if waiter is self._receiver and self._frames:  # queued before the leader could see this follower
            self.finish(waiter)
            return
        if not self._leading.locked():  # the leader left before it could see this follower
            self._promote_follower()
        try:
            wake.acquire()
        except BaseException:  # raised by a signal handler of the model
            with self._mutex:
                self._followers.pop(waiter, None)
            self._on_wait_end()
            raise

    def _promote_follower(self) -> None:
        """Wake one follower, so that it leads."""
        with self._mutex:
            for waiter in self._followers:
                self._wake(waiter)
                return

    def _wake(self, waiter: Waiter) -> None:
        if self._followers.pop(waiter, waiter) is None and waiter._wake is not None:
            waiter._wake.release()

    def _read(self, *, waits: bool) -> bool:
        """Handle what has arrived; False if nothing has and *waits* is false."""
        size = self._receive()
        while size < 0:
            if not waits:
                return False
            size = self._wait()
        if not size:
            self._end()
            raise self.gone_error()
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
        busy.on_activity(now)
        while busy.is_on:
            os.sched_yield()
            size = self._receive()
            before, now = now, time.monotonic_ns()
            if size >= 0:
                busy.on_activity(now)
                busy.on_yield(before, now, found=True)
                return size
            busy.on_yield(before, now, found=False)
        # Not a blocking recv: the kernel wakes that each time the host reads what this end has sent, to look for room
        # in the socket. Those wake-ups are useless and take processor time from the host.
        self._poll.poll()
        busy.on_activity(time.monotonic_ns())
        return self._receive()

    def _receive(self) -> int:
        """Fill the buffer without blocking: the number of bytes, 0 at the end of the stream, -1 if nothing is there."""
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
        """Have *loop*, which runs on this thread, read what arrives. Each call needs one of `unwatch`."""
        count = self._watches.get(loop, 0)
        if not count:  # forget loops that were closed before their calls ended
            for closed in [other for other in list(self._watches) if other.is_closed()]:
                self._watches.pop(closed, None)
        self._watches[loop] = count + 1
        if not count:
            loop.add_reader(self._socket.fileno(), self._on_readable, loop)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """End one `watch`."""
        count = self._watches.pop(loop, 0) - 1
        if count > 0:
            self._watches[loop] = count
        elif not loop.is_closed():
            loop.remove_reader(self._socket.fileno())

    def _on_readable(self, loop: asyncio.AbstractEventLoop) -> None:
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

    @property
    def is_detached(self) -> bool:
        """Whether this process is a child that the model forked."""
        return self._is_detached

    def detach(self) -> None:
        """Close this end in a child that the model forked: parent and child must not share the channel."""
        self._is_gone = self._is_detached = True
        self._send_lock = allocate_lock()
        self._leading = allocate_lock()
        self._mutex = allocate_lock()
        self._followers = {}
        with contextlib.suppress(OSError):
            self._socket.close()
