"""A file for Docker Compose: the image or its build, ports, a health check, limits, and what may be written to."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.container_files import place_files
from naiad_operations.deploy.dockerfile import HEALTH_SECONDS, has_models, health_command
from naiad_operations.deploy.server import STORE, DeployedServer
from naiad_operations.deploy.yaml import documents

__all__ = ["ComposeSettings", "compose"]

_HEAD = """\
# Start: docker compose{file} up --detach --wait    Log: docker compose{file} logs    Stop: docker compose{file} down
# The container sees no file of this machine but those that "volumes" names. Its /tmp is its own, and empty at each
# start.
"""
_BUILD = """\
# The image is built with the file that `naiad deploy dockerfile --output=Dockerfile` writes with the same flags.
"""
_FOUND_BY_ITSELF = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_BYTES = re.compile(r"\d+(\.\d+)?([bkmg]b?)?", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposeSettings:
    """The settings of the service; empty texts set nothing.

    Attributes:
        context: Folder of the Dockerfile that makes the image, where *image* is empty.
        file: The file to write; its folder is where relative paths begin. None for one in the current folder.
    """

    image: str = ""
    context: Path
    file: Path | None = None
    memory: str = ""
    cpus: str = ""
    gpus: int = 0
    uid: int | None = None


def compose(server: DeployedServer, settings: ComposeSettings) -> str:
    """The text of the file."""
    folder = settings.context if settings.file is None else settings.file.absolute().parent
    flags, placed = place_files(server.flags)
    # An image that the Dockerfile makes has the flags and the folders; secrets are mounted in either case.
    mounted = [each for each in placed if settings.image or each.is_secret]
    volumes: list[dict[str, Any]] = [
        {"type": "bind", "source": each.source_from(folder), "target": str(each.target), "read_only": True}
        for each in mounted
    ]
    service: dict[str, Any] = {}
    if settings.image:
        service |= {"image": settings.image, "command": flags}
    else:
        context = os.path.relpath(settings.context.absolute(), folder)
        service |= {"build": {"context": context, "dockerfile": "Dockerfile"}, "image": server.name}
    # The image that the Dockerfile makes has the store of its models, and the server only reads it.
    has_volume = bool(settings.image) or not has_models(flags)
    if has_volume:
        volumes.append({"type": "volume", "source": "store", "target": STORE})
    if settings.uid is not None:
        service["user"] = f"{settings.uid}:0"
    service |= {
        "ports": [f"{port}:{port}" for port in server.ports.values()],
        "volumes": volumes,
        "environment": {"NAIAD_STORE": STORE, "HOME": "/tmp"},  # noqa: S108 - of the container
        "healthcheck": {
            "test": ["CMD", *health_command(server)],
            "interval": f"{HEALTH_SECONDS}s",
            "timeout": "5s",
            "retries": 3,
            "start_period": "1h",
        },
        "restart": "unless-stopped",
        "stop_grace_period": f"{server.grace}s",
        "init": True,
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 - of the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    if resources := _resources(settings):
        service["deploy"] = {"resources": resources}
    document: dict[str, Any] = {"name": server.name, "services": {server.name: _without_empty(service)}}
    if has_volume:
        document["volumes"] = {"store": {}}
    named = settings.file is not None and settings.file.name not in _FOUND_BY_ITSELF
    head = _HEAD.format(file=f" --file {settings.file}" if named else "")
    return head + ("" if settings.image else _BUILD) + documents([document])


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value != []}


def _resources(settings: ComposeSettings) -> dict[str, Any]:
    limits = {}
    if settings.cpus:
        if not _NUMBER.fullmatch(settings.cpus) or not float(settings.cpus):
            raise DeploymentError(f"cannot use --cpus={settings.cpus}: expected a number of processors, such as 1.5")
        limits["cpus"] = settings.cpus
    if settings.memory:
        if not _BYTES.fullmatch(settings.memory):
            raise DeploymentError(f"cannot use --memory={settings.memory}: expected a quantity of Docker, such as 8G")
        limits["memory"] = settings.memory
    resources: dict[str, Any] = {"limits": limits} if limits else {}
    if settings.gpus:
        device = {"driver": "nvidia", "count": settings.gpus, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [device]}
    return resources
