"""The engine as frontends see it: plain values in, plain values out.

This interface is narrow on purpose: the host could be split into several processes here. Everything is called on the
event loop's thread; methods that may take long are coroutines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from naiad.protocol.inference import Buffer, InferRequest, Sink, SubmittedRequest
from naiad.protocol.metadata import IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata
from naiad.protocol.model_names import LATEST


class EngineFacade(Protocol):
    """What frontends can do with the engine. Every method raises `NaiadError` with the reference's message."""

    def server_metadata(self) -> ServerMetadata: ...

    def is_started(self) -> bool:
        """Whether the models to load at the start are loaded, or failed to."""

    def is_live(self) -> bool:
        """Whether the server runs, which it does while its models load, and is not exiting."""

    def is_ready(self) -> bool: ...

    async def check_server_ready(self) -> bool:
        """As `is_ready`; with strict readiness, models with a method `is_ready` must also report that they are."""

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        """As `is_model_ready`; a model with a method `is_ready` must also report that it is, within five seconds."""

    def stalls(self, name: str, version: int = LATEST) -> str:
        """Which instances of the version make no progress, as a sentence; empty for none, or without such a version."""

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether the version can infer now; raises `UnknownModelError` for a model that does not exist."""

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Inputs and outputs; its *versions* are all versions, or the requested one if *version* is given."""

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        """The effective configuration as the reference prints it (int64 as numbers, defaults present)."""

    async def gather_counts(self) -> None:
        """Bring `statistics` up to date, where several processes count requests."""

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        """Statistics of one version, of all versions of a model, or (no name) of all models."""

    def ready_index(self) -> Sequence[IndexEntry]:
        """The versions of models that are ready."""

    async def repository_index(self) -> Sequence[IndexEntry]: ...

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> bool:
        """Load or reload a model (explicit control mode only); whether replaced instances still finish requests."""

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Start to unload a model (explicit control mode only)."""

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        """Room for the body of a request in the input segment of an instance, so that its tensors need no copy.

        Args:
            ahead: Bytes of the body before the tensors.

        Returns:
            The room, *size* bytes; None if the tensors would have to be copied anyway.
        """

    def submit(self, request: InferRequest, sink: Sink) -> SubmittedRequest:
        """Queue *request*; its responses go to *sink*, possibly before this returns.

        The request is checked against the model first. For a rejected request this raises, and the sink gets nothing.
        """

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        """Whether the model may send any number of responses to a request; raises `UnknownModelError`."""
