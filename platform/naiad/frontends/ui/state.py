"""What the page shows, as JSON: models, backends, environments and guests as they are now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psutil

from naiad.engine.door import EngineDoor
from naiad.errors import NaiadError
from naiad.protocol.metadata import IndexEntry, InstanceStatus, ModelStatistics


class WatchedEngine(EngineDoor, Protocol):
    """What the page asks beyond what clients may."""

    def instances(self) -> list[InstanceStatus]:
        """All instances and their guests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a model comes from.

    Attributes:
        backend: Its backend.
        code: The file that is run.
        environment: What runs it, in words.
    """

    backend: str
    code: str
    environment: str


Origins = Callable[[], Mapping[tuple[str, str], Origin]]
"""Where models come from, by name and version."""


class State:
    """Asks the engine for what the page shows."""

    def __init__(self, engine: WatchedEngine, origins: Origins) -> None:
        self._engine = engine
        self._origins = origins
        self._started = time.monotonic()

    def document(self) -> dict[str, Any]:
        """All of it."""
        server = self._engine.server_metadata()
        return {
            "server": {
                "name": server.name,
                "version": server.version,
                "uptime_seconds": time.monotonic() - self._started,
            },
            "models": list(self._models()),
            "guests": [_guest(instance) for instance in self._engine.instances() if instance.pid],
        }

    def _models(self) -> Iterable[dict[str, Any]]:
        origins = self._origins()
        statistics = {(each.name, each.version): each for each in self._engine.statistics()}
        for entry in self._engine.repository_index():
            key = (entry.name, entry.version)
            origin = origins.get(key)
            yield {
                "name": entry.name,
                "version": entry.version,
                "state": entry.state.value if entry.state is not None else "",
                "reason": entry.reason,
                "writes_text": self._writes_text(entry),
                "backend": origin.backend if origin is not None else "",
                "code": origin.code if origin is not None else "",
                "environment": origin.environment if origin is not None else "",
                **_counts(statistics.get(key)),
            }

    def _writes_text(self, entry: IndexEntry) -> bool:
        try:
            metadata = self._engine.model_metadata(entry.name)
        except NaiadError:
            return False
        inputs = {tensor.name for tensor in metadata.inputs}
        return "text_input" in inputs and any(tensor.name == "text_output" for tensor in metadata.outputs)


def _counts(statistics: ModelStatistics | None) -> dict[str, int]:
    if statistics is None:
        return {"success_count": 0, "success_ns": 0, "fail_count": 0, "pending": 0}
    success, fail = statistics.success, statistics.fail
    pending = statistics.pending_count
    return {"success_count": success.count, "success_ns": success.ns, "fail_count": fail.count, "pending": pending}


def _guest(instance: InstanceStatus) -> dict[str, Any]:
    memory, interpreter = 0, ""
    with suppress(psutil.Error):  # it may end just now
        process = psutil.Process(instance.pid)
        memory = process.memory_info().rss
        command = process.cmdline()
        interpreter = command[0] if command else process.exe()
    return {
        "name": instance.name,
        "model": instance.model,
        "version": instance.version,
        "pid": instance.pid,
        "memory_bytes": memory,
        "interpreter": interpreter,
        "restarts": ", ".join(f"{count} x {reason}" for reason, count in sorted(instance.restarts.items())),
    }
