"""Examines the machine: ports, the store of environments, disk space, memory, and the server's interpreter."""

from __future__ import annotations

import errno
import os
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from naiad.config.server.options import ServerOptions
from naiad.core.listening import listen_failure
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.room import free_room, needed_room, unused_bytes
from naiad.environments.store.store import Store
from naiad_operations.doctor.findings import Finding, error_finding, note_finding, warning_finding

GUEST_BYTES = 40 << 20  # memory of a guest that has imported only numpy (measured: 30 to 45 MB)
PROCESS_BYTES = 32 << 20  # memory of a further process of the server without connections (PSS, measured)


def examine_ports(options: ServerOptions) -> Iterator[Finding]:
    """Findings about addresses at which the server cannot listen."""
    for name, service in (("http", options.http), ("grpc", options.grpc), ("metrics", options.metrics)):
        address, port = service.address, service.port
        is_shared = getattr(service, "reuse_port", False)
        problem = _listen_error(address, port) if service.is_enabled and port and not is_shared else None
        if problem is not None:
            taken = problem.errno == errno.EADDRINUSE
            yield error_finding(
                "port-taken" if taken else "address",
                f"{name} cannot be served at {address}:{port}: {listen_failure(problem, port)}",
                f"choose another --{name}-port" + (" or stop the process that listens there" if taken else "")
                if taken or problem.errno == errno.EACCES
                else f"choose another --{name}-address",
            )


def _listen_error(address: str, port: int) -> OSError | None:
    try:
        kind, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as listener:
            # As the server does: without it, closed connections in TIME_WAIT would count as taken ports.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()
    except OSError as error:
        return error
    return None


def examine_store(root: Path) -> Iterator[Finding]:
    """A finding if the store of environments cannot be written.

    A store that can only be read is a warning: a server starts with it, and uses the environments that it has.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        if root.is_dir() and os.access(root, os.R_OK | os.X_OK):
            yield warning_finding(
                "store",
                f"the store of environments cannot be written: {error.strerror or error}; only the "
                "environments that it has can be used",
                "put others into it with `naiad env prefetch`, as a user who may write there",
                str(root),
            )
            return
        yield error_finding(
            "store",
            f"the store of environments cannot be written: {error.strerror or error}",
            "name a writable directory with --env-store or NAIAD_STORE",
            str(root),
        )


def missing_room(archive: Path, root: Path, reporter: ProgressReporter, *, evicts: bool) -> Finding | None:
    """A finding if the store's disk has no room to unpack an archive; None if it has, or has the archive unpacked."""
    store = Store(root, reporter)
    if store.get(store.identify(archive).digest) is not None:
        return None
    needed, free = needed_room(archive), free_room(root)
    if free.size + (unused_bytes(root) if evicts else 0) < needed.size:
        about = "" if needed.is_stated else "about "
        reason = f"takes {about}{_megabytes(needed.size)}, and {root} has {_megabytes(free.size)} left"
    elif needed.files is not None and free.files is not None and free.files < needed.files:
        reason = f"has {needed.files} files, and the file system of {root} can store {free.files} more"
    else:
        return None
    return error_finding(
        "disk", f"unpacked, it {reason}", "free disk space (`naiad env gc`), or name another --env-store", str(archive)
    )


def examine_temporary() -> Iterator[Finding]:
    """A finding if models cannot write temporary files."""
    try:
        with tempfile.TemporaryFile():
            pass
    except OSError as error:
        yield warning_finding(
            "temporary-folder",
            f"temporary files cannot be written: {error.strerror or error}",
            "free space in the folder of temporary files, or name a writable folder with TMPDIR",
        )


def examine_memory(guests: int, processes: int) -> Iterator[Finding]:
    """A finding if the memory is too small for so many guests, assuming that each imports only numpy, and processes."""
    others = processes - 1
    needed, available = guests * GUEST_BYTES + others * PROCESS_BYTES, psutil.virtual_memory().available
    if needed > available:
        named = f"{guests} model processes" + (f" and {others} more of --processes" if others else "")
        yield warning_finding(
            "memory",
            f"{named} take at least {_megabytes(needed)}, and {_megabytes(available)} are available",
            "lower the counts of instance groups, or load fewer models (--model-control-mode=demand)",
        )


def examine_interpreter() -> Iterator[Finding]:
    """A finding if the server's Python was compiled without optimisations by profile (PGO).

    Distributions, which install below `/usr`, build with a profile without saying so in the arguments of configure.
    """
    arguments = sysconfig.get_config_var("CONFIG_ARGS")
    if arguments and "--enable-optimizations" not in arguments and sys.base_prefix != "/usr":
        yield note_finding(
            "slow-python",
            "this Python was compiled without --enable-optimizations: a request takes 20 to 30 % more of a "
            "processor, in the server and in models that use the same Python",
            "run naiad with a Python of the distribution, of conda or of `uv python install`",
            os.path.realpath(sys.executable),
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
