"""Examines the library of a native backend: whether this machine can load it, and whether it takes the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from naiad.config.model import model_config_pb2 as pb
from naiad.core.errors import NaiadError
from naiad.engine.loading.loader import Loader
from naiad.environments.ready_environment import ReadyEnvironment
from naiad.models.resolution.decision import Resolution
from naiad.models.resolution.native_library import NativeLibrary
from naiad_operations.doctor.binaries import examine_files
from naiad_operations.doctor.findings import Finding, error_finding, warning_finding

TIME_LIMIT = 60.0  # seconds that a library may take to initialize a model: some load weights then, which takes minutes


def initialize_model(
    message: pb.ModelConfig, resolution: Resolution, environment: ReadyEnvironment, loader: Loader
) -> pb.ModelConfig | Finding:
    """The configuration after the library has initialized backend and model, in a process that then exits.

    The server does the same before it starts instances. No instance is initialized here: that is when libraries load
    weights and use a GPU, which a running server may have filled.

    Returns:
        The configuration; a finding if the library reports an error, with the server's text, or takes too long.
    """
    assert resolution.library is not None
    path = resolution.library.path

    async def complete() -> pb.ModelConfig:
        return await asyncio.wait_for(loader.complete(message, resolution, environment), TIME_LIMIT)

    try:
        return asyncio.run(complete())
    except NaiadError as error:
        return error_finding(
            "native-library",
            f"{path.name} does not initialize the model: {error.message}",
            "correct what it names in the configuration or the model's files, or use another version of the backend",
            str(path),
        )
    except asyncio.TimeoutError:
        return warning_finding(
            "native-library",
            f"{path.name} had not initialized the model after {TIME_LIMIT:g} s and was ended, so that the "
            "completed configuration was not examined",
            "start a server with this model to see whether the library takes it",
            str(path),
        )


def examine_native_library(library: NativeLibrary, environment: ReadyEnvironment) -> Iterator[Finding]:
    """Findings about a library: it is not a backend, needs libraries or symbol versions that are missing."""
    path = str(library.path)
    if library.problem:
        yield error_finding(
            "native-library",
            f"{library.path.name} {library.problem}",
            "build the backend for this machine as a shared object, against the public headers of Triton",
            path,
        )
        return
    for name in library.missing:
        yield error_finding(
            "missing-library",
            f"{library.path.name} needs {name}, which the loader does not find on this machine",
            "install it, put its directory into LD_LIBRARY_PATH, or link the backend with -Wl,-rpath,'$ORIGIN'",
            path,
        )
    yield from examine_files([library.path], environment.prefix)
