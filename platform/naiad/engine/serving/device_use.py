"""Whether the guests of a version may get and send tensors in GPU memory."""

from __future__ import annotations

from naiad.config.model.model_config import ModelConfig
from naiad.protocol.inference import DEVICE_INPUTS, DEVICE_OUTPUTS


def device_use(config: ModelConfig, *, is_native: bool) -> int:
    """See `Target.device`.

    Nothing stays in GPU memory where the server itself needs the bytes: for the response cache, and for the states of
    sequences. Native backends get all tensors on the CPU.
    """
    message = config.message
    if is_native or message.response_cache.enable or message.HasField("sequence_batching"):
        return 0
    return DEVICE_OUTPUTS | (DEVICE_INPUTS if config.settings.takes_device_inputs else 0)
