"""The fork server: imports modules once, then becomes a guest by forking as often as the host asks for one.

Arguments: --fork-server FD --modules NAMES --host PID. The messages on the socket are whole frames:

    fork server                              host
    FORK_SERVER_READY or _FAILED     ->
                                     <-      FORK, with the descriptors of an instance
    FORKED or FORK_FAILED            ->
                                     <-      REAP, of a guest that has exited
    REAPED, with its exit status     ->

This process never starts a thread: fork copies only the calling thread, and a lock that another thread held at that
moment would never be unlocked in the child. For the same reason it does not fork if an imported module has left a
thread.

In a forked guest, `serve` returns the guest's arguments and `main` continues as in any other guest. The guest is in a
separate session. The kernel kills it when this process exits, and this process when the host exits.
"""

from __future__ import annotations

import array
import gc
import os
import socket
import sys
import threading
import warnings
from importlib import import_module
from typing import Dict, List, Optional, Tuple

from naiad_stub import wire
from naiad_stub.lifeline import die_with, ignore_termination_signals
from naiad_stub.messages import (
    TO_FORK_SERVER,
    Fork,
    Forked,
    ForkFailed,
    ForkServerFailed,
    ForkServerReady,
    Reap,
    Reaped,
    ToForkServer,
    pack,
    unpack,
)

_MESSAGE = 1 << 16
_DESCRIPTORS = 8
"""Of a FORK: channel, side channel, inputs, outputs, stdout, stderr."""
_GUEST_ID = "NAIAD_GUEST_ID"
_TASKS = "/proc/self/task"
_JOIN_SECONDS = 0.5
"""How long a native thread that a fork has ended may still be listed."""


def serve(options: Dict[str, str]) -> Optional[List[str]]:
    """Import the modules, then fork guests until the host closes the socket.

    Returns:
        In a forked guest its arguments; in the fork server itself, at its end, None.
    """
    die_with(int(options["--host"]))
    ignore_termination_signals()
    sock = socket.socket(fileno=int(options["--fork-server"]))
    problem = _import_all(options["--modules"].split(","))
    if problem:
        sock.send(pack(ForkServerFailed(problem)))
        return None
    # Modules are not garbage. A collection in a guest would write to all their objects, and so copy pages that guests
    # share with this process; frozen objects are left out.
    gc.collect()
    gc.freeze()
    sock.send(pack(ForkServerReady()))
    while True:
        message, descriptors = _receive(sock)
        if message is None:
            return None
        if isinstance(message, Fork):
            arguments = _fork(sock, descriptors, message)
            if arguments is not None:
                return arguments
        else:
            sock.send(pack(_reap(message)))


def _reap(message: Reap) -> Reaped:
    status = os.waitpid(message.pid, 0)[1]
    if os.WIFSIGNALED(status):
        return Reaped(message.pid, 0, os.WTERMSIG(status))
    return Reaped(message.pid, os.WEXITSTATUS(status), 0)


def _import_all(names: List[str]) -> str:
    """Import the modules; the reason why this process cannot be forked afterwards, or ""."""
    starters = []
    for name in names:
        threads = _count_threads()
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - a module may fail as it likes
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
        if _count_threads() > threads:
            starters.append(name)
    left = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    if left:
        return f"importing {', '.join(starters) or 'them'} left threads running: {', '.join(left)}"
    if _threads_outlive_fork():
        return f"importing {', '.join(starters) or 'them'} left threads of a native library running"
    return ""


def _count_threads() -> int:
    return len(os.listdir(_TASKS))


def _threads_outlive_fork() -> bool:
    """Whether native threads still run after a fork.

    Libraries that support fork, such as OpenBLAS, end their threads before a fork (pthread_atfork) and start them again
    when needed. So the threads that are left after a trial fork belong to libraries that do not support it.
    """
    import time

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads, which this function looks for
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _JOIN_SECONDS
    while _count_threads() > 1:  # a thread that was joined may be listed a moment longer
        if time.monotonic() > deadline:
            return True
        time.sleep(0.005)
    return False


def _receive(sock: socket.socket) -> Tuple[Optional[ToForkServer], List[int]]:
    """The next message and its descriptors; None at the end of the socket."""
    descriptors = array.array("i")
    try:
        data, ancillary, _, _ = sock.recvmsg(
            _MESSAGE, socket.CMSG_SPACE(_DESCRIPTORS * descriptors.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        data, ancillary = b"", []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content)
    if not data:
        return None, []
    kind = wire.FRAME.unpack_from(data)[1]
    return unpack(TO_FORK_SERVER, kind, data[wire.FRAME.size :]), descriptors.tolist()


def _fork(sock: socket.socket, descriptors: List[int], request: Fork) -> Optional[List[str]]:
    """Fork a guest; return its arguments in the guest and None here."""
    server = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    ready, begun = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        sock.send(pack(ForkFailed(request.number, error.strerror or str(error))))
        pid = -1
    if pid == 0:
        sock.close()
        os.close(ready)
        os.setsid()
        os.close(begun)
        _mark(request.number)
        return _begin(descriptors, request, server)
    os.close(begun)
    if pid > 0:
        # Wait until the guest has its own process group, by which the host kills it together with its children.
        os.read(ready, 1)
        sock.send(pack(Forked(request.number, pid)))
    for descriptor in (ready, *descriptors):
        os.close(descriptor)
    return None


def _mark(number: int) -> None:
    """Give this forked guest its own id, by which the host finds the processes that it starts.

    The host looks into /proc/PID/environ, which shows the memory that held the environment at the start of the fork
    server. The new id has the length of the old one and is written over it.
    """
    import ctypes

    own = os.environ.get(_GUEST_ID, "")
    if not own:
        return
    text = f"{own.partition('.')[0]}.{number:06d}"
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(_GUEST_ID.encode())
    if address and len(text) == len(own):
        ctypes.memmove(address, text.encode(), len(text))
    os.environ[_GUEST_ID] = text


def _begin(descriptors: List[int], request: Fork, server: int) -> List[str]:
    """Make this forked process what a guest is at its start; its arguments."""
    channel, side, bridges, inputs, outputs, stdout, stderr, *shared = descriptors
    for own, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(own, standard)
        os.close(own)
    random = sys.modules.get("numpy.random")
    if random is not None:  # else all guests would draw the same numbers; Python's own generator is seeded after a fork
        random.seed()
    arguments = []
    for name, value in (
        ("--socket", channel),
        ("--side", side),
        ("--bridges", bridges),
        ("--inputs", inputs),
        ("--outputs", outputs),
        ("--inputs-size", request.inputs_size),
        ("--outputs-size", request.outputs_size),
        ("--host", server),
        *[("--shared", each) for each in shared],
        *[("--shared-size", request.shared_size) for _ in shared],
    ):
        arguments += [name, str(value)]
    return arguments
