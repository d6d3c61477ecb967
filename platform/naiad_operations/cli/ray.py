"""`naiad ray`: run servers on a Ray cluster, or write the manifest for one in Kubernetes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from naiad.cli.command_line import CommandLine, run_command
from naiad.config.server.flag import Kind, UsageError, format_flag
from naiad.config.server.option_group import flags_of, own_option, own_path, own_switch
from naiad.core.errors import DeploymentError
from naiad_operations.cli.deploy import with_absolute_path, write_output
from naiad_operations.deploy.ray_service import RAY_VERSION, RayServing, describe_serving, ray_service, serve_config

_PROGRAM = "naiad ray up|yaml"
_COMMANDS = ("up", "yaml")
# Flags that only one of the commands uses.
_FLAGS_OF_ONE = {
    **dict.fromkeys(("address", "wait-seconds"), "up"),
    **dict.fromkeys(("image", "ray-version", "models-claim", "memory", "output", "force"), "yaml"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The flags of `naiad ray`."""

    name: str = own_option("name", "Name of the Serve application and of the RayService.", default="naiad")
    route: str = own_option("route", "Path of the list of servers; each application needs its own.", default="/")
    least: int = own_option("min", "Smallest number of servers.", Kind.INTEGER, "1", low=1)
    most: int | None = own_option("max", "Largest number of servers; default: --min.", Kind.INTEGER, low=1)
    target_requests: int = own_option(
        "target-requests", "Requests of a model on each server at which another is added.", Kind.INTEGER, "8", low=1
    )
    cpus: int = own_option("cpus", "CPUs that Ray reserves for each server.", Kind.INTEGER, "1", low=0)
    gpus: int = own_option("gpus", "GPUs that Ray reserves for each server.", Kind.INTEGER, "0", low=0)
    surge: int = own_option(
        "surge", "Servers added while all are replaced, in percent of their number.", Kind.INTEGER, "25", low=0
    )
    revision: str = own_option("revision", "Any text; a new one has running servers load what has changed.")
    address: str = own_option("address", "URL of Ray's dashboard (up).", default="http://127.0.0.1:8265")
    wait_seconds: int = own_option(
        "wait-seconds", "Seconds to wait until the servers run (up).", Kind.INTEGER, "600", low=0
    )
    image: str = own_option("image", "Container image with Ray and naiad (yaml).")
    ray_version: str = own_option(
        "ray-version", f"Version of Ray in the image; default: that installed here, else {RAY_VERSION} (yaml)."
    )
    models_claim: str = own_option("models-claim", "PersistentVolumeClaim with the folders of the repositories (yaml).")
    memory: str = own_option("memory", "Memory of each pod with a server (yaml).", default="4Gi")
    output: Path | None = own_path("output", "File to write; default: standard output (yaml).")
    replaces: bool = own_switch("force", "Replace an existing file (yaml).")


OWN_FLAGS = flags_of("Ray (also takes all flags of the server; the servers start with them)", RayOptions)


def ray(arguments: Sequence[str]) -> int:
    """Run servers on Ray, or write a RayService; returns the exit code."""
    return run_command(arguments, RayOptions, OWN_FLAGS, _PROGRAM, "serve on Ray", _run)


def _run(line: CommandLine, own: RayOptions) -> int:
    if len(line.positional) != 1 or line.positional[0] not in _COMMANDS:
        given = " ".join(line.positional) or "none"
        raise UsageError(f"cannot serve on Ray: expected one of {', '.join(_COMMANDS)}, got {given}")
    command = line.positional[0]
    for flag in OWN_FLAGS:
        other = _FLAGS_OF_ONE.get(flag.name, command)
        if flag.name in line.given and other != command:
            raise UsageError(f"cannot use --{flag.name} with {command}: it is a flag of {other}; remove it")
    (_up if command == "up" else _yaml)(line, own)
    return 0


def _up(line: CommandLine, own: RayOptions) -> None:
    from naiad_operations.ray.dashboard import deploy_application, directory_url, wait_until_running
    from naiad_operations.ray.directory import LISTING

    serving = _serving(own, [with_absolute_path(format_flag(flag, text)) for flag, text in line.server])
    deploy_application(own.address, serve_config(serving)["applications"][0])
    wait_until_running(own.address, serving.name, own.wait_seconds)
    print(f"{serving.name} runs; its servers: {directory_url(own.address, serving.route.rstrip('/') + LISTING)}")


def _yaml(line: CommandLine, own: RayOptions) -> None:
    if not own.image:
        raise DeploymentError("cannot describe a RayService: no image is named; add --image=IMAGE, with Ray and naiad")
    serving = _serving(own, [format_flag(flag, text) for flag, text in line.server])
    version = own.ray_version or _installed_ray() or RAY_VERSION
    manifest = ray_service(serving, image=own.image, memory=own.memory, version=version, models_claim=own.models_claim)
    for folder in () if own.models_claim else serving.folders:
        print(
            f"no pod mounts {folder}: the image must contain it; else name a URI, or a claim with --models-claim=NAME",
            file=sys.stderr,
        )
    write_output(manifest, own.output, replace=own.replaces)


def _installed_ray() -> str:
    """The version of Ray beside this command, which is probably that of the image; empty if Ray is not installed."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return ""


def _serving(own: RayOptions, flags: Sequence[str]) -> RayServing:
    return describe_serving(
        own.name,
        (),
        flags,
        route=own.route,
        min_replicas=own.least,
        max_replicas=own.most or own.least,
        target_requests=float(own.target_requests),
        cpus=float(own.cpus),
        gpus=float(own.gpus),
        surge=own.surge,
        revision=own.revision,
    )
