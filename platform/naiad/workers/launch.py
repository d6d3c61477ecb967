"""Starting a guest process: the specification is data, one function spawns."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from naiad.errors import GuestDiedError
from naiad.memory.instance import InstanceMemory


class Lease(Protocol):
    """What keeps an environment where it is while guests may be started in it."""

    def release(self) -> None:
        """It is needed no longer."""


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
        lease: What keeps the environment there, None where nothing is needed for that.
    """

    name: str
    python: Path
    stub: Path
    library: Path
    environ: Mapping[str, str]
    load: Mapping[str, str] = field(repr=False)
    start_timeout: float = 30.0
    at_terminal: bool = False
    lease: Lease | None = field(default=None, compare=False, repr=False)


def spawn(
    spec: LaunchSpec, memory: InstanceMemory
) -> tuple[subprocess.Popen[bytes], tuple[socket.socket, socket.socket]]:
    """Start the guest; return it with the host's ends of its channel and of the one beside it, for readiness.

    Must be called on a thread that lives as long as the guest: the kernel ends a guest with the *thread* that started
    it (prctl(2), PR_SET_PDEATHSIG). That is the event loop's, in a server the main thread.

    Raises:
        GuestDiedError: If the interpreter cannot be executed.
    """
    host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    host_side, guest_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptors = (guest_end.fileno(), guest_side.fileno(), memory.input_descriptor, memory.output_descriptor)
    argv = [str(spec.python), str(spec.stub)]
    for name, value in (
        ("--socket", descriptors[0]),
        ("--side", descriptors[1]),
        ("--inputs", descriptors[2]),
        ("--outputs", descriptors[3]),
        ("--inputs-size", memory.inputs.capacity),
        ("--outputs-size", memory.output_capacity),
        ("--host", os.getpid()),
    ):
        argv += [name, str(value)]
    try:
        process = subprocess.Popen(
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
        host_end.close()
        host_side.close()
        raise GuestDiedError(f"cannot start '{spec.name}': {spec.python}: {error.strerror or error}") from error
    finally:
        guest_end.close()
        guest_side.close()
    host_end.setblocking(False)
    host_side.setblocking(False)
    return process, (host_end, host_side)
