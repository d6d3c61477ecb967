"""A systemd unit: its own dynamic user, one writable folder, and a stop that waits for requests in flight."""

from __future__ import annotations

import re
from collections.abc import Sequence

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.server import DeployedServer

__all__ = ["unit"]

_UNIT = """\
# /etc/systemd/system/{name}.service
[Unit]
Description=Models served by naiad ({name})
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=2
# SIGTERM goes to the server only, which ends its guests in order; after the timeout, SIGKILL goes to all.
KillMode=mixed
TimeoutStopSec={grace}
TimeoutStartSec=infinity
# When memory runs out, the kernel kills a model's process, which the server restarts; by default systemd would then
# stop the service.
OOMPolicy=continue

# The service has a user of its own; the only folder that the user may write to is /var/lib/{name}.
DynamicUser=yes
StateDirectory={name}
Environment=NAIAD_STORE=%S/{name}
ProtectSystem=strict
ProtectHome=read-only
# The service has a /tmp and a /var/tmp of its own: models, environments and keys in those of the machine are hidden
# from it, and so are its files from others.
PrivateTmp=yes
PrivateDevices={private_devices}
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
NoNewPrivileges=yes
CapabilityBoundingSet={capabilities}
AmbientCapabilities={capabilities}
LimitNOFILE=65536
{limits}
[Install]
WantedBy=multi-user.target
"""
_UNPRIVILEGED_PORT = 1024
"""Lower ports need CAP_NET_BIND_SERVICE."""
_MEMORY = re.compile(r"\d+(\.\d+)?[KMGTPE]?|\d+(\.\d+)?%|infinity")


def unit(
    server: DeployedServer, command: Sequence[str], *, memory: str = "", cpus: str = "", gpus: bool = False
) -> str:
    """The text of the unit."""
    if memory and not _MEMORY.fullmatch(memory):
        raise DeploymentError(f"cannot use --memory={memory}: expected a quantity of systemd, such as 8G or 50%")
    needs_capability = any(port < _UNPRIVILEGED_PORT for port in server.ports.values())
    limits = [f"MemoryMax={memory}"] * bool(memory)
    if cpus:
        limits.append(f"CPUQuota={_percent(cpus)}%")
    return _UNIT.format(
        name=server.name,
        command=" \\\n    ".join(_quoted(word) for word in (*command, *server.flags)),
        grace=server.grace,
        private_devices="no" if gpus else "yes",
        capabilities="CAP_NET_BIND_SERVICE" if needs_capability else "",
        limits="".join(f"{line}\n" for line in limits),
    )


def _percent(cpus: str) -> int:
    percent = round(float(cpus) * 100) if re.fullmatch(r"\d+(\.\d+)?", cpus) else 0
    if not percent:
        raise DeploymentError(f"cannot use --cpus={cpus}: expected a number of processors, such as 1.5")
    return percent


def _quoted(word: str) -> str:
    """A word in systemd's syntax; `%` and `$` are doubled, because they begin specifiers and variables there."""
    escaped = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return escaped if re.fullmatch(r"[^\s'\"\\;]+", word) else f'"{escaped}"'
