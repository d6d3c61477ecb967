"""The properties of a server that its deployment needs: flags, ports, probes, folders, time to stop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from naiad.config.server.backend_settings import shipped_backends
from naiad.config.server.flag import Flag, format_flag
from naiad.config.server.options import ServerOptions
from naiad.core.errors import DeploymentError

READY = "/v2/health/ready"
# Folder of the store in containers; only this folder and the one for temporary files are writable.
STORE = "/var/lib/naiad"
_STOP_MARGIN_SECONDS = 10  # after the exit timeout, the server ends its guests
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedServer:
    """A server that systemd, Kubernetes or KServe starts."""

    name: str
    flags: tuple[str, ...]  # the server's flags, except `--env-store`: the deployment chooses the store
    ports: dict[str, int]
    uses_tls: bool
    grace: int
    folders: tuple[Path, ...]


def model_folders(options: ServerOptions) -> tuple[Path, ...]:
    """The folders that a server with these options reads: repositories, backends, environments."""
    places = (*options.models.repositories, *_backends(options), *options.environments.directories)
    # The others are URIs of remote repositories.
    return tuple(path for path in places if isinstance(path, Path))


def _backends(options: ServerOptions) -> list[Path]:
    return [folder for folder in options.backends.directories if folder != shipped_backends()]


def is_label(name: str) -> bool:
    """Whether Kubernetes accepts a name as a label of DNS (RFC 1123), which most names in it are."""
    return _LABEL.fullmatch(name) is not None


def describe_server(name: str, options: ServerOptions, flags: Sequence[tuple[Flag, str]]) -> DeployedServer:
    """The deployed server with these options, which come from these flags."""
    if not is_label(name):
        raise DeploymentError(
            f"cannot use --name={name}: a name has 1 to 63 lowercase letters, digits and '-'; the first and last are "
            "not '-'"
        )
    if not options.http.is_enabled:
        raise DeploymentError("cannot deploy with --allow-http=false: the health probes use HTTP; enable it")
    ports = {"http": options.http.port}
    if options.grpc.is_enabled:
        ports["grpc"] = options.grpc.port
    if options.metrics.is_enabled:
        ports["metrics"] = options.metrics.port
    if options.openai.port is not None and not options.openai_shares_http:
        ports["openai"] = options.openai.port
    unknown = [port for port, number in ports.items() if number == 0]
    if unknown:
        raise DeploymentError(
            f"cannot deploy with --{unknown[0]}-port=0: 0 means an arbitrary port; name a port for the clients"
        )
    return DeployedServer(
        name=name,
        flags=tuple(format_flag(flag, text) for flag, text in flags if flag.name != "env-store"),
        ports=ports,
        uses_tls=options.http.tls is not None,
        grace=options.general.drain_seconds + options.general.exit_timeout_secs + _STOP_MARGIN_SECONDS,
        folders=model_folders(options),
    )
