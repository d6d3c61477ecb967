"""Calls to other models by processes that the model has forked, such as those of a `multiprocessing.Pool`.

Two processes must neither read one stream nor allocate in one segment. So a child does not use the guest's channel and
segments. It makes a connection to the guest when it calls a model for the first time, and sends what a guest sends to
the host, but with all tensors in the messages. The guest makes the calls for it:

    child                                      guest                          host
    one end of a new socket pair       ->
    CALL, tensors in the message       ->      CALL, in a block       ->
    RESULT, tensors in the message     <-      RESULT, in a block     <-

The socket by which the children hand over their ends is created before the first fork, and all children inherit it. So
nothing has a name, and only descendants of this guest can connect. A connection has one thread in the guest, and each
of its calls another one: somebody has to read the guest's channel while its main thread waits for the pool.

A child that ends closes its connection. Its calls are cancelled then, and their results discarded.
"""

from __future__ import annotations

import contextlib
import os
import struct
from socket import AF_UNIX, CMSG_SPACE, SCM_RIGHTS, SHUT_RDWR, SOCK_DGRAM, SOCK_STREAM, SOL_SOCKET
from typing import Dict, List, Optional, Set, Tuple

from naiad_stub import wire
from naiad_stub.calls import HostCalls, PendingCall, error_result
from naiad_stub.channel import Channel, HostGoneError
from naiad_stub.descriptors import move_up
from naiad_stub.exceptions import TritonModelException
from naiad_stub.messages import FROM_GUEST, CancelCalls, DiscardResults, ResultsConsumed, unpack
from naiad_stub.primitives import Socket, allocate_lock, socket_pair, start_thread

_RECEIVE = 1 << 18
_DESCRIPTOR = struct.Struct("i")
_GONE = "cannot call models: the process that this one was forked from has exited"


class ForkedCalls:
    """Serves the calls of all children of this guest."""

    def __init__(self, calls: HostCalls) -> None:
        self._calls = calls
        # The ends of the socket that children inherit: for the guest, and for the children. At most one pair; a
        # dictionary, since `setdefault` is atomic, and a lock might be held by another thread at the fork.
        self._ends: Dict[None, Tuple[Optional[Socket], Socket]] = {}
        self._connections: Set[_ChildConnection] = set()
        self._has_thread = self._is_child = False

    def register(self) -> None:
        """From now on serve the children of each fork."""
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
        )

    def _before_fork(self) -> None:
        if not self._ends:
            with contextlib.suppress(OSError):  # no more descriptors: the children's calls fail
                ends = socket_pair(AF_UNIX, SOCK_DGRAM)
                ours, theirs = [Socket(fileno=move_up(each.detach())) for each in ends]
                if self._ends.setdefault(None, (ours, theirs))[0] is not ours:  # another thread forks as well
                    ours.close()
                    theirs.close()

    def _after_in_parent(self) -> None:
        if self._ends and not self._has_thread and not self._is_child:
            self._has_thread = True
            try:
                start_thread(self._accept)
            except RuntimeError:  # no more threads: the children's calls wait until after the next fork
                self._has_thread = False

    def _after_in_child(self) -> None:
        self._is_child = True
        if self._ends:
            ours, theirs = self._ends[None]
            if ours is not None:
                ours.close()
                self._ends[None] = (None, theirs)
        # Else the guest's end of another child's connection would stay open when the guest exits.
        for connection in list(self._connections):
            connection.close_copy()
        self._connections = set()
        self._calls.detach(self._connect)

    def _connect(self) -> Channel:
        """In a child, a channel to the guest.

        Raises:
            HostGoneError: If the guest has exited.
        """
        try:
            own, other = socket_pair(AF_UNIX, SOCK_STREAM)
        except OSError as error:
            raise HostGoneError(f"cannot call models from a forked process: {error}") from error
        try:
            theirs = self._ends[None][1]
            theirs.settimeout(None)
            theirs.sendmsg([b"\0"], [(SOL_SOCKET, SCM_RIGHTS, _DESCRIPTOR.pack(other.fileno()))])
        except (OSError, KeyError) as error:
            own.close()
            raise HostGoneError(_GONE) from error
        finally:
            other.close()
        return Channel(own, wire.MAX_RELAYED)

    # -- in the guest ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Serve each connection that a child hands over; runs on a thread."""
        ours = self._ends[None][0]
        assert ours is not None, "this thread is the guest's"
        ours.settimeout(None)
        while True:
            try:
                _, ancillary, _, _ = ours.recvmsg(1, CMSG_SPACE(_DESCRIPTOR.size))
            except OSError:  # the model has closed it
                return
            for level, kind, content in ancillary:
                if level == SOL_SOCKET and kind == SCM_RIGHTS:
                    self._serve(*_DESCRIPTOR.unpack_from(content))

    def _serve(self, number: int) -> None:
        os.set_inheritable(number, False)
        connection = _ChildConnection(self._calls, Socket(fileno=number), self._connections)
        self._connections.add(connection)
        try:
            start_thread(connection.run)
        except RuntimeError:  # no more threads
            connection.close()


