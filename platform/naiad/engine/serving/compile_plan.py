"""Compiles the `RequestPlan` of a version from its configuration, and names the tensors its guests exchange.

Positions in messages to guests follow `input_names` and `output_names`; the loader sends the same lists with LOAD.
"""

from __future__ import annotations

from naiad.config.model.model_config import ModelConfig
from naiad.protocol.datatypes import BYTE_SIZES
from naiad.protocol.request_plan import InputRule, OutputRule, RequestPlan


def compile_plan(config: ModelConfig, version: int, generation: int = 0) -> RequestPlan:
    """The plan for requests to one loaded version; *generation* is the number of this load among all loads."""
    batching = config.message.sequence_batching
    leading = (-1,) if config.max_batch_size > 0 else ()
    return RequestPlan(
        model_name=config.name,
        model_version=version,
        generation=generation,
        max_batch_size=config.max_batch_size,
        rules={
            tensor.name: InputRule(
                tensor.name,
                tensor.datatype,
                tensor.dims,
                BYTE_SIZES[tensor.datatype],
                has_wildcard=-1 in tensor.dims,
                is_optional=tensor.optional,
                reshape=tensor.reshape,
            )
            for tensor in config.inputs
        },
        outputs=frozenset(tensor.name for tensor in config.outputs),
        input_names=tuple(input_names(config)),
        output_names=tuple(output_names(config)),
        output_rules={
            tensor.name: OutputRule(
                tensor.datatype, leading + (tensor.dims if tensor.reshape is None else tensor.reshape)
            )
            for tensor in config.outputs
        },
        packs_inputs=not (batching.control_input or batching.state or config.message.HasField("ensemble_scheduling")),
    )


def input_names(config: ModelConfig) -> list[str]:
    """Names of all tensors that the guest may be given: inputs, controls, states and those of warm-up samples."""
    controls = [control.name for control in config.message.sequence_batching.control_input]
    inputs = [tensor.name for tensor in config.inputs]
    return [*inputs, *controls, *state_inputs(config), *warmup_only_inputs(config)]


def output_names(config: ModelConfig) -> list[str]:
    """Names of all tensors that the guest may return, states included."""
    return list(dict.fromkeys([*(tensor.name for tensor in config.outputs), *state_outputs(config)]))


def state_inputs(config: ModelConfig) -> list[str]:
    """Names of the inputs through which the guest is given states of sequences."""
    return list(dict.fromkeys(state.input_name for state in config.message.sequence_batching.state))


def state_outputs(config: ModelConfig) -> list[str]:
    """Names of the outputs through which the guest returns states of sequences."""
    return list(dict.fromkeys(state.output_name for state in config.message.sequence_batching.state))


def warmup_only_inputs(config: ModelConfig) -> list[str]:
    """Names of tensors that only warm-up samples have; the reference, too, gives them to the model."""
    known = {tensor.name for tensor in config.inputs}
    known.update(control.name for control in config.message.sequence_batching.control_input)
    known.update(state.input_name for state in config.message.sequence_batching.state)
    named = dict.fromkeys(name for message in config.message.model_warmup for name in sorted(message.inputs))
    return [name for name in named if name not in known]
