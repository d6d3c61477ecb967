"""Starts guest processes, by running the interpreter of their environment or by having a fork server fork them.

`GuestProcesses` is all that the server has to do with the processes of guests: `SystemProcesses` are those of the
system, and a simulation has others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from naiad_stub.load_spec import LoadSpec

from naiad.config.model.parameters import NO_MEMORY_LIMIT, MemoryLimit
from naiad.config.server.guest_user import GuestUser
from naiad.core.child_processes import kill_group
from naiad.core.errors import GuestExitedError, NaiadError
from naiad.guests.access import describe_denied_access
from naiad.guests.memory.instance import InstanceMemory
from naiad.guests.memory.link_memory import LinkMemory, SharedInputs
from naiad.guests.process import cpu_seconds_of
from naiad.guests.sweeper import sweeper
from naiad.sources.interpreters.executables import explain_not_executable

logger = logging.getLogger("naiad.workers")


@functools.cache
def server_id() -> str:
    """Identifies this server among all: host names repeat, and so do process ids in containers.

    Made when it is first needed, so that servers that are forked from one process have different ones.
    """
    return f"{socket.gethostname()}-{secrets.token_hex(3)}"


class EnvironmentLease(Protocol):
    """Keeps an environment in the store while guests may be started in it."""

    def release(self) -> None: ...


class GuestForker(Protocol):
    """Forks guests from a process that has imported their modules."""

    async def fork(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest | None: ...

    def release(self) -> None: ...


class GuestProcesses(Protocol):
    """Starts and ends the processes of guests, and reports their exits."""

    async def launch(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
        """Start a guest, by fork if *spec* has `prewarm` and that works; GuestExitedError if it cannot be executed."""

    def watch(self, launched: LaunchedGuest, on_exit: Callable[[], None]) -> None:
        """Call *on_exit* once on the event loop when the process has exited: what it started has been killed then.

        Its id stays its own until `LaunchedGuest.reap` has been called.
        """

    def kill(self, pid: int) -> None: ...

    def send_signal(self, pid: int, number: int) -> None: ...

    def cpu_seconds(self, pid: int) -> float:
        """Processor time that a process has used so far; 0 if it has exited."""

    def close(self) -> None:
        """End what belongs to all guests together, if no guest runs. Blocks for some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """How a guest is started."""

    name: str
    python: Path
    stub: Path
    library: Path  # folder of `naiad_stub`, which the stub finds in NAIAD_STUB_LIBRARY
    environ: Mapping[str, str]
    load: LoadSpec = field(repr=False)
    start_timeout: float = 30.0  # seconds that a start may take without progress
    at_terminal: bool = False  # whether the guest's stdin, stdout and stderr are this process's, for a debugger
    hang_seconds: float = 0.0  # how long requests may go without progress (`guests.hang_watch`); 0 for any time
    # Both sides of the channel poll instead of sleeping while messages come every so many microseconds
    # (`naiad_stub.busy_poll`); 0: never.
    busy_poll_us: int = 0
    log_rate: int = 0  # lines a second that the guest may log; 0 for any number
    # How much memory the guest may allocate; for the reason of its exit, since `load` tells it.
    memory_limit: MemoryLimit = NO_MEMORY_LIMIT
    user: GuestUser | None = None
    device: int = 0  # the instance's device; 0 for the CPU, as in the reference
    # Keeps the environment in the store; None if it is not from the store.
    lease: EnvironmentLease | None = field(default=None, compare=False, repr=False)
    # Prepares the environment again if somebody has removed it from the store; None if it is not from there. It blocks,
    # and raises a NaiadError if that fails.
    restore: Callable[[], object] | None = field(default=None, compare=False, repr=False)
    # Forks the guest; None if an interpreter is started for it.
    prewarm: GuestForker | None = field(default=None, compare=False, repr=False)
    # The memory that other processes of the server share with guests; None where it has one process.
    link_memory: LinkMemory | None = field(default=None, compare=False, repr=False)
    # The part of it that all guests of the version map.
    inputs: SharedInputs | None = field(default=None, compare=False, repr=False)
    # Identifies the server, where another of its processes starts the guest; "" for this process's own.
    server_id: str = ""
    load_number: int = 0  # number of the version's load, for such a guest; 0 for others
    processes: GuestProcesses = field(default_factory=lambda: SYSTEM, compare=False, repr=False)


