"""A systemd unit: its own dynamic user, one writable folder, and a stop that waits for requests in flight."""

from __future__ import annotations

import re
from collections.abc import Sequence

from naiad.core.errors import DeploymentError
from naiad_operations.deploy.options import DeployOptions
from naiad_operations.deploy.server import DeployedServer
from naiad_operations.deploy.templates import render

_UNPRIVILEGED_PORT = 1024  # lower ports need CAP_NET_BIND_SERVICE
_MEMORY = re.compile(r"\d+(\.\d+)?[KMGTPE]?|\d+(\.\d+)?%|infinity")


def unit(server: DeployedServer, command: Sequence[str], options: DeployOptions) -> str:
    """The text of the unit."""
    memory, cpus = options.memory, options.cpus
    if memory and not _MEMORY.fullmatch(memory):
        raise DeploymentError(f"cannot use --memory={memory}: expected a quantity of systemd, such as 8G or 50%")
    needs_capability = any(port < _UNPRIVILEGED_PORT for port in server.ports.values())
    limits = [f"MemoryMax={memory}"] * bool(memory)
    if cpus:
        limits.append(f"CPUQuota={_percent(cpus)}%")
    return render(
        "naiad.service",
        name=server.name,
        command=" \\\n    ".join(_quoted(word) for word in (*command, *server.flags)),
        grace=server.grace,
        private_devices="no" if options.gpus else "yes",
        capabilities="CAP_NET_BIND_SERVICE" if needs_capability else "",
        limits="\n".join(limits) or None,
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
