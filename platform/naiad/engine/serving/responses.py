"""What is done to a model's response before its client gets it.

Only models that are decoupled, reshape outputs or keep states of sequences need this; for all others a response goes
from the guest to the sink as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from naiad.config.model.model_config import ModelConfig
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.engine.serving.pending import PendingRequest
from naiad.engine.serving.reshape import OutputReshape
from naiad.engine.serving.sequence_states import StateOutputs
from naiad.engine.statistics.counters import Statistics
from naiad.engine.statistics.response_times import ResponseProgress, ResponseTimes
from naiad.guests.worker import Worker
from naiad.protocol.inference import InferResponse

__all__ = ["ResponsePreparation"]


class ResponsePreparation:
    """Prepares the responses of one model version.

    Attributes:
        is_needed: Whether there is anything to do for this model.
    """

    def __init__(self, config: ModelConfig, states: Sequence[StateTensor], statistics: Statistics) -> None:
        self._statistics = statistics
        self._times = statistics.responses = ResponseTimes() if config.decoupled else None
        self._reshape = OutputReshape(config)
        self._states = StateOutputs(config, states) if states else None
        self.is_needed = config.decoupled or self._reshape.is_needed or bool(states)

    def prepare(
        self, worker: Worker, pending: PendingRequest, response: InferResponse | None, started: int, sent: int
    ) -> InferResponse | None:
        """What the client of *pending* gets for a response, or for the end of a request without one.

        Args:
            worker: The guest that sent it.
            pending: The request.
            response: The response; None for an end without one.
            started: When `execute` began (monotonic ns).
            sent: When the guest sent it (monotonic ns).

        Returns:
            The response; None if nothing is left of it.
        """
        if response is None:
            if self._times is not None:
                progress = pending.progress or ResponseProgress(started)
                self._times.on_end(progress, sent, is_cancelled=pending.is_cancelled)
            return None
        if self._states is not None and response.outputs and not self._states.keep(pending, response):
            worker.credit(pending.key, 1)  # the client gets nothing that it could confirm
            return None
        if self._times is not None:
            pending_progress, now = pending.progress, time.monotonic_ns()
            if pending_progress is None:
                pending_progress = ResponseProgress(started)
                self._statistics.on_first_response(now - pending.queued)
            self._times.on_response(pending_progress, response, sent, now)
            pending.on_response_queued(response, pending_progress)
        if self._reshape.is_needed and response.outputs:
            self._reshape.apply(response)
        return response