class GuestSockets:
    """The sockets between the host and one guest.

    A context manager for the start of the guest: at its end the guest's own ends are closed here, and if it fails, all.
    """

    def __init__(self) -> None:
        pairs = [
            socket.socketpair(socket.AF_UNIX, kind)
            for kind in (socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
        ]
        # The second is for readiness, the third for descriptors of bridges.
        self.channel, self.side, self.bridges = (host for host, _ in pairs)
        self._of_guest = [guest for _, guest in pairs]

    def __enter__(self) -> tuple[int, ...]:
        return tuple(end.fileno() for end in self._of_guest)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        for end in self._of_guest:
            end.close()
        for end in (self.channel, self.side, self.bridges):
            if failed is None:
                end.setblocking(False)
            else:
                end.close()
        if failed is None:
            self.bridges.shutdown(socket.SHUT_RD)  # nobody would read what the guest sends there


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedGuest:
    """A guest that was started."""

    pid: int
    # The pipes it prints into, by the stream's name; none if it prints to the host's terminal.
    output: tuple[tuple[str, IO[bytes]], ...]
    sockets: GuestSockets
    guest_id: str  # its id for the sweeper (`guests.sweeper`)
    # To be called once when it has exited. It frees the process id and calls back with the exit status as `subprocess`
    # gives it, and the reason if the guest ended because another process did.
    reap: Callable[[Callable[[int, str], None]], None]


class SystemProcesses:
    """Implements `GuestProcesses` with processes of the system.

    An exit is noticed by a pidfd, not only by the end of the channel: a child that the model forked may keep the socket
    open. The order at the end matters: while the process is a zombie, its id cannot belong to another process, so
    its process group is killed first and the exit status collected after that.
    """

    async def launch(self, spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
        if spec.restore is not None and not spec.python.exists():
            await _restore(spec, spec.restore)
        launched = None if spec.prewarm is None else await spec.prewarm.fork(spec, memory)
        if launched is None:
            launched = _spawn(spec, memory)
        sweeper.watch(launched.guest_id, spec.name)
        return launched

    def watch(self, launched: LaunchedGuest, on_exit: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def on_ended() -> None:
            self.kill(launched.pid)  # its children, first: the zombie still keeps its id from being used again
            sweeper.on_exit(launched.guest_id)  # for processes that left its process group
            on_exit()

        try:
            descriptor = os.pidfd_open(launched.pid)
        except (AttributeError, OSError):  # a system, a kernel or a sandbox without it

            def wait() -> None:
                os.waitid(os.P_PID, launched.pid, os.WEXITED | os.WNOWAIT)
                loop.call_soon_threadsafe(on_ended)

            threading.Thread(target=wait, name="naiad-wait", daemon=True).start()
            return

        def on_readable() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            on_ended()

        loop.add_reader(descriptor, on_readable)

    def kill(self, pid: int) -> None:
        kill_group(pid)

    def send_signal(self, pid: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

    def cpu_seconds(self, pid: int) -> float:
        return cpu_seconds_of(pid)

    def close(self) -> None:
        sweeper.close()


SYSTEM: GuestProcesses = SystemProcesses()  # the processes of this system


async def _restore(spec: LaunchSpec, restore: Callable[[], object]) -> None:
    """Prepare an environment again that was removed; GuestExitedError if that fails or makes another one."""
    logger.warning(
        "%s is gone from the store of environments, which is used by '%s'; preparing it again", spec.python, spec.name
    )
    try:
        await asyncio.to_thread(restore)
    except NaiadError as error:
        raise GuestExitedError(f"cannot start '{spec.name}': {error.message}") from error
    if not spec.python.exists():
        raise GuestExitedError(
            f"cannot start '{spec.name}': {spec.python} is gone, and its environment has another content now; load the "
            "model again"
        )


def _spawn(spec: LaunchSpec, memory: InstanceMemory) -> LaunchedGuest:
    """Start an interpreter.

    Must be called on a thread that lives as long as the guest: the kernel kills a guest when the *thread* that started
    it exits (prctl(2), PR_SET_PDEATHSIG). That is the event loop's thread, in a server the main thread.
    """
    sockets = GuestSockets()
    with sockets as ends:
        channel, side, bridges = ends
        descriptors = (*ends, memory.input_descriptor, memory.output_descriptor)
        arguments: dict[str, int | str] = {
            "--socket": channel,
            "--side": side,
            "--bridges": bridges,
            "--inputs": memory.input_descriptor,
            "--outputs": memory.output_descriptor,
            "--inputs-size": memory.inputs.capacity,
            "--outputs-size": memory.output_capacity,
        }
        if spec.inputs is not None:
            descriptors += (spec.inputs.descriptor,)
            arguments |= {"--shared": spec.inputs.descriptor, "--shared-size": spec.inputs.capacity}
        guest_id = sweeper.new_id()
        process = start_stub(spec, arguments, descriptors, guest_id)
    pipes = (("stdout", process.stdout), ("stderr", process.stderr))
    return LaunchedGuest(
        pid=process.pid,
        output=tuple((name, pipe) for name, pipe in pipes if pipe is not None),
        sockets=sockets,
        guest_id=guest_id,
        reap=lambda ended: ended(process.wait(), ""),
    )


def start_stub(
    spec: LaunchSpec, arguments: Mapping[str, int | str], descriptors: tuple[int, ...], guest_id: str
) -> subprocess.Popen[bytes]:
    """Run the stub in the environment's interpreter."""
    # The first arguments, so that `ps` and `top` show them also where they cut long lines.
    name, model = spec.name, spec.load.code.file
    argv = [
        str(spec.python),
        str(spec.stub),
        *(() if "--fork-server" in arguments else ("--instance", name, "--model", model)),
    ]
    user = spec.user
    for name, value in (*arguments.items(), ("--host", os.getpid()), ("--unprivileged", int(user is not None))):
        argv += [name, str(value)]
    try:
        return subprocess.Popen(
            argv,
            env={
                **spec.environ,
                "NAIAD_STUB_LIBRARY": str(spec.library),
                "NAIAD_GUEST_ID": guest_id,
                "NAIAD_SERVER_ID": spec.server_id or server_id(),
            },
            stdin=None if spec.at_terminal else subprocess.DEVNULL,
            stdout=None if spec.at_terminal else subprocess.PIPE,
            stderr=None if spec.at_terminal else subprocess.PIPE,
            pass_fds=descriptors,
            # A separate session: Ctrl-C in the terminal reaches only the host, and the guest and its children
            # can be killed as one process group.
            start_new_session=True,
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            # None: those of this process, which the guest would keep (docker, disk, sudo).
            extra_groups=None if user is None else (),
        )
    except OSError as error:
        why = explain_not_executable(spec.python) if error.errno == errno.EACCES else ""
        denied = explain_denied_access(spec) if not why else ""
        raise GuestExitedError(
            f"cannot start '{spec.name}': {spec.python}: {why or error.strerror or error}{denied}"
        ) from error


def explain_denied_access(spec: LaunchSpec) -> str:
    """What the user of the guests cannot read of what a guest needs, as the rest of a sentence; "" if nothing is."""
    if spec.user is None:
        return ""
    needed = (spec.python, spec.stub, spec.library, Path(spec.load.code.file), Path(spec.load.version_dir))
    denied = describe_denied_access(spec.user, needed)
    return f". The guest runs as {spec.user} (--guest-user), and {denied}" if denied else ""
