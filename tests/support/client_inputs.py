"""Inputs of requests by the modules of tritonclient, which are alike for both protocols."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype


def input_of(api: Any, name: str, array: np.ndarray, **options: bool) -> Any:
    """An input with the elements, the shape and the type of an array; *api* is `tritonclient.http` or `.grpc`."""
    tensor = api.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, **options)
    return tensor
