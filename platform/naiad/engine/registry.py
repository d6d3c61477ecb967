"""Which models there are, which of their versions serve, and why the others do not.

Texts: CORE src/model_repository_manager/. A version that was loaded once stays listed with its state and reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from naiad.engine.served import ServedVersion
from naiad.errors import NotReadyError, UnknownModelError
from naiad.lifecycle.states import advance
from naiad.protocol.metadata import IndexEntry, ModelState

LATEST = -1


@dataclass(slots=True)
class VersionRecord:
    """State of one version.

    Attributes:
        state: Its state.
        reason: Why it is UNAVAILABLE.
        loaded: The version itself while it is READY.
        leaving: What is being unloaded, while it is UNLOADING.
    """

    state: ModelState = ModelState.UNKNOWN
    reason: str = ""
    loaded: ServedVersion | None = None
    leaving: ServedVersion | None = None

    def become(self, state: ModelState, reason: str = "", loaded: ServedVersion | None = None) -> None:
        """Go on to *state*; raises ValueError where it may not follow."""
        self.state = advance(self.state, state)
        self.reason = reason
        self.loaded = loaded
        self.leaving = None


@dataclass(slots=True)
class ModelRecord:
    """What is known of one model.

    Attributes:
        name: The model.
        versions: Its versions that were ever asked for.
        reason: Why not even its configuration could be used; such a model has no versions.
    """

    name: str
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    reason: str = ""


class Registry:
    """All models by name.

    Attributes:
        by_number: Versions that serve or still finish their requests, by `ServedVersion.number`.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, ServedVersion] = {}
        self._models: dict[str, ModelRecord] = {}
        self._ready: dict[tuple[str, int], ServedVersion] = {}

    def __iter__(self) -> Iterator[ModelRecord]:
        return iter(self._models.values())

    def record(self, name: str) -> ModelRecord:
        """The record of a model, made if there is none."""
        return self._models.setdefault(name, ModelRecord(name))

    def known(self, name: str) -> ModelRecord | None:
        """The record of a model, if there is one."""
        return self._models.get(name)

    def is_serving(self, name: str) -> bool:
        """Whether any version of *name* serves."""
        model = self._models.get(name)
        return model is not None and any(record.loaded is not None for record in model.versions.values())

    def changed(self, name: str) -> None:
        """Versions of *name* came or went: look requests for it up anew."""
        for key in [key for key in self._ready if key[0] == name]:
            del self._ready[key]

    def ready_versions(self) -> Iterator[ServedVersion]:
        """Every version that serves."""
        for model in self._models.values():
            for record in model.versions.values():
                if record.loaded is not None:
                    yield record.loaded

    def find(self, name: str, version: int) -> ServedVersion:
        """The version that serves a request.

        Raises:
            UnknownModelError: If there is no such model or version.
            NotReadyError: If the version exists but does not serve now.
        """
        found = self._ready.get((name, version))
        if found is None:
            found = self._ready[name, version] = self._find(name, version)
        return found

    def versions(self, name: str) -> list[int]:
        """Numbers of the versions of *name* that serve, ascending.

        Raises:
            UnknownModelError: If there is no such model.
        """
        model = self._known(name)
        return sorted(number for number, record in model.versions.items() if record.loaded is not None)

    def index(self, *, ready_only: bool) -> list[IndexEntry]:
        """The repository index."""
        entries = []
        for model in sorted(self._models.values(), key=lambda model: model.name):
            if model.reason and not ready_only:
                entries.append(IndexEntry(name=model.name, state=ModelState.UNAVAILABLE, reason=model.reason))
            elif not model.versions and not ready_only:
                entries.append(IndexEntry(name=model.name))
            for number, record in sorted(model.versions.items()):
                state, reason = self._told(record)
                if state is ModelState.READY or not ready_only:
                    entries.append(IndexEntry(name=model.name, version=str(number), state=state, reason=reason))
        return entries

    def _told(self, record: VersionRecord) -> tuple[ModelState, str]:
        """State and reason; a version whose guests were all given up is unavailable, whatever was recorded."""
        if record.loaded is not None and record.loaded.reason:
            return ModelState.UNAVAILABLE, record.loaded.reason
        return record.state, record.reason

    def _known(self, name: str) -> ModelRecord:
        model = self._models.get(name)
        if model is None:
            raise UnknownModelError(f"Request for unknown model: '{name}' is not found")
        return model

    def _find(self, name: str, version: int) -> ServedVersion:
        model = self._known(name)
        if version != LATEST:
            record = model.versions.get(version)
            if record is None:
                raise UnknownModelError(f"Request for unknown model: '{name}' version {version} is not found")
            if record.loaded is None:
                raise NotReadyError(f"Request for unknown model: '{name}' version {version} is not at ready state")
            return record.loaded
        serving = self.versions(name)
        if not serving:
            raise UnknownModelError(f"Request for unknown model: '{name}' has no available versions")
        loaded = model.versions[serving[-1]].loaded
        assert loaded is not None
        return loaded
