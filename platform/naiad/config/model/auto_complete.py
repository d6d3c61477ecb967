"""Merges the result of a model's `auto_complete_config` into its configuration.

The model returns a complete configuration. Of it, these parts are used, as in the reference: batch size, inputs,
outputs, whether the model is decoupled, and a scheduler where none was configured. The rest is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from naiad.config.model import model_config_pb2 as pb
from naiad.config.model.normalise import normalise
from naiad.config.model.text import parse_mapping
from naiad.core.errors import Code, ConfigError


def merge_auto_completed(message: pb.ModelConfig, completed: Mapping[str, Any]) -> pb.ModelConfig:
    """Return the merged configuration, normalised; `message` is not changed.

    The caller checks the result with `validate(..., with_io=True)`.
    """
    returned = parse_mapping(completed, f"auto-completed configuration of model '{message.name}'")
    result = deepcopy(message)
    result.max_batch_size = returned.max_batch_size
    del result.input[:]
    result.input.extend(returned.input)
    del result.output[:]
    result.output.extend(returned.output)
    _merge_scheduler(result, returned)
    if returned.HasField("model_transaction_policy"):
        result.model_transaction_policy.decoupled = returned.model_transaction_policy.decoupled
    normalise(result)
    return result


def _merge_scheduler(result: pb.ModelConfig, returned: pb.ModelConfig) -> None:
    configured, wanted = result.WhichOneof("scheduling_choice"), returned.WhichOneof("scheduling_choice")
    if configured is None:
        if wanted is not None:
            getattr(result, wanted).CopyFrom(getattr(returned, wanted))
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
