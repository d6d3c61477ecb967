"""The fork server: imports modules once and then becomes a guest as often as it is asked, by forking.

Arguments: --fork-server FD --modules NAMES --host PID. Over the socket, whose messages are whole frames of `wire`:
WARM or COLD once, then for each FORK, which brings the descriptors of an instance, FORKED or NOT_FORKED, and for each
REAP, of a guest that has ended, REAPED. Nothing else happens here, and above all no thread is ever started: a fork
copies one thread only, and what another one held at that moment stays locked in the child for ever.

A guest that was forked goes the way of every other from there on: `serve` returns its arguments, and `main` goes on
with them. It is in a session of its own and dies with this process, as this process dies with the host.
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
_DESCRIPTORS = 6
"""Of a FORK: channel, side channel, inputs, outputs, stdout, stderr."""
_TASKS = "/proc/self/task"
_PATIENCE = 0.5


def serve(options: Dict[str, str]) -> Optional[List[str]]:
    """Import what is asked for, then fork until the host is gone.

    Returns:
        In a guest its arguments; in the server itself, at its end, None.
    """
    die_with(int(options["--host"]))
    ignore_termination_signals()
    sock = socket.socket(fileno=int(options["--fork-server"]))
    problem = _import_all(options["--modules"].split(","))
    if problem:
        sock.send(pack(ForkServerFailed(problem)))
        return None
    # What was imported is rarely garbage: looking through it would only make each guest's pages its own.
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
    """Import the modules; what is in the way of forking afterwards, or ""."""
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
    """Whether native threads are still there after a fork.

    Libraries that can be forked, such as OpenBLAS, end theirs before one (pthread_atfork) and start them anew when they
    need them; so a fork for trial tells which they are.
    """
    import time

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of the very thing that is looked for
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _PATIENCE
    while _count_threads() > 1:  # one that was joined may be listed a moment longer
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
        return _begin(descriptors, request.inputs_size, request.outputs_size, server)
    os.close(begun)
    if pid > 0:
        # Until it leads its own process group, the host could not kill it together with what it starts.
        os.read(ready, 1)
        sock.send(pack(Forked(request.number, pid)))
    for descriptor in (ready, *descriptors):
        os.close(descriptor)
    return None


def _begin(descriptors: List[int], inputs_size: int, outputs_size: int, server: int) -> List[str]:
    """Make this copy of the fork server what a guest is at its start; return its arguments."""
    channel, side, inputs, outputs, stdout, stderr = descriptors
    for own, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(own, standard)
        os.close(own)
    random = sys.modules.get("numpy.random")
    if random is not None:  # else all guests would draw the same numbers; Python's own generator sees to itself
        random.seed()
    arguments = []
    for name, value in (
        ("--socket", channel),
        ("--side", side),
        ("--inputs", inputs),
        ("--outputs", outputs),
        ("--inputs-size", inputs_size),
        ("--outputs-size", outputs_size),
        ("--host", server),
    ):
        arguments += [name, str(value)]
    return arguments
