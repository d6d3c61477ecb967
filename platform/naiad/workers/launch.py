"""Starts a guest process, by running the interpreter of its environment or by having a fork server fork it."""

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
    """Keeps an environment in the store while guests may be started in it."""

    def release(self) -> None:
        """Let the store evict the environment."""


class GuestForker(Protocol):
    """Forks guests from a process that has imported their modules."""

    async def fork(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest | None:
        """Fork the guest; None if it must be started without."""

    def release(self) -> None:
        """Release the processes that fork: no more guests are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """How a guest is started.

    Attributes:
        name: The instance's name, for logs and error texts.
        python: The interpreter of the environment.
        stub: The stub script it runs.
        library: Folder of `naiad_stub`, which the stub finds in NAIAD_STUB_LIBRARY.
        environ: The child's whole environment.
        load: Fields of the LOAD message.
        start_timeout: Seconds that a start may take without progress.
        at_terminal: Whether the guest's stdin, stdout and stderr are this process's, for a debugger.
        busy_poll_us: Both sides of the channel poll instead of sleeping while messages come every so many microseconds
            (`naiad_stub.busy_poll`); 0: never.
        lease: Keeps the environment in the store; None if it is not from the store.
        prewarm: Forks the guest; None if an interpreter is started for it.
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
        output: The pipes it prints into, by the stream's name; none if it prints to the host's terminal.
        channel: The host's end of its channel.
        side: The host's end of its readiness socket.
        reap: To be called once when it has exited. It frees the process id and calls back with the exit status as
            `subprocess` gives it, and the reason if the guest ended because another process did.
    """

    pid: int
    output: tuple[tuple[str, IO[bytes]], ...]
    channel: socket.socket
    side: socket.socket
    reap: Callable[[Callable[[int, str], None]], None]


async def launch(spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
    """Start the guest, by fork if *spec* has `prewarm` and forking succeeds, else by its interpreter.

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

    Must be called on a thread that lives as long as the guest: the kernel kills a guest when the *thread* that started
    it exits (prctl(2), PR_SET_PDEATHSIG). That is the event loop's thread, in a server the main thread.
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
            # A separate session: Ctrl-C in the terminal reaches only the host, and the guest and its children
            # can be killed as one process group.
            start_new_session=True,
        )
    except OSError as error:
        raise GuestExitedError(f"cannot start '{spec.name}': {spec.python}: {error.strerror or error}") from error
