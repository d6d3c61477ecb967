"""The application of Ray Serve: a directory, and a number of servers that follows their requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.core.extras import install_command
from naiad_operations.deploy.ray_service import DIRECTORY, SERVER, RayServing, describe_serving, server_settings
from naiad_operations.ray.directory import Directory

_NAME = "naiad"
_HEAD_NODE = "node:__internal_head__"  # the resource that Ray gives to the head node


def app(
    model_repository: str | Path | Sequence[str | Path],
    *,
    min_replicas: int = 1,
    max_replicas: int = 1,
    target_requests: float = 8.0,
    cpus: float = 1.0,
    gpus: float = 0.0,
    surge: int = 25,
    flags: Sequence[str] = (),
) -> Any:
    """An application of Ray Serve that serves model repositories, for `serve.run`.

    Args:
        model_repository: Folders that each node has, or URIs such as `s3://bucket/models` or `oci://registry/name:tag`.
        min_replicas: Smallest number of servers; at least 1.
        max_replicas: Largest number of servers.
        target_requests: Requests of a model, queued or executing, on each server at which another one is added.
        cpus: CPUs that Ray reserves for each server.
        gpus: GPUs that Ray reserves for each server.
        surge: Servers that may be added while all are replaced, in percent of their number. With 0, old ones stop
            first.
        flags: More flags of `naiad serve`.

    Raises:
        OptionError: If a flag is unknown or its value is invalid.
        DeploymentError: If a number is out of its range.
    """
    places = [model_repository] if isinstance(model_repository, str | Path) else model_repository
    return _bind(
        describe_serving(
            _NAME,
            places,
            flags,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            target_requests=target_requests,
            cpus=cpus,
            gpus=gpus,
            surge=surge,
        )
    )


def build(args: Mapping[str, Any]) -> Any:
    """The application for Serve's configuration files, as `naiad ray yaml` writes them; *args* has `flags`.

    Other arguments, such as the release of naiad, only have Serve replace the servers when they change.

    Raises:
        ImportError: If Ray Serve is not installed.
        OptionError: If a flag is unknown or its value is invalid.
    """
    return _bind(describe_serving(_NAME, (), args["flags"]))


def _bind(serving: RayServing) -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError(
            f"cannot use naiad.ray: Ray Serve cannot be imported ({error}); install it with: {install_command('ray')}"
        ) from error
    from naiad_operations.ray.replica import ServerReplica

    server = serve.deployment(ServerReplica, name=SERVER).options(**server_settings(serving))
    directory = serve.deployment(Directory, name=DIRECTORY).options(
        # On the node of Ray's own services, without which the cluster is lost: no other lost node takes the list along.
        ray_actor_options={"num_cpus": 0, "resources": {_HEAD_NODE: 0.001}},
        max_surge_percent=100,
        # Without access log: each server reports every second.
        logging_config={"enable_access_log": False},
    )
    return directory.bind(server.bind(serving.flags, float(serving.grace)))
