"""Tensors of requests as tensors of PyTorch, over the same memory, and back."""

from __future__ import annotations

from typing import Any, Dict, Sequence

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

DATA_TYPES: Dict[torch.dtype, str] = {
    torch.bfloat16: "TYPE_BF16",
    **{
        getattr(torch, np.dtype(kind).name): name
        for name, kind in pb_utils.TRITON_STRING_TO_NUMPY.items()
        if name != "TYPE_STRING"
    },
}  # the protocol's types for those of PyTorch
TORCH_TYPES: Dict[str, torch.dtype] = {name: dtype for dtype, name in DATA_TYPES.items()}

_BYTES, _BF16 = 13, 14  # numbers of these types in the protocol


class TorchTensors:
    """How a `BatchRunner` reads, joins and writes tensors of PyTorch. Strings are arrays of numpy until the call."""

    def read(self, tensor: Any) -> Any:
        """The input over the memory of the request, on the device where that is."""
        code = tensor.triton_dtype()
        if code == _BF16 or not tensor.is_cpu():
            return torch.from_dlpack(tensor)
        array = tensor.as_numpy()
        if code == _BYTES:
            return array
        # PyTorch has no tensors that cannot be written to, and warns of memory that must not be.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def join(self, tensors: Sequence[Any]) -> Any:
        """One tensor of the rows of all, on the first one's device that is none of the CPU's."""
        if isinstance(tensors[0], np.ndarray):
            return np.concatenate(tensors)
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            target = next(tensor.device for tensor in tensors if tensor.device.type != "cpu")
            tensors = [tensor.to(target) for tensor in tensors]
        return torch.cat(list(tensors))

    def take(self, array: np.ndarray[Any, Any]) -> Any:
        return torch.from_numpy(array)

    def write(self, name: str, value: Any) -> Any:
        """The output over the memory of the result."""
        if isinstance(value, np.ndarray):
            return pb_utils.Tensor(name, value)
        if value.device.type != "cpu" or value.dtype == torch.bfloat16:
            return pb_utils.Tensor.from_dlpack(name, value.contiguous())
        return pb_utils.Tensor(name, value.numpy())


def array_of_strings(values: Sequence[str]) -> np.ndarray[Any, Any]:
    """A list of strings as the array of a tensor."""
    found: np.ndarray[Any, Any] = np.empty(len(values), np.object_)
    found[:] = list(values)
    return found


def settle(value: torch.Tensor) -> torch.Tensor:
    """A result without ties to the graph, and without a sign that only PyTorch sees."""
    if value.requires_grad:
        value = value.detach()
    return value.resolve_neg() if value.is_neg() else value
