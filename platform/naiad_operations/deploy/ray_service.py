"""Ray Serve: the application as Serve's configuration, and a RayService for Kubernetes. Nothing here imports Ray."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad import __version__
from naiad.config.server.command_line import read_options
from naiad.config.server.getopt import split_arguments
from naiad.config.server.options import SERVER_FLAGS, ModelControlMode
from naiad.core.errors import DeploymentError
from naiad_operations.deploy.kubernetes import check_memory, model_mounts, model_volume
from naiad_operations.deploy.server import model_folders
from naiad_operations.deploy.templates import render

# The two deployments of the application: the directory of the replicas, and the servers.
DIRECTORY, SERVER = "Directory", "Server"
# Environment of Ray's head, with which a lost node is replaced after 4 to 12 seconds; Ray's defaults take 12 to 65.
HEAD_ENVIRONMENT: Mapping[str, str] = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}
IMPORT_PATH = "naiad.ray:build"
_POLICY = "naiad.ray.policy:replicas_for_requests"
RAY_VERSION = "2.60.0"  # the version of Ray in the manifest, unless Ray is installed or a version is given
# KubeRay adds up to 16 characters, and a label of DNS that starts with a letter has at most 63 (RFC 1035).
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?")
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?([a-z0-9.+-]*)")
_STOP_MARGIN_SECONDS = 10
_FIRST_FLAGS = (
    # The system chooses ports: several replicas may run on one node.
    "--http-port=0",
    "--grpc-port=0",
    "--metrics-port=0",
    "--drain-seconds=15",
    # `reconfigure` polls; the server itself does once a year, which is never.
    "--model-control-mode=poll",
    "--repository-poll-secs=31536000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayServing:
    """The settings of servers on Ray."""

    name: str
    flags: tuple[str, ...]
    # The path under which Serve's HTTP port has the list of servers and the redirects; each application needs a
    # different one.
    route: str = "/"
    min_replicas: int = 1
    max_replicas: int = 1
    # Requests of a model, queued or executing, on each server at which another one is added.
    target_requests: float = 8.0
    cpus: float = 1.0
    gpus: float = 0.0
    # Servers that may be added while all are replaced, in percent of their number, rounded up. With 0, old ones stop
    # first, so they need no further room.
    surge: int = 25
    revision: str = ""  # any text; a new one has the servers load what has changed in their repositories
    grace: int = 0
    folders: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.route.startswith("/") or (self.route != "/" and self.route.endswith("/")):
            raise DeploymentError(f"cannot serve at the route '{self.route}': expected / or a path such as /shop")
        if self.min_replicas < 1:
            raise DeploymentError(
                f"cannot run {self.min_replicas} servers: requests do not pass through Ray, so none could start the "
                "first server; use at least 1"
            )
        if self.max_replicas < self.min_replicas:
            raise DeploymentError(
                f"cannot run at most {self.max_replicas} servers: the smallest number is {self.min_replicas}"
            )
        if self.target_requests <= 0:
            raise DeploymentError(f"cannot scale at {self.target_requests:g} requests: expected more than 0")
        if not 0 <= self.surge <= 100:  # noqa: PLR2004 - percent
            raise DeploymentError(f"cannot replace servers with a surge of {self.surge} %: expected 0 to 100")


def describe_serving(
    name: str, repositories: Iterable[str | Path], flags: Sequence[str], **settings: Any
) -> RayServing:
    """The settings of servers with these repositories, flags and other fields of `RayServing`."""
    places = [f"--model-repository={place}" for place in repositories]
    found, others = split_arguments((*_FIRST_FLAGS, *places, *flags), SERVER_FLAGS, "naiad ray")
    if others:
        raise DeploymentError(f"cannot serve on Ray with '{others[0]}': expected flags of `naiad serve`")
    if not any((flag.same_as or flag.name) == "model-repository" for flag, _ in found):
        raise DeploymentError("cannot serve on Ray: no models are named; add --model-repository=FOLDER_OR_URI")
    options = read_options(found, environ=os.environ)
    if options.models.control_mode is not ModelControlMode.POLL:
        raise DeploymentError(
            f"cannot serve on Ray with --model-control-mode={options.models.control_mode.value}: servers load "
            "revisions by polling; remove the flag, and for models on demand set their parameter 'demand' to \"true\""
        )
    grace = options.general.drain_seconds + options.general.exit_timeout_secs + _STOP_MARGIN_SECONDS
    return RayServing(
        name=name,
        flags=(*_FIRST_FLAGS, *places, *flags),
        grace=grace,
        folders=model_folders(options),
        **settings,
    )


def server_settings(serving: RayServing) -> dict[str, Any]:
    """The options of the deployment of servers; those of a running application change without new replicas."""
    return {
        "user_config": {"revision": serving.revision},
        "autoscaling_config": {
            "min_replicas": serving.min_replicas,
            "max_replicas": serving.max_replicas,
            "target_ongoing_requests": serving.target_requests,
            "look_back_period_s": 15.0,
            "upscale_delay_s": 5.0,
            "downscale_delay_s": 120.0,
            "policy": {"policy_function": _POLICY},
        },
        "ray_actor_options": {"num_cpus": serving.cpus, "num_gpus": serving.gpus},
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 10.0,
        "graceful_shutdown_timeout_s": float(serving.grace),
        "max_surge_percent": serving.surge,
    }


def serve_config(serving: RayServing) -> dict[str, Any]:
    """The application as Serve's configuration, for `serve deploy`."""
    return {
        "applications": [
            {
                "name": serving.name,
                "route_prefix": serving.route,
                "import_path": IMPORT_PATH,
                # All servers are replaced when these change: other flags, or another release of naiad.
                "args": {"flags": list(serving.flags), "release": __version__},
                "deployments": [{"name": DIRECTORY}, {"name": SERVER, **server_settings(serving)}],
            }
        ]
    }


def ray_service(
    serving: RayServing, *, image: str, memory: str, version: str = RAY_VERSION, models_claim: str = ""
) -> str:
    """The RayService: a head without servers, and workers that each have room for one server."""
    if not _NAME.fullmatch(serving.name):
        raise DeploymentError(
            f"cannot use --name={serving.name}: the name of a RayService has 1 to 47 lowercase letters, digits and "
            "'-'; the first is a letter, the last is not '-'"
        )
    if not _VERSION.fullmatch(version):
        raise DeploymentError(f"cannot use --ray-version={version}: expected a version of Ray, such as {RAY_VERSION}")
    check_memory(memory)
    gpus: Mapping[str, str] = {"nvidia.com/gpu": f"{serving.gpus:g}"} if serving.gpus else {}
    claim = models_claim if serving.folders else ""
    return render(
        "ray_service.yaml",
        name=serving.name,
        config=json.dumps(serve_config(serving), indent=2),
        version=version,
        image=image,
        head_environment=[{"name": name, "value": value} for name, value in HEAD_ENVIRONMENT.items()],
        least=serving.min_replicas,
        most=serving.max_replicas + math.ceil(serving.max_replicas * serving.surge / 100),
        grace=serving.grace or None,
        resources={"cpu": f"{max(serving.cpus, 1):g}", "memory": memory, **gpus},
        mounts=model_mounts(serving.folders) if claim else None,
        volumes=[model_volume(claim)] if claim else None,
    )
