"""What a model's `auto_complete_config` may change, and how its answer is taken over.

The model answers with a whole configuration; batch size, inputs, outputs, whether it is decoupled and a scheduler
where none was configured are honoured, everything else in the answer is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.normalise import normalise
from naiad.config.model.text import parse_mapping
from naiad.errors import Code, ConfigError

__all__ = ["merge_auto_completed"]


def merge_auto_completed(message: pb.ModelConfig, completed: Mapping[str, Any]) -> pb.ModelConfig:
    """Give the configuration that results from a model's answer, normalised; `message` stays as it is.

    What results is complete, so `validate(..., with_io=True)` is due next.

    Args:
        message: The normalised configuration the model was given.
        completed: The JSON form of the configuration the model returned.

    Raises:
        ConfigError: If the answer is no configuration or changes the scheduler that was configured.
    """
    answer = parse_mapping(completed, f"auto-completed configuration of model '{message.name}'")
    result = pb.ModelConfig()
    result.CopyFrom(message)
    result.max_batch_size = answer.max_batch_size
    del result.input[:]
    result.input.extend(answer.input)
    del result.output[:]
    result.output.extend(answer.output)
    _take_scheduler(result, answer)
    if answer.HasField("model_transaction_policy"):
        result.model_transaction_policy.decoupled = answer.model_transaction_policy.decoupled
    normalise(result)
    return result


def _take_scheduler(result: pb.ModelConfig, answer: pb.ModelConfig) -> None:
    configured, wanted = result.WhichOneof("scheduling_choice"), answer.WhichOneof("scheduling_choice")
    if configured is None:
        match wanted:
            case "dynamic_batching":
                result.dynamic_batching.CopyFrom(answer.dynamic_batching)
            case "sequence_batching":
                result.sequence_batching.CopyFrom(answer.sequence_batching)
            case "ensemble_scheduling":
                result.ensemble_scheduling.CopyFrom(answer.ensemble_scheduling)
        return
    if wanted != configured:
        # The reference prints the same number twice; the second sentence is ours and says what happened.
        number = pb.ModelConfig.DESCRIPTOR.fields_by_name[configured].number
        raise ConfigError(
            f"Cannot update scheduling choice from {number} to {number} when auto-completing. Model "
            f"'{result.name}' is configured with {configured}, and its auto_complete_config returned "
            f"{wanted or 'none'}.",
            code=Code.INTERNAL,
        )