class _ChildConnection:
    """The guest's end of the connection of one child."""

    def __init__(self, calls: HostCalls, sock: Socket, others: Set[_ChildConnection]) -> None:
        """Serve *sock*, and be one of *others* until it is closed."""
        sock.settimeout(None)
        self._calls = calls
        self._socket = sock
        self._others = others
        self._send_lock = allocate_lock()
        self._running: Dict[int, PendingCall] = {}  # by the child's number

    def run(self) -> None:
        """Make the child's calls until it closes its end."""
        reader = wire.FrameReader(wire.MAX_RELAYED)
        try:
            while True:
                data = self._socket.recv(_RECEIVE)
                if not data:
                    return
                for kind, payload in reader.feed(data):
                    if kind == wire.Kind.CALL:
                        self._start(payload)
                    else:
                        self._handle(kind, payload)
        except (OSError, HostGoneError, wire.WireError, struct.error):
            pass  # the child or the host is gone, or the child has written to the socket itself
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection, and cancel its calls: their results have no reader."""
        self._others.discard(self)
        for call in list(self._running.values()):
            self._calls.abandon(call)
        with contextlib.suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)  # ends a `sendall` of another thread
        with self._send_lock:
            self._socket.close()

    def close_copy(self) -> None:
        """Close this process's copy of the descriptor, in a child."""
        self._socket.close()

    def _start(self, payload: bytes) -> None:
        number = wire.CALL_HEAD.unpack_from(payload)[0]
        try:
            call = self._calls.start_relayed(payload)
        except TritonModelException as error:
            self._send(error_result(number, str(error)))
            return
        self._running[number] = call
        try:
            start_thread(lambda: self._pass_on(number, call))
        except RuntimeError as error:
            self._running.pop(number, None)
            self._calls.abandon(call)
            self._send(error_result(number, f"cannot call a model for a forked process: {error}"))

    def _handle(self, kind: int, payload: bytes) -> None:
        message = unpack(FROM_GUEST, kind, payload)
        if isinstance(message, ResultsConsumed):
            call = self._running.get(message.call)
            if call is not None:
                self._calls.report_consumed(call, message.count)
        elif isinstance(message, CancelCalls):
            for call in self._named(message.calls):
                self._calls.cancel(call)
        elif isinstance(message, DiscardResults):
            for call in self._named(message.calls):
                self._calls.abandon(call)

    def _named(self, numbers: List[int]) -> List[PendingCall]:
        return [self._running[number] for number in numbers if number in self._running]

    def _pass_on(self, number: int, call: PendingCall) -> None:
        """Send the results of a call to the child; runs on a thread, which takes part in reading the channel."""
        try:
            while True:
                self._calls.wait(call)
                result = self._calls.take_relayed(call, number)
                if result is None:
                    return
                self._send(result)
        except (OSError, HostGoneError):  # the child or the host is gone
            self._calls.abandon(call)
        finally:
            self._running.pop(number, None)

    def _send(self, frame: bytes) -> None:
        with self._send_lock:
            self._socket.sendall(frame)
