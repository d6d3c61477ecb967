"""Gives outputs with a `reshape` the shape that the configuration declares."""

from __future__ import annotations

from naiad.config.model.model_config import ModelConfig
from naiad.protocol.inference import InferResponse


class OutputReshape:
    """The reshaped outputs of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self._leading = int(config.max_batch_size > 0)
        self._outputs = {tensor.name: tensor for tensor in config.outputs if tensor.reshape is not None}
        self.is_needed = bool(self._outputs)

    def apply(self, response: InferResponse) -> None:
        """Set the declared shape of each output; variable dimensions map in order."""
        for tensor in response.outputs:
            config = self._outputs.get(tensor.name)
            if config is None:
                continue
            seen = zip(tensor.shape[self._leading :], config.reshape or (), strict=False)
            variable = iter([dim for dim, expected in seen if expected == -1])
            tensor.shape = tensor.shape[: self._leading] + tuple(
                next(variable, 1) if dim == -1 else dim for dim in config.dims
            )
