"""The models that this API serves, found by the names that clients use for them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from naiad.core.errors import NaiadError, without_frames
from naiad.engine.facade import EngineFacade
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.model_names import model_key
from naiad.protocol.text_models import can_embed, can_generate_text
from naiad_llm.openai.errors import BAD_REQUEST, ApiError, to_api_error

AdapterNames: TypeAlias = Callable[[str, str], Awaitable[Sequence[str]]]
"""Finds the names of the adapters of a model and version."""


ContextLength: TypeAlias = Callable[[str, str], Awaitable[int]]
"""Finds the number of tokens that a model and version takes; 0 if unknown."""


async def unknown_context(model: str, version: str) -> int:  # noqa: ARG001 - the signature of `ContextLength`
    """Find no length."""
    return 0


async def no_adapters(model: str, version: str) -> Sequence[str]:  # noqa: ARG001 - the signature of `AdapterNames`
    """Find no adapters."""
    return ()


@dataclass(frozen=True, slots=True)
class ServedModels:
    """Finds models, and adapters in their names."""

    _engine: EngineFacade
    _separator: str  # "" to support no adapters
    _adapters: AdapterNames
    _context: ContextLength

    def find(self, name: str) -> tuple[ModelMetadata, str]:
        """The model that *name* selects, and the name of its adapter or ""."""
        try:
            return self._engine.model_metadata(name), ""
        except NaiadError as problem:
            first = without_frames(problem)
        for model, adapter in self._split_adapter(name):
            with contextlib.suppress(NaiadError):
                return self._engine.model_metadata(model), adapter
        raise to_api_error(first, name)

    def only(self, can: Callable[[ModelMetadata], bool], what: str, status: int = BAD_REQUEST) -> str:
        """The only model that can do *what*, for requests that name none; an error of *status* if there is none."""
        names = [name for name in self._ready_names() if self._is(name, can)]
        if len(names) == 1:
            return names[0]
        found = f"{len(names)} models here {what}: {', '.join(names)}" if names else f"no model here can {what}"
        raise ApiError(
            f"you must provide a `model` parameter: {found}",
            status=BAD_REQUEST if names else status,
            param="model",
            code="missing_required_parameter",
        )

    async def names(self) -> list[str]:
        """The names of all models that are ready and can be served, those with adapters included."""
        models = [name for name in self._ready_names() if self._can_serve(name)]
        return [name for model in models for name in (model, *await self._adapter_models(model))]

    async def context_length(self, name: str) -> int:
        """The number of tokens that the model which *name* selects takes; 0 if unknown."""
        try:
            metadata, _ = self.find(name)
        except ApiError:
            return 0  # unloaded since the index was read
        return await self._context(metadata.name, metadata.versions[-1]) if metadata.versions else 0

    async def is_known(self, name: str) -> bool:
        if self._can_serve(name):
            return True
        for model, _ in self._split_adapter(name):
            if self._can_serve(model) and name in await self._adapter_models(model):
                return True
        return False

    def _ready_names(self) -> list[str]:
        index = self._engine.ready_index()
        found = {(entry.name, model_key(entry.namespace, entry.name)) for entry in index}
        keys = Counter(name for name, _ in found)  # equal names in several namespaces need their full key
        return sorted(name if keys[name] == 1 else key for name, key in found)

    async def _adapter_models(self, model: str) -> list[str]:
        """The names that select a model with one of its adapters."""
        if not self._separator:
            return []
        try:
            version = self._engine.model_metadata(model).versions[-1]
        except (NaiadError, IndexError):
            return []  # unloaded since the index was read
        return [f"{model}{self._separator}{name}" for name in await self._adapters(model, version)]

    def _can_serve(self, name: str) -> bool:
        return self._is(name, lambda metadata: can_generate_text(metadata) or can_embed(metadata))

    def _is(self, name: str, can: Callable[[ModelMetadata], bool]) -> bool:
        try:
            return can(self._engine.model_metadata(name))
        except NaiadError:
            return False  # unloaded since the index was read

    def _split_adapter(self, name: str) -> Iterator[tuple[str, str]]:
        """All splits of *name* into model and adapter, the longest model first: either may contain the separator."""
        end = len(name)
        while self._separator and (end := name.rfind(self._separator, 0, end)) >= 0:
            model, adapter = name[:end], name[end + len(self._separator) :]
            if model and adapter:
                yield model, adapter
