"""The documents of the page: the current state of server and models, the details of one model, and the last hour."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any, Protocol

from naiad.core.errors import InvalidRequestError, NaiadError
from naiad.core.logs import LogLine
from naiad.frontends.console.history import History
from naiad.frontends.console.sampler import ConsoleEngine, Sampler
from naiad.frontends.console.troubles import RECENT_SECONDS, Troubles
from naiad.protocol.metadata import IndexEntry, InstanceStatus, ModelMetadata, ModelStatistics, TensorMetadata
from naiad.protocol.model_metrics import ModelMetricFamily
from naiad.protocol.model_names import LATEST, model_key
from naiad.protocol.numbers import decimal, integer
from naiad.protocol.text_models import can_embed, can_generate_text

_REASON_CHARACTERS = 300
_REASON_END = 100
_SUGGESTION = "; did you mean "


class ServerFacts(Protocol):
    """What the page shows of the loader and of the store of environments."""

    def origins(self) -> Mapping[tuple[str, str], ModelOrigin]:
        """What runs the models, by their key and version."""

    def activity(self) -> Mapping[str, str]:
        """What is being done now for models that are loading, by the model's key."""

    def log_lines(self, model: str, after: int) -> Sequence[LogLine]:
        """The last lines of the log about a model, after the line of that number."""

    async def details(self, key: str, version: str) -> Mapping[str, Any]:
        """How a version is run: `resolution`, `environment` and `files` as JSON values."""

    async def packages(self, key: str, version: str) -> Sequence[Mapping[str, str]]:
        """The packages that are installed in a version's environment."""

    async def environments(self) -> Mapping[str, Any]:
        """The store of environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrigin:
    """What runs a model."""

    backend: str
    code: str
    environment: str  # its environment, as text to show
    python: str = ""  # version of its Python; empty while no process runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """What does not change while a server runs."""

    version: str
    total_memory: int  # bytes that the server and its guests may use
    is_explicit: bool = False
    can_control: bool = False
    has_api_page: bool = False


class ConsoleState:
    """Makes the documents. Each has a name, and arguments from the path of the request."""

    def __init__(
        self,
        engine: ConsoleEngine,
        facts: ServerFacts,
        profile: ServerProfile,
        metrics: Iterable[ModelMetricFamily],  # the models' own metrics; each iteration gives the current ones
        roles: Callable[[], Mapping[int, str]],  # the processes of the server other than guests, with what each does
    ) -> None:
        """Begin to sample; call it on a running event loop."""
        self._engine = engine
        self._facts = facts
        self._profile = profile
        self._roles = roles
        self._started = time.monotonic()
        self.history = History()
        self.sampler = Sampler(engine, metrics, self.history, roles)
        self._sampling = asyncio.get_running_loop().create_task(self.sampler.run())

    async def close(self) -> None:
        self._sampling.cancel()
        await asyncio.gather(self._sampling, return_exceptions=True)

    async def document(self, name: str, *arguments: str) -> Any:
        """The document of that name; NaiadError if the page has none, or it cannot be made."""
        match name, arguments:
            case "state", ():
                return await self._state()
            case "history", (key, after):
                return self.history.document(key, _number(after))
            case "model", (key, version):
                return await self._model(key, version)
            case "log", (key, after):
                lines = self._facts.log_lines(key.rpartition("::")[2], int(_number(after)))
                return [[each.number, each.time, each.level, each.source, each.text] for each in lines]
            case "packages", (key, version):
                return await self._facts.packages(key, version)
            case "environments", ():
                return await self._facts.environments()
            case "graph", ():
                return self._graph()
            case "guests", ():
                return [
                    {
                        "model": model_key(each.namespace, each.model),
                        "version": each.version,
                        **self._instance(each),
                    }
                    for each in self._engine.instances()
                ]
            case _:
                raise InvalidRequestError(f"the page has no document '{name}' with {len(arguments)} arguments")

    # -- the state ----------------------------------------------------------------------------------------------

    async def _state(self) -> dict[str, Any]:
        index = await self._engine.repository_index()
        server, profile = self._engine.server_metadata(), self._profile
        return {
            "server": {
                "name": "naiad",
                "id": server.name,
                "version": profile.version,
                "uptime_seconds": time.monotonic() - self._started,
                "state": self._server_state(),
                "is_explicit": profile.is_explicit,
                "can_control": profile.can_control,
                "has_api_page": profile.has_api_page,
                "total_memory": profile.total_memory,
                "recent_seconds": RECENT_SECONDS,
                "now": _known(self.history.latest.get("", {})),
            },
            "models": self._models(index),
            "processes": [
                {
                    "role": role,
                    "pid": pid,
                    "memory": self.sampler.processes[pid].memory if pid in self.sampler.processes else None,
                    "cpu": self.sampler.cpu.get(pid),
                }
                for pid, role in self._roles().items()
            ],
        }

    def _server_state(self) -> str:
        if self._engine.is_draining:
            return "draining"
        with suppress(NaiadError):
            if self._engine.is_ready():
                return "ready"
        return "not ready"

    def _models(self, index: Sequence[IndexEntry]) -> list[dict[str, Any]]:
        origins, activity = self._facts.origins(), self._facts.activity()
        demand = self._engine.demand_states()
        statistics = {(each.namespace, each.name, each.version): each for each in self._engine.statistics()}
        instances: dict[tuple[str, str], list[InstanceStatus]] = {}
        present = self._engine.instances()
        troubles = self.sampler.recent_troubles(statistics.values(), present)
        for instance in present:
            instances.setdefault((model_key(instance.namespace, instance.model), instance.version), []).append(instance)
        models = []
        for entry in index:
            key = model_key(entry.namespace, entry.name)
            origin, own = origins.get((key, entry.version)), instances.get((key, entry.version), [])
            counted = statistics.get((entry.namespace, entry.name, entry.version))
            reason = entry.reason or activity.get(key, "") or _trouble_now(counted)
            metadata = self._metadata(key)
            models.append(
                {
                    "name": key,
                    "version": entry.version,
                    "state": entry.state.value if entry.state is not None else "",
                    "condition": "" if counted is None else counted.condition.value,
                    "demand": demand.get(key, ""),
                    "reason": _brief(reason),
                    "is_reason_longer": len(reason) > _REASON_CHARACTERS or "\n" in reason,
                    "uses": [] if metadata is None else _uses(metadata),
                    "platform": "" if metadata is None else metadata.platform,
                    "backend": "" if origin is None else origin.backend,
                    "environment": "" if origin is None else origin.environment,
                    "python": "" if origin is None else origin.python,
                    "troubles": asdict(troubles.get((entry.namespace, entry.name, entry.version), Troubles())),
                    "instances": len(own),
                    "serving": sum(instance.state == "ready" for instance in own),
                    "restarts": sum(sum(instance.restarts.values()) for instance in own),
                    "now": _known(self.history.latest.get(key, {})),
                    **_counts(counted),
                }
            )
        return models

    def _metadata(self, key: str, version: int = LATEST) -> ModelMetadata | None:
        try:
            return self._engine.model_metadata(key, version)
        except NaiadError:
            return None

    # -- one model ----------------------------------------------------------------------------------------------

    async def _model(self, key: str, version: str) -> dict[str, Any]:
        entries = await self._engine.repository_index()
        wanted = (key, version)
        entry = next((each for each in entries if (model_key(each.namespace, each.name), each.version) == wanted), None)
        if entry is None:
            raise InvalidRequestError(f"there is no version '{version}' of a model '{key}'")
        number = integer(version)
        if number is None:
            number = LATEST
        counted: ModelStatistics | None = None
        troubles = Troubles()
        with suppress(NaiadError):
            (counted,) = self._engine.statistics(key, number)
            (troubles,) = self.sampler.recent_troubles([counted], self._engine.instances()).values()
        metadata = self._metadata(key, number)
        config: Mapping[str, Any] | None = None
        with suppress(NaiadError):
            config = self._engine.model_config(key, number)
        return {
            "name": key,
            "version": version,
            "state": entry.state.value if entry.state is not None else "",
            "condition": "" if counted is None else counted.condition.value,
            "demand": self._engine.demand_states().get(key, ""),
            "reason": entry.reason or _trouble_now(counted),
            "troubles": asdict(troubles),
            "recent_seconds": RECENT_SECONDS,
            "inputs": [] if metadata is None else [_tensor(each) for each in metadata.inputs],
            "outputs": [] if metadata is None else [_tensor(each) for each in metadata.outputs],
            "is_decoupled": metadata is not None and self._engine.is_decoupled(key, number),
            "config": config,
            "instances": [
                self._instance(each)
                for each in self._engine.instances()
                if (model_key(each.namespace, each.model), each.version) == (key, version)
            ],
            **await self._facts.details(key, version),
        }

    def _instance(self, instance: InstanceStatus) -> dict[str, Any]:
        use = self.sampler.processes.get(instance.pid)
        return {
            "name": instance.name,
            "pid": instance.pid,
            "state": instance.state,
            "memory": None if use is None else use.memory,
            "cpu": self.sampler.cpu.get(instance.pid),
            "restarts": dict(instance.restarts),
            "stalled_seconds": instance.stalled_seconds,
        }

    # -- models that call models --------------------------------------------------------------------------------

    def _graph(self) -> dict[str, Any]:
        """Steps of ensembles, from their configurations, and calls between models, from what was counted."""
        edges: list[dict[str, Any]] = []
        for entry in self._engine.ready_index():
            key = model_key(entry.namespace, entry.name)
            with suppress(NaiadError):
                config = self._engine.model_config(key, int(entry.version))
                steps = config.get("ensemble_scheduling", {}).get("step", [])
                edges += [
                    {
                        "from": entry.name,
                        "to": step["model_name"],
                        "kind": "step",
                        "inputs": step.get("input_map", {}),
                        "outputs": step.get("output_map", {}),
                    }
                    for step in steps
                ]
        calls = self._engine.call_counts()
        edges += [
            {"from": caller, "to": called, "kind": "call", "count": count}
            for (caller, called), count in sorted(calls.items())
        ]
        return {"edges": edges}


def _trouble_now(counted: ModelStatistics | None) -> str:
    """What a version that serves refuses, or where it makes no progress."""
    return "" if counted is None else counted.refused or counted.stalled


def _brief(reason: str) -> str:
    """The first line of a reason; of a long line its beginning and its end, which says what is wrong, or to be done."""
    line = reason.partition("\n")[0]
    if len(line) <= _REASON_CHARACTERS:
        return line
    cause, separator, hint = line.rpartition(_SUGGESTION)
    if not separator or len(hint) > _REASON_CHARACTERS // 2:
        return f"{line[: _REASON_CHARACTERS - _REASON_END]}…{line[-_REASON_END:]}"
    return f"{cause[: _REASON_CHARACTERS - len(hint)]}…{separator}{hint}"


def _uses(metadata: ModelMetadata) -> list[str]:
    """What the page offers for a model beside plain requests."""
    return [name for name, can in (("chat", can_generate_text), ("embed", can_embed)) if can(metadata)]


def _tensor(tensor: TensorMetadata) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "required": tensor.required}


def _known(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items() if not isnan(value)}


def _number(text: str) -> float:
    number = decimal(text)
    if number is None:
        raise InvalidRequestError(f"'{text}' is not a number")
    return number


def _counts(statistics: ModelStatistics | None) -> dict[str, int]:
    if statistics is None:
        return {"success_count": 0, "fail_count": 0, "waiting": 0, "running": 0}
    return {
        "success_count": statistics.success.count,
        "fail_count": statistics.fail.count,
        "waiting": statistics.pending_count,
        "running": statistics.running_count,
    }
