"""Examines the machine: ports, the store of environments, disk space and memory."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from naiad.config.server.options import ServerOptions
from naiad.doctor.findings import Finding, Severity
from naiad.environments.archives.manifest import read_manifest
from naiad.environments.progress import ProgressReporter
from naiad.environments.store.store import Store

__all__ = ["examine_memory", "examine_ports", "examine_store", "examine_temporary", "missing_room"]

GUEST_BYTES = 40 << 20
"""Memory of a guest that has imported only numpy (measured: 30 to 45 MB)."""

_UNPACKED_RATIO = 4
"""Assumed ratio of unpacked to packed size, for archives without a manifest; conda-pack's archives have 3 to 4."""


def examine_ports(options: ServerOptions) -> Iterator[Finding]:
    """Findings about addresses at which the server cannot listen."""
    for allowed, name, address, port, shared in (
        (options.http.is_enabled, "http", options.http.address, options.http.port, options.http.reuse_port),
        (options.grpc.is_enabled, "grpc", options.grpc.address, options.grpc.port, options.grpc.reuse_port),
        (options.metrics.is_enabled, "metrics", options.metrics.address, options.metrics.port, False),
    ):
        problem = _listen_error(address, port) if allowed and port and not shared else None
        if problem is not None:
            taken = problem.errno == errno.EADDRINUSE
            yield Finding(
                severity=Severity.ERROR,
                code="port-taken" if taken else "address",
                message=f"{name} cannot be served at {address}:{port}: {problem.strerror or problem}",
                advice=f"choose another --{name}-port" + (" or stop the process that listens there" if taken else "")
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
    """A finding if the store of environments cannot be written."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        yield Finding(
            severity=Severity.ERROR,
            code="store",
            message=f"the store of environments cannot be written: {error.strerror or error}",
            advice="name a writable directory with --env-store or NAIAD_STORE",
            where=str(root),
        )


def missing_room(archive: Path, root: Path, reporter: ProgressReporter) -> Finding | None:
    """A finding if the store's disk has no room to unpack an archive; None if it has, or has the archive unpacked.

    Raises:
        ExecutionEnvironmentError: If the archive cannot be read.
    """
    store = Store(root, reporter)
    if store.get(store.identify(archive).digest) is not None:
        return None
    manifest = read_manifest(archive)
    needed = manifest.size if manifest is not None else archive.stat().st_size * _UNPACKED_RATIO
    free, files = _free(root)
    if free < needed:
        about = "" if manifest is not None else "about "
        reason = f"takes {about}{_megabytes(needed)}, and {root} has {_megabytes(free)} left"
    elif manifest is not None and files is not None and files < manifest.files:
        reason = f"has {manifest.files} files, and the file system of {root} can store {files} more"
    else:
        return None
    return Finding(
        severity=Severity.ERROR,
        code="disk",
        message=f"unpacked, it {reason}",
        advice="free disk space (`naiad env gc`), or name another --env-store",
        where=str(archive),
    )


def _free(root: Path) -> tuple[int, int | None]:
    """Free bytes and free inodes of a folder's file system; None where inodes are not limited.

    The folder need not exist: its closest existing parent counts. Btrfs and some others report 0 inodes in total,
    because they allocate them as needed.
    """
    status = os.statvfs(next(folder for folder in (root, *root.parents) if folder.is_dir()))
    return status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None


def examine_temporary() -> Iterator[Finding]:
    """A finding if models cannot write temporary files."""
    try:
        with tempfile.TemporaryFile():
            pass
    except OSError as error:
        yield Finding(
            severity=Severity.WARNING,
            code="temporary-folder",
            message=f"temporary files cannot be written: {error.strerror or error}",
            advice="free space in the folder of temporary files, or name a writable folder with TMPDIR",
        )


def examine_memory(guests: int) -> Iterator[Finding]:
    """A finding if the memory is too small for this number of guests, assuming that each imports only numpy."""
    needed, available = guests * GUEST_BYTES, psutil.virtual_memory().available
    if needed > available:
        yield Finding(
            severity=Severity.WARNING,
            code="memory",
            message=f"{guests} model processes take at least {_megabytes(needed)}, and {_megabytes(available)} are "
            "available",
            advice="lower the counts of instance groups, or load fewer models (--model-control-mode=explicit)",
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
