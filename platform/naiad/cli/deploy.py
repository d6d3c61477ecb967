"""`naiad deploy systemd | kubernetes | kserve`: writes the files with which these start and watch a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from naiad.bundle.host import RUN
from naiad.bundle.manifest import read_manifest
from naiad.cli.command_line import (
    CommandLine,
    own_flags,
    parse_command_line,
    report_option_error,
    usage,
    with_help,
)
from naiad.config.server.command_line import read_options
from naiad.config.server.flag import Flag, Kind, UsageError
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS
from naiad.deploy.kserve import MODELS, inference_service, serving_runtime
from naiad.deploy.kubernetes import Pod, deployment, service
from naiad.deploy.server import DeployedServer, describe_server
from naiad.deploy.systemd import unit
from naiad.deploy.yaml import documents
from naiad.errors import DeploymentError, NaiadError

__all__ = ["deploy"]

_PROGRAM = "naiad deploy systemd|kubernetes|kserve"
_GROUP = "Deployment (also takes all flags of the server; the server starts with them)"
_NAME = Flag("name", Kind.STRING, "naiad", "Name of the unit or of the Kubernetes objects.")
_OUTPUT = Flag("output", Kind.STRING, "", "File to write; default: standard output.")
_FORCE = Flag("force", Kind.NOTHING, "", "Replace an existing file.")
_MEMORY = Flag("memory", Kind.STRING, "", "Memory limit: 8G (systemd), 8Gi.")
_CPUS = Flag("cpus", Kind.STRING, "", "CPU limit.")
_GPUS = Flag("gpus", Kind.INTEGER, "0", "Number of GPUs; systemd: 1 makes devices visible.", low=0)
_BUNDLE = Flag(
    "unpacked-bundle", Kind.STRING, "", "Start this bundle; systemd: its folder; else: what the image contains."
)
_IMAGE = Flag("image", Kind.STRING, "", "Container image; an image of `naiad bundle --oci` has its own flags.")
_REPLICAS = Flag("replicas", Kind.INTEGER, "1", "Number of pods (kubernetes).", low=0)
_MODELS_CLAIM = Flag("models-claim", Kind.STRING, "", "PersistentVolumeClaim with the repositories (kubernetes).")
_STORE_CLAIM = Flag("store-claim", Kind.STRING, "", "PersistentVolumeClaim for the store; default: an emptyDir.")
_UID = Flag("uid", Kind.INTEGER, "", "User id to run as; default: the image's user.", low=1)
_CLUSTER = Flag("cluster", Kind.NOTHING, "", "Write a ClusterServingRuntime (kserve).")
_STORAGE_URI = Flag("storage-uri", Kind.STRING, "", "Add an InferenceService of these models (kserve).")
_OWN_FLAGS = own_flags(
    _GROUP,
    *(_NAME, _OUTPUT, _FORCE, _MEMORY, _CPUS, _GPUS, _BUNDLE, _IMAGE, _REPLICAS),
    *(_MODELS_CLAIM, _STORE_CLAIM, _UID, _CLUSTER, _STORAGE_URI),
)
_SHOWN_FLAGS = with_help(_OWN_FLAGS, _GROUP)
# The ports and the folder with which KServe's documentation starts Triton.
_KSERVE_FLAGS = (f"--model-repository={MODELS}", "--http-port=8080", "--grpc-port=9000")


def deploy(arguments: Sequence[str]) -> int:
    """Write the files for one way to start a server; returns the exit code."""
    try:
        line = parse_command_line(arguments, _OWN_FLAGS, _PROGRAM)
        if line.is_help_requested:
            print(usage(_PROGRAM, _SHOWN_FLAGS), end="")
            return 0
        if len(line.positional) != 1 or line.positional[0] not in _WRITERS:
            raise UsageError(
                f"cannot write a deployment: expected one of {', '.join(_WRITERS)}, "
                f"got {' '.join(line.positional) or 'none'}"
            )
        _write(_WRITERS[line.positional[0]](line), line)
    except UsageError as error:
        return report_option_error(error, _PROGRAM, _SHOWN_FLAGS)
    except NaiadError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


def _systemd(line: CommandLine) -> str:
    server = _server(line, line.server)
    server = replace(server, flags=tuple(_with_absolute_path(flag) for flag in server.flags))
    command = [str(Path(sys.executable).with_name("naiad")), "serve"]
    if line.has(_BUNDLE):
        command = [str(Path(line.last(_BUNDLE)).absolute() / RUN)]
    return unit(server, command, memory=line.last(_MEMORY), cpus=line.last(_CPUS), gpus=int(line.last(_GPUS)) > 0)


def _kubernetes(line: CommandLine) -> str:
    server = _server(line, line.server)
    return documents([deployment(server, _pod(line, server)), service(server)])


def _kserve(line: CommandLine) -> str:
    # Flags that the user gives come last, so that they override KServe's.
    server = _server(line, [*split_arguments(_KSERVE_FLAGS, SERVER_FLAGS, _PROGRAM)[0], *line.server])
    runtime = serving_runtime(server, _pod(line, server), cluster=line.has(_CLUSTER))
    storage = line.last(_STORAGE_URI)
    return documents([runtime, *([inference_service(server, storage)] if storage else [])])


_WRITERS: dict[str, Callable[[CommandLine], str]] = {
    "systemd": _systemd,
    "kubernetes": _kubernetes,
    "kserve": _kserve,
}


def _server(line: CommandLine, flags: Sequence[tuple[Flag, str]]) -> DeployedServer:
    """The server to deploy.

    A bundle starts with its own flags. They determine the ports, so they count as options here, but the deployment does
    not repeat them.
    """
    bundled: Sequence[tuple[Flag, str]] = ()
    if line.has(_BUNDLE):
        folder = Path(line.last(_BUNDLE)).absolute()
        bundled = split_arguments(read_manifest(folder).flags_in(folder), SERVER_FLAGS, _PROGRAM)[0]
    return describe_server(line.last(_NAME), read_options([*bundled, *flags], environ=os.environ), flags)


def _pod(line: CommandLine, server: DeployedServer) -> Pod:
    if not line.last(_IMAGE):
        raise DeploymentError(
            "cannot describe a pod: no image is named; add --image=IMAGE, such as one made by `naiad bundle --oci`"
        )
    pod = Pod(
        image=line.last(_IMAGE),
        args=server.flags,
        gpus=int(line.last(_GPUS)),
        replicas=int(line.last(_REPLICAS)),
        models_claim=line.last(_MODELS_CLAIM),
        store_claim=line.last(_STORE_CLAIM),
        uid=int(line.last(_UID)) if line.last(_UID) else None,
    )
    return replace(pod, cpus=line.last(_CPUS) or pod.cpus, memory=line.last(_MEMORY) or pod.memory)


def _with_absolute_path(flag: str) -> str:
    """The flag with an absolute path; systemd starts services in the root folder."""
    name, _, text = flag.partition("=")
    is_path = name.removeprefix("--") in _PATH_FLAGS and "://" not in text
    return f"{name}={Path(text).absolute()}" if is_path else flag


_PATH_FLAGS = frozenset(
    {"model-repository", "model-store", "backend-directory", "env-directory", "env-trust", "log-file"}
    | {f"{where}-{what}" for where in ("http", "grpc") for what in ("server-cert", "server-key", "root-cert")}
    | {"openai-api-keys-file"}
)


def _write(text: str, line: CommandLine) -> None:
    output = line.last(_OUTPUT)
    if not output:
        print(text, end="")
        return
    try:
        with Path(output).open("w" if line.has(_FORCE) else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise DeploymentError(f"cannot write {output}: it exists; choose another file, or add --force") from None
    except OSError as error:
        raise DeploymentError(f"cannot write {output}: {error.strerror or error}") from error
