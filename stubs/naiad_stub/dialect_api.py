"""`triton_python_backend.api`, the names that older tutorials use; see `naiad_stub.dialect`.

New code says `import triton_python_backend_utils as pb_utils`.
"""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Mapping
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from naiad_stub import tensor
from naiad_stub.dialect import responses_of
from naiad_stub.exceptions import TritonError, TritonModelException
from naiad_stub.logger import Logger
from naiad_stub.request import InferenceRequest
from naiad_stub.response import InferenceResponse

__all__ = [
    "DataType",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "infer",
]


class DataType(enum.IntEnum):
    """Datatypes, numbered as in a model's configuration and under every name that is in use."""

    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    STRING = 13
    BF16 = 14
    FLOAT16 = 10
    FLOAT32 = 11
    FLOAT64 = 12
    BYTES = 13
    TYPE_BOOL = 1
    TYPE_UINT8 = 2
    TYPE_UINT16 = 3
    TYPE_UINT32 = 4
    TYPE_UINT64 = 5
    TYPE_INT8 = 6
    TYPE_INT16 = 7
    TYPE_INT32 = 8
    TYPE_INT64 = 9
    TYPE_FP16 = 10
    TYPE_FP32 = 11
    TYPE_FP64 = 12
    TYPE_STRING = 13
    TYPE_BF16 = 14


_NUMPY: Tuple[Any, ...] = (
    None,
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    np.object_,
)
"""By number of the datatype."""


class Tensor(tensor.Tensor):
    """A named array, made as older tutorials do; every Tensor has the same methods.

    Args:
        name: The name in the model's configuration.
        data: An array, or what numpy makes one of; text is sent as UTF-8.
        dtype: Convert the data to this: one of DataType, or a type of numpy.
        shape: Give the data this shape.
    """

    __slots__ = ()

    def __init__(
        self, name: str, data: Any = None, dtype: Any = None, shape: Optional[Sequence[int]] = None, **other: Any
    ) -> None:
        dtype = other.pop("datatype", other.pop("data_type", dtype))
        data = other.pop("array", data)
        if other:
            raise TypeError(f"Tensor has no argument '{next(iter(other))}': it takes name, data, dtype and shape")
        if data is None:
            raise TypeError(f"Tensor '{name}' is made without data")
        array = _array(data, dtype)
        super().__init__(name, array if shape is None else array.reshape(tuple(shape)))


def _array(data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """The array of *data*, converted to *dtype* if that is given, with its text as bytes."""
    if isinstance(data, tensor.Tensor):
        data = data.as_numpy()
    array: np.ndarray[Any, Any] = np.asarray(data)
    if dtype is not None:
        array = array.astype(_numpy_type(dtype))
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8").astype(np.object_)
    return array


def _numpy_type(dtype: Any) -> Any:
    """The numpy type of *dtype*."""
    if not isinstance(dtype, DataType):
        return dtype
    if dtype is DataType.BF16:
        raise TritonModelException("numpy has no BF16: make such a tensor with pb_utils.Tensor.from_dlpack")
    return _NUMPY[dtype]


class Outputs(List[tensor.Tensor]):
    """The outputs of another model: a list of tensors, also reached by their names."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for output in self:
            if output.name() == key:
                return output
        raise KeyError(f"no output '{key}'; there are: {', '.join(output.name() for output in self) or 'none'}")

    def as_numpy(self, name: str) -> np.ndarray[Any, Any]:
        """The array of the output with that name."""
        array: np.ndarray[Any, Any] = self[name].as_numpy()
        return array

    @property
    def outputs(self) -> Outputs:
        """The list itself, for scripts that expect a response."""
        return self

    def output_tensors(self) -> List[tensor.Tensor]:
        """The list itself, for scripts that expect a response."""
        return self


def infer(
    model_name: str,
    inputs: Union[Sequence[tensor.Tensor], Mapping[str, Any]],
    requested_outputs: Sequence[str] = (),
    model_version: int = -1,
) -> Outputs:
    """Run another model of the server and return its outputs.

    Args:
        model_name: The model.
        inputs: Tensors, or arrays by name.
        requested_outputs: Names of the outputs to answer with; all of them unless given.
        model_version: Its version; -1 for the one its policy names.

    Raises:
        TritonModelException: With the other model's error.
    """
    if isinstance(inputs, Mapping):
        inputs = [Tensor(name, data) for name, data in inputs.items()]
    request = InferenceRequest(
        model_name=model_name,
        model_version=model_version,
        inputs=list(inputs),
        requested_output_names=list(requested_outputs),
    )
    response = request.exec()
    if response.has_error():
        raise TritonModelException(response.error().message())
    return Outputs(response.output_tensors())


def adapt(model_class: Any) -> Any:
    """The class, whose `execute` returns responses in place of lists of tensors."""
    run = getattr(model_class, "execute", None)
    if run is None:
        return model_class
    if inspect.iscoroutinefunction(run):

        @functools.wraps(run)
        async def execute(self: Any, requests: Any) -> Any:
            return responses_of(await run(self, requests), requests)
    else:

        @functools.wraps(run)
        def execute(self: Any, requests: Any) -> Any:
            return responses_of(run(self, requests), requests)

    model_class.execute = execute
    return model_class
