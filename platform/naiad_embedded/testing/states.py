"""Implicit state (`sequence_batching.state`) of a model under test, kept between the requests of a sequence.

Initial values, what is kept of a response and what the client sees of it follow the server's code and rules. So does
the start of a sequence: a request needs a correlation id, and the first one START.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from naiad_stub.tensor import Tensor

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import InvalidRequestError
from naiad.engine.scheduling.sequences.states import SequenceState
from naiad.engine.serving.compile_plan import state_outputs
from naiad.engine.serving.sequence_states import read_states
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import SEQUENCE_END, SEQUENCE_START, InputTensor, OutputTensor
from naiad_embedded.testing.values import Request, Response


class SequenceStates:
    """The states of the sequences of one model."""

    def __init__(self, config: ModelConfig, model_dir: Path) -> None:
        self._states = read_states(config, model_dir)
        self._model = config.name
        self._is_iterative = config.message.sequence_batching.iterative_sequence
        self._sequences: dict[int | str, SequenceState] = {}
        self.outputs = tuple(state_outputs(config))
        self._hidden = frozenset(self.outputs) - {tensor.name for tensor in config.outputs}
        self._decoupled = config.decoupled

    def state_of(self, request: Request) -> RequestState | None:
        """What is kept for a request's sequence; None for a model without states."""
        if not self._states:
            return None
        correlation_id = request.correlation_id
        if not correlation_id and not self._is_iterative:
            raise InvalidRequestError(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        state = self._sequences.get(correlation_id)
        if request.flags & SEQUENCE_START or not correlation_id:
            state = SequenceState(self._states)
        elif state is None:
            raise InvalidRequestError(
                f"inference request for sequence {correlation_id} to model '{self._model}' must specify the START flag "
                "on the first request of the sequence"
            )
        if request.flags & SEQUENCE_END:
            self._sequences.pop(correlation_id, None)
        elif correlation_id:
            self._sequences[correlation_id] = state
        return RequestState(state, request, frozenset(self.outputs), self._hidden, self._decoupled)


@dataclass(slots=True, eq=False)
class RequestState:
    """The state of one request's sequence."""

    _state: SequenceState
    _request: Request
    _outputs: frozenset[str]
    _hidden: frozenset[str]
    _decoupled: bool

    def tensors(self) -> list[Tensor]:
        """The inputs that the model gets besides the client's."""
        return [received_input(tensor) for tensor in self._state.inputs]

    def take(self, response: Response) -> Response | None:
        """Keep the states of a response; what the client gets of it; None if a decoupled model sent nothing else."""
        found = {name: tensor for name, tensor in response.tensors.items() if name in self._outputs}
        self._state.update(_output(name, tensor) for name, tensor in found.items())
        requested = self._request.requested_outputs
        unseen = self._hidden | {name for name in found if requested and name not in requested}
        for name in unseen & found.keys():
            del response.tensors[name]
        is_nothing = found and not response.tensors and not response.parameters
        return None if is_nothing and self._decoupled else response


def received_input(tensor: InputTensor) -> Tensor:
    """A tensor that the server adds to a request, as the model gets it: it may write to it."""
    return Tensor._received(tensor.name, tensor.datatype, tensor.shape, memoryview(bytearray(tensor.data)))  # noqa: SLF001 - how the guest makes them


def _output(name: str, tensor: Tensor) -> OutputTensor:
    code, shape, data, _ = tensor._payload()  # noqa: SLF001 - how the guest reads it, too
    return OutputTensor(name, Datatype(code), tuple(shape), bytes(data))
