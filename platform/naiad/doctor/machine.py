"""The machine: ports, the store of environments, room on its disk and in its memory."""

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
from naiad.environments.progress import Reporter
from naiad.environments.store.store import Store

__all__ = ["examine_memory", "examine_ports", "examine_store", "examine_temporary", "wanting_room"]

GUEST_BYTES = 40 << 20
"""What a guest takes that has imported numpy and nothing else (measured: 30 to 45 MB)."""

_UNPACKED = 4
"""How many times its size an archive without a manifest may take; conda's take three to four times."""


def examine_ports(options: ServerOptions) -> Iterator[Finding]:
    """Places that the server would listen at and cannot."""
    for allowed, name, address, port, shared in (
        (options.http.is_enabled, "http", options.http.address, options.http.port, options.http.reuse_port),
        (options.grpc.is_enabled, "grpc", options.grpc.address, options.grpc.port, options.grpc.reuse_port),
        (options.metrics.is_enabled, "metrics", options.metrics.address, options.metrics.port, False),
    ):
        problem = _why_not(address, port) if allowed and port and not shared else None
        if problem is not None:
            taken = problem.errno == errno.EADDRINUSE
            yield Finding(
                severity=Severity.ERROR,
                code="port-taken" if taken else "address",
                message=f"{name} cannot be served at {address}:{port}: {problem.strerror or problem}",
                advice=f"choose another --{name}-port" + (" or stop who listens there" if taken else "")
                if taken or problem.errno == errno.EACCES
                else f"choose another --{name}-address",
            )


def _why_not(address: str, port: int) -> OSError | None:
    try:
        kind, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            listener.bind(place)
            listener.listen()
    except OSError as error:
        return error
    return None


def examine_store(root: Path) -> Iterator[Finding]:
    """Whether environments can be unpacked where they should be."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        yield Finding(
            severity=Severity.ERROR,
            code="store",
            message=f"the store of environments cannot be written: {error.strerror or error}",
            advice="name a directory that can be with --env-store or NAIAD_STORE",
            where=str(root),
        )


def wanting_room(archive: Path, root: Path, reporter: Reporter) -> Finding | None:
    """What is to be said where an archive that is not unpacked yet has no room.

    Raises:
        ExecutionEnvironmentError: If the archive cannot be read.
    """
    store = Store(root, reporter)
    if store.ready(store.content(archive).digest) is not None:
        return None
    manifest = read_manifest(archive)
    needed = manifest.size if manifest is not None else archive.stat().st_size * _UNPACKED
    free, files = _free(root)
    if free < needed:
        about = "" if manifest is not None else "about "
        lacking = f"takes {about}{_megabytes(needed)}, and {root} has {_megabytes(free)} left"
    elif manifest is not None and files is not None and files < manifest.files:
        lacking = f"has {manifest.files} files, and the file system of {root} takes {files} more"
    else:
        return None
    return Finding(
        severity=Severity.ERROR,
        code="disk",
        message=f"unpacked, it {lacking}",
        advice="make room (`naiad env gc`), or name another --env-store",
        where=str(archive),
    )


def _free(root: Path) -> tuple[int, int | None]:
    """Bytes and files that the disk of a folder takes, which need not be there yet; None for any number of files."""
    found = os.statvfs(next(folder for folder in (root, *root.parents) if folder.is_dir()))
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


def examine_temporary() -> Iterator[Finding]:
    """Whether models would have a folder for temporary files."""
    try:
        with tempfile.TemporaryFile():
            pass
    except OSError as error:
        yield Finding(
            severity=Severity.WARNING,
            code="temporary-folder",
            message=f"no temporary file can be written: {error.strerror or error}",
            advice="make room in it, or name a folder that can be written with TMPDIR",
        )


def examine_memory(guests: int) -> Iterator[Finding]:
    """Whether so many model processes have room, if each imported nothing but numpy."""
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
