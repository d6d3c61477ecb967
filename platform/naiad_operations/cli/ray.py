"""`naiad ray`: run servers on a Ray cluster, or write the manifest for one in Kubernetes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import metadata

from naiad.cli.command_line import CommandLine, own_flags, run_command, with_help
from naiad.config.server.flag import Flag, Kind, UsageError, format_flag
from naiad.core.errors import DeploymentError
from naiad_operations.cli.deploy import with_absolute_path, write_output
from naiad_operations.deploy.ray_service import RAY_VERSION, RayServing, describe_serving, ray_service, serve_config

_PROGRAM = "naiad ray up|yaml"
_GROUP = "Ray (also takes all flags of the server; the servers start with them)"
_NAME = Flag("name", "Name of the Serve application and of the RayService.", default="naiad")
_ROUTE = Flag("route", "Path of the list of servers; each application needs its own.", default="/")
_MIN = Flag("min", "Smallest number of servers.", Kind.INTEGER, "1", low=1)
_MAX = Flag("max", "Largest number of servers; default: --min.", Kind.INTEGER, low=1)
_TARGET = Flag(
    "target-requests", "Requests of a model on each server at which another is added.", Kind.INTEGER, "8", low=1
)
_CPUS = Flag("cpus", "CPUs that Ray reserves for each server.", Kind.INTEGER, "1", low=0)
_GPUS = Flag("gpus", "GPUs that Ray reserves for each server.", Kind.INTEGER, "0", low=0)
_SURGE = Flag("surge", "Servers added while all are replaced, in percent of their number.", Kind.INTEGER, "25", low=0)
_REVISION = Flag("revision", "Any text; a new one has running servers load what has changed.")
_ADDRESS = Flag("address", "URL of Ray's dashboard (up).", default="http://127.0.0.1:8265")
_WAIT = Flag("wait-seconds", "Seconds to wait until the servers run (up).", Kind.INTEGER, "600", low=0)
_IMAGE = Flag("image", "Container image with Ray and naiad (yaml).")
_RAY_VERSION = Flag(
    "ray-version", f"Version of Ray in the image; default: that installed here, else {RAY_VERSION} (yaml)."
)
_MODELS_CLAIM = Flag("models-claim", "PersistentVolumeClaim with the folders of the repositories (yaml).")
_MEMORY = Flag("memory", "Memory of each pod with a server (yaml).", default="4Gi")
_OUTPUT = Flag("output", "File to write; default: standard output (yaml).")
_FORCE = Flag("force", "Replace an existing file (yaml).", Kind.NOTHING)
OWN_FLAGS = own_flags(
    _GROUP,
    *(_NAME, _ROUTE, _MIN, _MAX, _TARGET, _CPUS, _GPUS, _SURGE, _REVISION, _ADDRESS, _WAIT),
    *(_IMAGE, _RAY_VERSION, _MODELS_CLAIM, _MEMORY, _OUTPUT, _FORCE),
)
_SHOWN_FLAGS = with_help(OWN_FLAGS, _GROUP)


def ray(arguments: Sequence[str]) -> int:
    """Run servers on Ray, or write a RayService; returns the exit code."""
    return run_command(arguments, OWN_FLAGS, _SHOWN_FLAGS, _PROGRAM, "serve on Ray", _run)


def _run(line: CommandLine) -> int:
    if len(line.positional) != 1 or line.positional[0] not in _COMMANDS:
        given = " ".join(line.positional) or "none"
        raise UsageError(f"cannot serve on Ray: expected one of {', '.join(_COMMANDS)}, got {given}")
    command = line.positional[0]
    for flag in OWN_FLAGS:
        other = _FLAGS_OF_ONE.get(flag.name, command)
        if line.has(flag) and other != command:
            raise UsageError(f"cannot use --{flag.name} with {command}: it is a flag of {other}; remove it")
    return _COMMANDS[command](line)


def _up(line: CommandLine) -> int:
    from naiad_operations.ray.dashboard import deploy_application, directory_url, wait_until_running
    from naiad_operations.ray.directory import LISTING

    serving = _serving(line, with_absolute_path)
    address = line.last(_ADDRESS)
    deploy_application(address, serve_config(serving)["applications"][0])
    wait_until_running(address, serving.name, int(line.last(_WAIT)))
    print(f"{serving.name} runs; its servers: {directory_url(address, serving.route.rstrip('/') + LISTING)}")
    return 0


def _yaml(line: CommandLine) -> int:
    if not line.last(_IMAGE):
        raise DeploymentError("cannot describe a RayService: no image is named; add --image=IMAGE, with Ray and naiad")
    serving = _serving(line, str)
    claim = line.last(_MODELS_CLAIM)
    manifest = ray_service(
        serving,
        image=line.last(_IMAGE),
        memory=line.last(_MEMORY),
        version=line.last(_RAY_VERSION) or _installed_ray() or RAY_VERSION,
        models_claim=claim,
    )
    for folder in () if claim else serving.folders:
        print(
            f"no pod mounts {folder}: the image must contain it; else name a URI, or a claim with --models-claim=NAME",
            file=sys.stderr,
        )
    write_output(manifest, line.last(_OUTPUT), replace=line.has(_FORCE))
    return 0


def _installed_ray() -> str:
    """The version of Ray beside this command, which is probably that of the image; empty if Ray is not installed."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return ""


def _serving(line: CommandLine, adapt: Callable[[str], str]) -> RayServing:
    smallest = int(line.last(_MIN))
    return describe_serving(
        line.last(_NAME),
        (),
        [adapt(format_flag(flag, text)) for flag, text in line.server],
        route=line.last(_ROUTE),
        min_replicas=smallest,
        max_replicas=int(line.last(_MAX) or smallest),
        target_requests=float(line.last(_TARGET)),
        cpus=float(line.last(_CPUS)),
        gpus=float(line.last(_GPUS)),
        surge=int(line.last(_SURGE)),
        revision=line.last(_REVISION),
    )


_COMMANDS = {"up": _up, "yaml": _yaml}
# Flags that only one of the commands uses.
_FLAGS_OF_ONE = {
    flag.name: command
    for command, flags in {
        "up": (_ADDRESS, _WAIT),
        "yaml": (_IMAGE, _RAY_VERSION, _MODELS_CLAIM, _MEMORY, _OUTPUT, _FORCE),
    }.items()
    for flag in flags
}
