"""Tensors of the model's API as raw bytes and back, without copies.

The methods used here are private to the product, which this backend is part of: the public `as_numpy` would decode and
encode each element of BYTES, and numpy has no BF16.
"""

from __future__ import annotations

from typing import Any, List

import triton_python_backend_utils as pb_utils

from naiad_remote.wire import CODES, DATATYPES, WireTensor


def to_wire(tensor: Any) -> WireTensor:
    """A tensor of a request. Its bytes are those of the server's memory while the result refers to them."""
    code, shape, data, _ = tensor._payload()  # noqa: SLF001 - see the module
    return WireTensor(tensor.name(), DATATYPES[code], tuple(shape), [data])


def from_wire(tensors: List[WireTensor]) -> Any:
    """The tensors of a response."""
    return [
        pb_utils.Tensor._received(  # noqa: SLF001 - see the module
            tensor.name, CODES[tensor.datatype], tensor.shape, tensor.parts[0]
        )
        for tensor in tensors
    ]
