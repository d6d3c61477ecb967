"""The engine as the listeners of the coordinator have it, beside other processes that serve the same models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from naiad.engine.engine import Engine
from naiad.protocol.inference import Buffer, InferRequest, Sink, SubmittedRequest


class CoordinatorFacade:
    """Implements `naiad.engine.facade.EngineFacade`: that of the engine, where other processes know of each change."""

    def __init__(self, engine: Engine, wait_sent: Callable[[], Awaitable[None]]) -> None:
        """*wait_sent* waits until other processes can know what they were told."""
        self.received_count = 0  # requests that came by it
        self._engine = engine
        self._wait_sent = wait_sent
        self._submit = engine.submit
        self.server_metadata = engine.server_metadata
        self.is_started = engine.is_started
        self.is_live = engine.is_live
        self.is_ready = engine.is_ready
        self.check_server_ready = engine.check_server_ready
        self.check_ready = engine.check_ready
        self.stalls = engine.stalls
        self.is_model_ready = engine.is_model_ready
        self.model_metadata = engine.model_metadata
        self.model_config = engine.model_config
        self.gather_counts = engine.gather_counts
        self.statistics = engine.statistics
        self.ready_index = engine.ready_index
        self.repository_index = engine.repository_index
        self.reserve_input = engine.reserve_input
        self.is_decoupled = engine.is_decoupled

    def submit(self, request: InferRequest, sink: Sink) -> SubmittedRequest:
        self.received_count += 1
        return self._submit(request, sink)

    async def load(self, name: str, parameters: Mapping[str, str | Buffer]) -> bool:
        """Load a model; its routes are known everywhere then."""
        is_finishing = await self._engine.load(name, parameters)
        await self._wait_sent()
        return is_finishing

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; that is known everywhere then."""
        await self._engine.unload(name, unload_dependents=unload_dependents)
        await self._wait_sent()
