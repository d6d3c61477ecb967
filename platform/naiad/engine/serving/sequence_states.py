"""States of sequences: their initial values, and how new values are taken out of responses.

Texts are the reference's (CORE src/sequence_batch_scheduler/, src/sequence_state.cc). Two things differ from it: a
state without initial values begins with zeros, and invalid states are rejected when the model is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import prod
from pathlib import Path

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.model_config import ModelConfig, datatype_of
from naiad.core.errors import ConfigError
from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.sequences.states import StateTensor
from naiad.engine.serving.compile_plan import state_outputs
from naiad.engine.serving.warmup import MAX_TENSOR_BYTES, read_data_file
from naiad.protocol.datatypes import BYTE_SIZES, Datatype, zeros
from naiad.protocol.inference import InferResponse, InputTensor
from naiad.protocol.request_plan import check_strings

logger = logging.getLogger("naiad.engine")

_FOLDER = "initial_state"
_VARIABLE = -1


def read_states(config: ModelConfig, directory: Path) -> tuple[StateTensor, ...]:
    """The initial states of a model whose files are under *directory*; blocks."""
    batching = config.message.sequence_batching
    taken = {tensor.name for tensor in config.inputs} | {control.name for control in batching.control_input}
    found: dict[str, StateTensor] = {}
    initialised: set[str] = set()
    for state in batching.state:
        _check(config, state, taken, initialised)
        twice = "input_name" if state.input_name in {each.initial.name for each in found.values()} else ""
        twice = "output_name" if state.output_name in found else twice
        if twice:
            logger.warning(
                "Detected duplicate '%s' in the state configuration of model '%s': '%s'. This state configuration "
                "will be ignored.",
                twice,
                config.name,
                getattr(state, twice),
            )
            continue
        found[state.output_name] = StateTensor(state.output_name, _initial(config, state, directory))
    return tuple(found.values())


def _check(config: ModelConfig, state: pb.ModelSequenceBatching.State, taken: set[str], initialised: set[str]) -> None:
    """Check a state without reading its file; *initialised* names the states before it with initial values."""
    for field in ("input_name", "output_name", "data_type"):
        if not getattr(state, field):
            raise ConfigError(f"sequence batching state must specify '{field}' for {config.name}")
    if state.input_name in taken:
        raise ConfigError(
            f"cannot use '{state.input_name}' as a state input of {config.name}: it is an input or a control as well; "
            "remove it there, since the server adds the state's tensor itself"
        )
    if any(dim < _VARIABLE for dim in state.dims):
        raise ConfigError(f"sequence batching state '{state.input_name}' has a negative dimension for {config.name}")
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
            f"Found '{len(state.initial_state)}' elements."
        )
    for initial in state.initial_state:
        _check_initial(state, initial, initialised)
        initialised.add(state.input_name)


def _check_initial(
    state: pb.ModelSequenceBatching.State, initial: pb.ModelSequenceBatching.InitialState, initialised: set[str]
) -> None:
    name = state.input_name
    if initial.data_type != state.data_type:
        raise ConfigError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        )
    if not initial.name:
        raise ConfigError(f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if name in initialised:
        raise ConfigError(f"State input name '{name}' specified more than once.")
    if len(initial.dims) != len(state.dims):
        raise ConfigError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for dim, allowed in zip(initial.dims, state.dims, strict=True):
        if dim < 0:
            raise ConfigError(f"'initial_state' field for state input name '{name}' contains variable dimensions.")
        if allowed not in {_VARIABLE, dim}:
            raise ConfigError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {dim} != {allowed}"
            )


def _initial(config: ModelConfig, state: pb.ModelSequenceBatching.State, directory: Path) -> InputTensor:
    """The tensor a sequence begins with; in zeros for lack of initial values, variable dimensions are 1."""
    leading = (1,) if config.max_batch_size > 0 else ()
    initial = state.initial_state[0] if state.initial_state else None
    dims = initial.dims if initial is not None else [1 if dim == _VARIABLE else dim for dim in state.dims]
    shape, datatype = leading + tuple(dims), datatype_of(state.data_type)
    kind = "zero_data" if initial is None else initial.WhichOneof("state_data")
    if kind is None:
        # The missing space is the reference's, as is the one below.
        raise ConfigError(f"initial_state setting expects state'{state.input_name}' to have state_data set")
    if initial is not None and kind == "data_file":
        path = directory / _FOLDER / initial.data_file
        content = read_data_file(path, directory, f"data_file of the initial state of '{state.input_name}'")
        data = _checked(config.name, state.input_name, datatype, shape, path, content)
    else:
        data = _zeros(state.input_name, datatype, shape)
    return InputTensor(state.input_name, datatype, shape, data)


def _checked(model: str, name: str, datatype: Datatype, shape: tuple[int, ...], path: Path, data: bytes) -> bytes:
    """The state's elements at the beginning of *data*, which was read from *path*."""
    if datatype is Datatype.BYTES:
        check_strings(name, model, data, prod(shape), f"{path}: ")
        return data
    expected = prod(shape) * BYTE_SIZES[datatype]
    if len(data) < expected:
        raise ConfigError(
            f"initial_state setting expects {expected} bytes, but the data provided from {path.name}only has "
            f"{len(data)} bytes."
        )
    return data[:expected]


def _zeros(name: str, datatype: Datatype, shape: tuple[int, ...]) -> bytes:
    # The kernel overcommits: allocating would succeed, and using it would kill the server.
    if prod(shape) * (BYTE_SIZES[datatype] or 4) > MAX_TENSOR_BYTES:
        raise ConfigError(
            f"cannot fill state '{name}' with zeros: shape {list(shape)} exceeds {MAX_TENSOR_BYTES} bytes"
        )
    return zeros(datatype, shape)


class StateOutputs:
    """Takes states out of the responses of one model."""

    def __init__(self, config: ModelConfig, states: Sequence[StateTensor]) -> None:
        self._names = frozenset(state.output_name for state in states)
        self._hidden = frozenset(state_outputs(config)) - {tensor.name for tensor in config.outputs}
        self._decoupled = config.decoupled

    def keep(self, pending: OpenRequest, response: InferResponse) -> bool:
        """Store the states in *response* for its sequence; leave only what the client gets in the response.

        Returns whether the client gets the response at all: a decoupled model may send states alone.
        """
        states = [output for output in response.outputs if output.name in self._names]
        if pending.state is not None:
            pending.state.update(states)
        requested = pending.request.requested_outputs
        outputs = [
            output
            for output in response.outputs
            if output.name not in self._hidden
            and (not requested or output.name in requested or output.name not in self._names)
        ]
        if len(outputs) == len(response.outputs):
            return True
        response.outputs = outputs
        response.layout = None  # the layout was that of all outputs
        return bool(outputs or response.parameters or not self._decoupled)
