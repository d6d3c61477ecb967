"""Examines the library of a native backend: whether this machine's loader can load it."""

from __future__ import annotations

from collections.abc import Iterator

from naiad.doctor.binaries import examine_file
from naiad.doctor.findings import Finding, Severity
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.resolution.native_library import NativeLibrary

__all__ = ["examine_native_library"]


def examine_native_library(library: NativeLibrary, environment: ReadyEnvironment) -> Iterator[Finding]:
    """Findings about a library: it is not a backend, needs libraries or symbol versions that are missing."""
    path = str(library.path)
    if library.problem:
        yield Finding(
            severity=Severity.ERROR,
            code="native-library",
            message=f"{library.path.name} {library.problem}",
            advice="build the backend for this machine as a shared object, against the public headers of Triton",
            where=path,
        )
        return
    for name in library.missing:
        yield Finding(
            severity=Severity.ERROR,
            code="missing-library",
            message=f"{library.path.name} needs {name}, which the loader does not find on this machine",
            advice="install it, put its directory into LD_LIBRARY_PATH, or link the backend with -Wl,-rpath,'$ORIGIN'",
            where=path,
        )
    yield from examine_file(library.path, environment)
