"""Tensors of requests and responses in GPU memory: which models may have them, and which outputs may be there."""

from __future__ import annotations

from collections.abc import Iterable

from naiad.config.model.model_config import ModelConfig
from naiad.core.errors import Code, ModelError
from naiad.protocol.device_bytes import DeviceUse
from naiad.protocol.inference import DEVICE_INPUTS, DEVICE_OUTPUTS, NO_PARAMETERS, InferRequest, InferResponse

_NOTHING = DeviceUse()


def device_use(config: ModelConfig, *, is_native: bool) -> int:
    """See `Target.device`.

    Nothing stays in GPU memory where the server itself needs the bytes: for the response cache, and for the states of
    sequences. Native backends get all tensors on the CPU.
    """
    message = config.message
    if is_native or message.response_cache.enable or message.HasField("sequence_batching"):
        return 0
    return DEVICE_OUTPUTS | (DEVICE_INPUTS if config.settings.takes_device_inputs else 0)


def usable_by_all(readers: Iterable[frozenset[bytes] | None]) -> frozenset[bytes] | None:
    """The GPUs whose memory all *readers* can use, without those that have not told; None if none of them has."""
    known = [gpus for gpus in readers if gpus is not None]
    return frozenset.intersection(*known) if known else None


def settle_outputs(request: InferRequest, response: InferResponse) -> None:
    """Complete a guest's response with outputs in GPU memory, or make it an error: foreign code sent it.

    The data of an output that was written to the place that the request names becomes that place.
    """
    use = request.device or _NOTHING
    for tensor in response.outputs:
        data = use.settled(tensor.name, tensor.data)
        if data is None:
            text = f"output '{tensor.name}' of model '{response.model_name}' is not where its request wants it"
            response.outputs, response.parameters = (), NO_PARAMETERS
            response.error = ModelError(text, code=Code.INTERNAL)
            return
        tensor.data = data
