"""What of a server's options those need to know who start and watch it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from naiad.config.server.backend_settings import shipped_backends
from naiad.config.server.flag import Flag, format_flag
from naiad.config.server.options import ServerOptions
from naiad.errors import DeploymentError

__all__ = ["LIVE", "READY", "STORE", "Deployed", "deployed"]

LIVE, READY = "/v2/health/live", "/v2/health/ready"
STORE = "/var/lib/naiad"
"""Where containers have the store: the one folder, beside those for temporary files, that is written to."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A server that something else starts.

    Attributes:
        name: Of what is made for it.
        flags: As on its command line, but for the store, which its host decides on.
        ports: Numbers by name: `http`, `grpc`, `metrics`.
        uses_tls: Whether HTTP is TLS.
        grace: Seconds it may take to end.
        folders: Folders of the machine it reads: repositories, backends, environments.
    """

    name: str
    flags: tuple[str, ...]
    ports: dict[str, int]
    uses_tls: bool
    grace: int
    folders: tuple[Path, ...]

    def probe(self, path: str, **more: int) -> dict[str, Any]:
        """A probe of Kubernetes that asks for a path."""
        scheme = {"scheme": "HTTPS"} if self.uses_tls else {}
        return {"httpGet": {"path": path, "port": "http", **scheme}, **more}


def _backends(options: ServerOptions) -> list[Path]:
    return [folder for folder in options.backends.directories if folder != shipped_backends()]


def deployed(name: str, options: ServerOptions, flags: Sequence[tuple[Flag, str]]) -> Deployed:
    """What to know of a server with these options, which come from these flags.

    Raises:
        DeploymentError: If it could not be watched, or the name is none of Kubernetes.
    """
    if not _NAME.fullmatch(name):
        raise DeploymentError(
            f"--name={name}: use small letters, digits and '-', 63 at most, with a letter or digit first and last"
        )
    if not options.http.is_enabled:
        raise DeploymentError("--allow-http=false: health is asked for by HTTP; leave it on")
    ports = {"http": options.http.port}
    if options.grpc.is_enabled:
        ports["grpc"] = options.grpc.port
    if options.metrics.is_enabled:
        ports["metrics"] = options.metrics.port
    if options.openai.port is not None and not options.openai_shares_http:
        ports["openai"] = options.openai.port
    unknown = [port for port, number in ports.items() if number == 0]
    if unknown:
        raise DeploymentError(f"--{unknown[0]}-port=0 is any port, and others have to know which; name one")
    named = (*options.models.repositories, *_backends(options), *options.environments.directories)
    return Deployed(
        name=name,
        flags=tuple(format_flag(flag, text) for flag, text in flags if flag.name != "env-store"),
        ports=ports,
        uses_tls=options.http.tls is not None,
        grace=options.general.exit_timeout_secs + 10,
        folders=tuple(path for path in named if isinstance(path, Path)),
    )
