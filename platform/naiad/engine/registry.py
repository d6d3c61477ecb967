"""All models, the state of their versions, and the lookup of the version that serves a request.

A version that was loaded once stays in the index with its state and reason. Texts: CORE src/model_repository_manager/.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from naiad.core.errors import Code, NoLoadedVersionError, NotReadyError, UnknownModelError
from naiad.engine.lifecycle.states import UNLOADED, advance
from naiad.engine.served import LoadedVersion, ServedVersion, Target
from naiad.models.repository.layout import ModelFiles
from naiad.protocol.metadata import IndexEntry, ModelState
from naiad.protocol.model_names import LATEST


@dataclass(slots=True)
class VersionRecord:
    """State of one version."""

    state: ModelState = ModelState.UNKNOWN
    reason: str = ""
    loaded: ServedVersion | None = None
    # What its requests go to while versions that *loaded* has replaced have sequences in progress; None where they go
    # to *loaded*, and always None without one.
    handover: Target | None = None
    leaving: LoadedVersion | None = None

    def become(self, state: ModelState, reason: str = "", loaded: ServedVersion | None = None) -> None:
        """Change to *state*; raises ValueError for a transition that `engine.lifecycle.states` does not allow.

        With *loaded* if, and only if, the state is READY: `loaded` changes elsewhere only from one version to another.
        """
        assert (loaded is not None) == (state is ModelState.READY), (state, loaded)
        self.state = advance(self.state, state)
        self.reason = reason
        self.loaded = loaded
        self.handover = self.leaving = None

    @property
    def target(self) -> Target | None:
        return self.loaded if self.handover is None else self.handover


@dataclass(slots=True)
class ModelRecord:
    """What is known of one model."""

    key: str  # its unique key (see `naiad.protocol.model_names.model_key`)
    namespace: str
    name: str
    # All versions that were ever loaded, or failed to load.
    versions: dict[int, VersionRecord] = field(default_factory=dict)
    reason: str = ""
    is_on_demand: bool = False
    step: str = ""

    @property
    def is_wanted(self) -> bool:
        """Whether it is being loaded; or was loaded, or failed to load, and was not unloaded since."""
        return bool(self.step or self.reason) or any(
            record.state is not ModelState.UNLOADING and record.reason != UNLOADED for record in self.versions.values()
        )

    @property
    def is_at_rest(self) -> bool:
        resting = (ModelState.UNKNOWN, ModelState.UNAVAILABLE)
        return not self.step and all(record.state in resting for record in self.versions.values())

    def serving(self) -> list[ServedVersion]:
        return [record.loaded for record in self.versions.values() if record.loaded is not None]


class Registry:
    """All models by key (see `naiad.protocol.model_names.model_key`); without namespaces, the key is the name."""

    def __init__(self, *, is_namespaced: bool = False) -> None:
        self.is_namespaced = is_namespaced  # whether several namespaces may have models of the same name
        # Versions that serve or still finish their requests, by `LoadedVersion.number`.
        self.versions_alive: dict[int, LoadedVersion] = {}
        self._models: dict[str, ModelRecord] = {}
        self._ready: dict[tuple[str, int], Target] = {}
        self.is_complete = True  # whether the names of all models are known; until then, no name is unknown
        # What is being done now to build environments, by the key of the model.
        self.activity: Callable[[], Mapping[str, str]] = dict
        # Called after the version that serves a name may have changed.
        self.on_change: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[ModelRecord]:
        return iter(self._models.values())

    def record(self, key: str) -> ModelRecord:
        if key not in self._models:
            namespace = key.rpartition("::")[0] if self.is_namespaced else ""
            self._models[key] = ModelRecord(key, namespace, self.name_of(key))
            self.changed(key)
        return self._models[key]

    def known(self, key: str) -> ModelRecord | None:
        return self._models.get(key)

    def keys_of(self, name: str) -> list[str]:
        """The keys of all models of that name that were loaded, or failed to load, and were not unloaded since."""
        if not self.is_namespaced:
            return [name] if name in self._models else []
        return sorted(model.key for model in self._models.values() if model.name == name and model.is_wanted)

    def is_serving(self, key: str) -> bool:
        model = self._models.get(key)
        return model is not None and bool(model.serving())

    def forget_failures(self, key: str) -> None:
        model = self._models.get(key)
        if model is not None:
            model.reason = ""
            for number, record in list(model.versions.items()):
                if record.state is ModelState.UNAVAILABLE and record.reason != UNLOADED:
                    del model.versions[number]

    def forget(self, key: str) -> None:
        del self._models[key]
        self.changed(key)

    def name_of(self, key: str) -> str:
        return key.rpartition("::")[2] if self.is_namespaced else key

    def changed(self, key: str) -> None:
        """Drop cached lookups of *key*, since its versions have changed."""
        names = {key, self.name_of(key)}
        for asked in [asked for asked in self._ready if asked[0] in names]:
            del self._ready[asked]
        self.on_change()

    def ready_versions(self) -> Iterator[ServedVersion]:
        for model in self._models.values():
            yield from model.serving()

    def find(self, name: str, version: int) -> Target:
        """What a request to a name and version goes to.

        Raises:
            UnknownModelError: If the model or version does not exist.
            NotReadyError: If the version exists but does not serve now.
        """
        found = self._ready.get((name, version))
        if found is None:
            found = self._find(name, version).target
            assert found is not None
            self._ready[name, version] = found
        return found

    def find_loaded(self, name: str, version: int) -> ServedVersion:
        loaded = self._find(name, version).loaded
        assert loaded is not None
        return loaded

    def end_handovers(self) -> None:
        """Send all requests to the new versions from now on: the sequences of old ones are not waited for any more."""
        for model in self._models.values():
            for record in model.versions.values():
                if record.handover is not None:
                    record.handover = None
                    self.changed(model.key)

    def versions(self, name: str) -> list[int]:
        """Numbers of the versions of *name* that serve, ascending; raise UnknownModelError if it does not exist."""
        model = self._known(name)
        return sorted(number for number, record in model.versions.items() if record.loaded is not None)

    def index(self, *, ready_only: bool, stored: Collection[ModelFiles] | None = None) -> list[IndexEntry]:
        """The repository index.

        Args:
            stored: The models in the repositories. They are included even if they were never loaded; models that no
                repository has are left out unless they serve. None includes exactly the models that were ever to be
                loaded.
        """
        entries = []
        models = dict(self._models)
        if stored is not None:
            keys = {files.key for files in stored}
            models = {key: model for key, model in models.items() if key in keys or not model.is_at_rest}
            for files in stored:
                models.setdefault(files.key, ModelRecord(files.key, files.namespace, files.name))
        for model in sorted(models.values(), key=lambda model: (model.namespace, model.name)):
            if model.reason and not ready_only:
                entries.append(
                    IndexEntry(
                        name=model.name, namespace=model.namespace, state=ModelState.UNAVAILABLE, reason=model.reason
                    )
                )
            elif not model.versions and not ready_only:
                step = self._step_of(model)
                state = ModelState.LOADING if step else None
                entries.append(IndexEntry(name=model.name, namespace=model.namespace, state=state, reason=step))
            for number, record in sorted(model.versions.items()):
                state, reason = self._state_of(model, record)
                if state is ModelState.READY or not ready_only:
                    entries.append(
                        IndexEntry(
                            name=model.name, namespace=model.namespace, version=str(number), state=state, reason=reason
                        )
                    )
        return entries

    def _state_of(self, model: ModelRecord, record: VersionRecord) -> tuple[ModelState, str]:
        """State and reason; a version whose instances were all abandoned is unavailable, although it is loaded."""
        if record.loaded is not None and record.loaded.reason:
            return ModelState.UNAVAILABLE, record.loaded.reason
        return record.state, self._step_of(model) if record.state is ModelState.LOADING else record.reason

    def _step_of(self, model: ModelRecord) -> str:
        return model.step and (self.activity().get(model.key) or model.step)

    def _known(self, name: str) -> ModelRecord:
        model = self._models.get(name)
        if model is not None:
            return model
        if not self.is_complete:
            raise NotReadyError("Server not ready")
        if not self.is_namespaced:
            raise UnknownModelError(f"Request for unknown model: '{name}' is not found")
        keys = self.keys_of(name)
        if len(keys) > 1:
            raise UnknownModelError(
                f"There are {len(keys)} identifiers of model '{name}' in global map, model namespace must be provided "
                "to resolve ambiguity.",
                code=Code.INVALID_ARG,
            )
        if keys:
            return self._models[keys[0]]
        if any(model.name == name for model in self._models.values()):
            raise UnknownModelError(f"Identifier of model '{name}' is not found in global map")
        raise UnknownModelError(f"Request for unknown model: '{name}' is not found", code=Code.INVALID_ARG)

    def _find(self, name: str, version: int) -> VersionRecord:
        model = self._known(name)
        name = model.key
        step = self._step_of(model)
        if step and not any(record.loaded is not None for record in model.versions.values()):
            raise NotReadyError(
                f"Request for unknown model: '{name}' has no available versions: it is loading ({step})"
            )
        if version != LATEST:
            record = model.versions.get(version)
            if record is None:
                raise UnknownModelError(f"Request for unknown model: '{name}' version {version} is not found")
            if record.loaded is None:
                raise NotReadyError(f"Request for unknown model: '{name}' version {version} is not at ready state")
            return record
        serving = sorted(number for number, record in model.versions.items() if record.loaded is not None)
        if not serving:
            raise NoLoadedVersionError(f"Request for unknown model: '{name}' has no available versions")
        return model.versions[serving[-1]]
