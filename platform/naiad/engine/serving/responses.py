"""What is done to a model's response before its client gets it.

Only models that are decoupled, reshape outputs or keep states of sequences need this; for all others a response goes
from the guest to the sink as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.core import clock
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.engine.serving.reshape import OutputReshape
from naiad.engine.serving.sequence_states import StateOutputs
from naiad.engine.statistics.counters import Statistics
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferResponse


class ResponsePreparation:
    """Prepares the responses of one model version."""

    def __init__(self, config: ModelConfig, states: Sequence[StateTensor], statistics: Statistics) -> None:
        self._statistics = statistics
        self._is_decoupled = config.decoupled
        self._reshape = OutputReshape(config)
        self._states = StateOutputs(config, states) if states else None
        self.is_needed = config.decoupled or self._reshape.is_needed or bool(states)

    def prepare(self, worker: Worker, pending: OpenRequest, response: InferResponse) -> InferResponse | None:
        """What the client of *pending* gets for a response that *worker* sent; None if nothing is left of it."""
        if self._states is not None and response.outputs and not self._states.keep(pending, response):
            worker.credit(pending.key, 1)  # the client gets nothing that it could confirm
            return None
        if self._is_decoupled:
            if pending.unsent is None:
                self._statistics.on_first_response(clock.monotonic_ns() - pending.queued)
            pending.on_response_queued(response)
        if self._reshape.is_needed and response.outputs:
            self._reshape.apply(response)
        return response
