"""Arrays of libraries as the tensors that the configuration says."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from saved_models.settings import TensorSettings


def fitted(array: np.ndarray[Any, Any], tensor: TensorSettings, *, is_batching: bool) -> np.ndarray[Any, Any]:
    """The array with the type of an output, and with a dimension of 1 where one value for each row lacks it."""
    array = array.astype(pb_utils.triton_string_to_numpy(tensor.data_type), copy=False)
    if array.ndim == len(tensor.dims) + is_batching - 1:
        array = array[..., np.newaxis]
    return array
