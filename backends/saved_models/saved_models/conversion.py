"""Arrays of libraries as the tensors that the configuration says."""

from __future__ import annotations

from typing import Any

import numpy as np

from saved_models.settings import TensorSettings

NUMPY_TYPES = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""The type of an array for each type of the configuration."""


def fitted(array: np.ndarray[Any, Any], tensor: TensorSettings, *, is_batching: bool) -> np.ndarray[Any, Any]:
    """The array with the type of an output, and with a dimension of 1 where one value for each row lacks it."""
    array = array.astype(NUMPY_TYPES[tensor.data_type], copy=False)
    if array.ndim == len(tensor.dims) + is_batching - 1:
        array = array[..., np.newaxis]
    return array
