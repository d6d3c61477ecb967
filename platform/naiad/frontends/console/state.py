"""The document that the page polls: the current models, backends, environments and guests as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from naiad.engine.door import EngineDoor
from naiad.errors import NaiadError
from naiad.frontends.openai.vllm_tensors import can_generate_text
from naiad.protocol.metadata import IndexEntry, InstanceStatus, ModelStatistics
from naiad.protocol.model_names import model_key


class ConsoleEngine(EngineDoor, Protocol):
    """The engine as the console uses it: also with its instances, which clients cannot list."""

    def instances(self) -> list[InstanceStatus]:
        """All instances with the state of their guests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrigin:
    """What runs a model.

    Attributes:
        backend: Name of its backend.
        code: Path of its `model.py`.
        environment: Its environment, as text to show.
    """

    backend: str
    code: str
    environment: str


Origins = Callable[[], Mapping[tuple[str, str], ModelOrigin]]
"""Returns the origins of the models by their key and version."""


class ConsoleState:
    """Collects the document from the engine."""

    def __init__(self, engine: ConsoleEngine, origins: Origins) -> None:
        self._engine = engine
        self._origins = origins
        self._started = time.monotonic()
        self._processes: dict[tuple[str, int], tuple[psutil.Process, str]] = {}

    async def document(self) -> dict[str, Any]:
        """The whole document."""
        index = await self._engine.repository_index()
        server = self._engine.server_metadata()
        return {
            "server": {
                "name": server.name,
                "version": server.version,
                "uptime_seconds": time.monotonic() - self._started,
            },
            "models": list(self._models(index)),
            "guests": list(self._guests()),
        }

    def _guests(self) -> Iterable[dict[str, Any]]:
        instances = [instance for instance in self._engine.instances() if instance.pid]
        known, self._processes = self._processes, {}
        for instance in instances:
            key = instance.name, instance.pid
            memory, interpreter = 0, ""
            with suppress(psutil.Error):  # the guest has exited since
                found = known.get(key) or _process(instance.pid)  # read once: `cmdline` blocks the event loop
                memory, interpreter = found[0].memory_info().rss, found[1]
                self._processes[key] = found
            yield {
                "name": instance.name,
                "model": instance.model,
                "version": instance.version,
                "pid": instance.pid,
                "memory_bytes": memory,
                "interpreter": interpreter,
                "restarts": ", ".join(f"{count} x {reason}" for reason, count in sorted(instance.restarts.items())),
            }

    def _models(self, index: Sequence[IndexEntry]) -> Iterable[dict[str, Any]]:
        origins = self._origins()
        statistics = {(each.namespace, each.name, each.version): each for each in self._engine.statistics()}
        for entry in index:
            key = model_key(entry.namespace, entry.name)
            origin = origins.get((key, entry.version))
            yield {
                "name": key,
                "version": entry.version,
                "state": entry.state.value if entry.state is not None else "",
                "reason": entry.reason,
                "writes_text": self._writes_text(entry),
                "backend": origin.backend if origin is not None else "",
                "code": origin.code if origin is not None else "",
                "environment": origin.environment if origin is not None else "",
                **_counts(statistics.get((entry.namespace, entry.name, entry.version))),
            }

    def _writes_text(self, entry: IndexEntry) -> bool:
        try:
            return can_generate_text(self._engine.model_metadata(model_key(entry.namespace, entry.name)))
        except NaiadError:
            return False


def _counts(statistics: ModelStatistics | None) -> dict[str, int]:
    if statistics is None:
        return {"success_count": 0, "success_ns": 0, "fail_count": 0, "pending": 0}
    success, fail = statistics.success, statistics.fail
    pending = statistics.pending_count
    return {"success_count": success.count, "success_ns": success.ns, "fail_count": fail.count, "pending": pending}


def _process(pid: int) -> tuple[psutil.Process, str]:
    """A process and the path of its interpreter."""
    process = psutil.Process(pid)
    command = process.cmdline()
    return process, command[0] if command else process.exe()
