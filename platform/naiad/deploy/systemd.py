"""A unit of systemd: a user made for the service alone, one folder to write in, an end that waits for requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from naiad.deploy.server import Deployed
from naiad.errors import DeploymentError

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
# Guests are ended by the server, in order; the rest, if any, after the time.
KillMode=mixed
TimeoutStopSec={grace}
TimeoutStartSec=infinity

# A user of its own without password or home; the only folder to write in is /var/lib/{name}.
DynamicUser=yes
StateDirectory={name}
Environment=NAIAD_STORE=%S/{name}
ProtectSystem=strict
ProtectHome=read-only
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
_PRIVILEGED = 1024
_MEMORY = re.compile(r"\d+(\.\d+)?[KMGTPE]?|\d+(\.\d+)?%|infinity")


def unit(server: Deployed, command: Sequence[str], *, memory: str = "", cpus: str = "", gpus: bool = False) -> str:
    """The unit.

    Args:
        server: What is served.
        command: The program, with its full path, and what comes before the server's flags.
        memory: What the server and its guests may use together, as `8G`.
        cpus: How many processors.
        gpus: Whether guests use devices.

    Raises:
        DeploymentError: If *cpus* or *memory* is nothing that systemd takes.
    """
    if memory and not _MEMORY.fullmatch(memory):
        raise DeploymentError(f"--memory={memory} is no amount of memory as systemd writes it, such as 8G or 50%")
    needs_port = any(port < _PRIVILEGED for port in server.ports.values())
    limits = [f"MemoryMax={memory}"] * bool(memory)
    if cpus:
        limits.append(f"CPUQuota={_percent(cpus)}%")
    return _UNIT.format(
        name=server.name,
        command=" \\\n    ".join(_quoted(word) for word in (*command, *server.flags)),
        grace=server.grace,
        private_devices="no" if gpus else "yes",
        capabilities="CAP_NET_BIND_SERVICE" if needs_port else "",
        limits="".join(f"{line}\n" for line in limits),
    )


def _percent(cpus: str) -> int:
    percent = round(float(cpus) * 100) if re.fullmatch(r"\d+(\.\d+)?", cpus) else 0
    if not percent:
        raise DeploymentError(f"--cpus={cpus} is no number of processors, such as 1.5")
    return percent


def _quoted(word: str) -> str:
    """A word as systemd reads it: `%` and `$` stand for something there."""
    escaped = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace('"', '\\"')
    return escaped if re.fullmatch(r"[^\s'\"\\;]+", word) else f'"{escaped}"'
