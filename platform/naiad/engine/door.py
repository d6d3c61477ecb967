"""The engine as frontends see it: plain values in, plain values out.

Keep this door narrow: it is where the host can later be split into several processes. Everything here is called on
the event loop's thread; what may take long is a coroutine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from naiad.protocol.inference import InferRequest, Sink
from naiad.protocol.metadata import IndexEntry, ModelMetadata, ModelStatistics, ServerMetadata
from naiad.protocol.model_names import LATEST


class EngineDoor(Protocol):
    """What a frontend may ask of the engine. Every method raises `NaiadError` with the reference's message."""

    def server_metadata(self) -> ServerMetadata:
        """Name, version and extensions."""

    def is_live(self) -> bool:
        """Whether the server has started and not begun to exit."""

    def is_ready(self) -> bool:
        """Whether the server takes requests, and (strict readiness) every model with it."""

    async def check_server_ready(self) -> bool:
        """As `is_ready`; with strict readiness, every model that can is asked whether it is ready, too."""

    async def check_ready(self, name: str, version: int = LATEST) -> bool:
        """As `is_model_ready`; a model that can is asked whether it is ready, too, for at most five seconds."""

    def is_model_ready(self, name: str, version: int = LATEST) -> bool:
        """Whether the version can infer now; raises `UnknownModelError` for a model that does not exist."""

    def model_metadata(self, name: str, version: int = LATEST) -> ModelMetadata:
        """Inputs and outputs; *versions* holds only the asked version where one is given."""

    def model_config(self, name: str, version: int = LATEST) -> Mapping[str, Any]:
        """The effective configuration as the reference prints it (int64 as numbers, defaults present)."""

    def statistics(self, name: str = "", version: int = LATEST) -> Sequence[ModelStatistics]:
        """Statistics of one version, of all versions of a model, or (no name) of all models."""

    def ready_index(self) -> Sequence[IndexEntry]:
        """The versions of models that are ready."""

    async def repository_index(self) -> Sequence[IndexEntry]:
        """All models of the repositories with their states."""

    async def load(self, name: str, parameters: Mapping[str, str | bytes]) -> None:
        """Load or reload a model (explicit control mode only)."""

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model (explicit control mode only)."""

    def reserve_input(self, name: str, version: int, size: int, ahead: int) -> memoryview | None:
        """Where the body of a request may be read to, so that it need not be copied there for the model.

        Args:
            name: The model that it asks.
            version: Its version.
            size: Bytes of the body.
            ahead: How many of them come before the tensors.

        Returns:
            None where it makes no difference.
        """

    def submit(self, request: InferRequest, sink: Sink) -> int:
        """Queue *request*; its responses go to *sink*, possibly before this returns.

        Checks the request against the model first. A request that is refused raises and never reaches the sink.

        Returns:
            A ticket for `cancel`.
        """

    def cancel(self, ticket: int) -> None:
        """Take a request back: dropped if it still waits, else the model may notice. Unknown tickets are ignored."""

    def confirm_sent(self, ticket: int, count: int = 1) -> None:
        """Say that *count* responses have left for the client (their bytes are in the system's hands).

        Only needed where a request may have many responses: the model is held back while too many wait. Unknown
        tickets are ignored.
        """

    def is_decoupled(self, name: str, version: int = LATEST) -> bool:
        """Whether the model may answer a request any number of times; raises `UnknownModelError`."""
