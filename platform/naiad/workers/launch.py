"""Starting a guest process: the specification is data, one function starts it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from naiad.errors import GuestExitedError
from naiad.memory.instance import InstanceMemory


class EnvironmentLease(Protocol):
    """What keeps an environment where it is while guests may be started in it."""

    def release(self) -> None:
        """It is needed no longer."""


class GuestForker(Protocol):
    """Where guests come from whose imports are done already."""

    async def fork(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest | None:
        """Start the guest from a process like it; None where it has to be started as any other."""

    def release(self) -> None:
        """No more guests are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """What to start.

    Attributes:
        name: The instance's name, for logs and error texts.
        python: The interpreter of the environment.
        stub: The stub script it runs.
        library: Folder of `naiad_stub`, told to the stub in NAIAD_STUB_LIBRARY.
        environ: The child's whole environment.
        load: Fields of the LOAD message.
        start_timeout: Seconds a start may take without a sign of progress.
        at_terminal: Whether the guest's stdin, stdout and stderr are this process's, for a debugger.
        busy_poll_us: Both sides of the channel poll instead of sleeping while messages follow each other within so many
            microseconds (`naiad_stub.busy_poll`); 0: never.
        lease: What keeps the environment there, None where nothing is needed for that.
        prewarm: What forks it, None where an interpreter is started.
    """

    name: str
    python: Path
    stub: Path
    library: Path
    environ: Mapping[str, str]
    load: Mapping[str, str] = field(repr=False)
    start_timeout: float = 30.0
    at_terminal: bool = False
    busy_poll_us: int = 0
    lease: EnvironmentLease | None = field(default=None, compare=False, repr=False)
    prewarm: GuestForker | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedGuest:
    """A guest that was started.

    Attributes:
        pid: Its process id.
        output: The pipes it prints into, by the stream's name; none where it prints to our terminal.
        channel: The host's end of its channel.
        side: And of the one beside it, for readiness.
        reap: Called once when it has ended; frees its process id and tells how it ended: the status as `subprocess`
            gives it, and, if its end was none of its own doing, why.
    """

    pid: int
    output: tuple[tuple[str, IO[bytes]], ...]
    channel: socket.socket
    side: socket.socket
    reap: Callable[[Callable[[int, str], None]], None]


async def launch(spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
    """Start the guest, in whichever way *spec* asks for.

    Raises:
        GuestExitedError: If the interpreter cannot be executed.
    """
    if spec.prewarm is not None:
        forked = await spec.prewarm.fork(spec, memory)
        if forked is not None:
            return forked
    return _spawn(spec, memory)


def _spawn(spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
    """Start an interpreter.

    Must be called on a thread that lives as long as the guest: the kernel ends a guest with the *thread* that started
    it (prctl(2), PR_SET_PDEATHSIG). That is the event loop's, in a server the main thread.
    """
    host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    host_side, guest_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptors = (guest_end.fileno(), guest_side.fileno(), memory.input_descriptor, memory.output_descriptor)
    arguments = {
        "--socket": descriptors[0],
        "--side": descriptors[1],
        "--inputs": descriptors[2],
        "--outputs": descriptors[3],
        "--inputs-size": memory.inputs.capacity,
        "--outputs-size": memory.output_capacity,
    }
    try:
        process = start_stub(spec, arguments, descriptors)
    except BaseException:
        host_end.close()
        host_side.close()
        raise
    finally:
        guest_end.close()
        guest_side.close()
    host_end.setblocking(False)
    host_side.setblocking(False)
    pipes = (("stdout", process.stdout), ("stderr", process.stderr))
    return LaunchedGuest(
        pid=process.pid,
        output=tuple((name, pipe) for name, pipe in pipes if pipe is not None),
        channel=host_end,
        side=host_side,
        reap=lambda ended: ended(process.wait(), ""),
    )


def start_stub(
    spec: LaunchSpec, arguments: Mapping[str, int | str], descriptors: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Run the stub in the environment's interpreter.

    Raises:
        GuestExitedError: If the interpreter cannot be executed.
    """
    argv = [str(spec.python), str(spec.stub)]
    for name, value in (*arguments.items(), ("--host", os.getpid())):
        argv += [name, str(value)]
    try:
        return subprocess.Popen(
            argv,
            env={**spec.environ, "NAIAD_STUB_LIBRARY": str(spec.library)},
            stdin=None if spec.at_terminal else subprocess.DEVNULL,
            stdout=None if spec.at_terminal else subprocess.PIPE,
            stderr=None if spec.at_terminal else subprocess.PIPE,
            pass_fds=descriptors,
            # Its own session: a Ctrl-C in the terminal is ours to handle, and the guest's children can be ended
            # with it as one process group.
            start_new_session=True,
        )
    except OSError as error:
        raise GuestExitedError(f"cannot start '{spec.name}': {spec.python}: {error.strerror or error}") from error
