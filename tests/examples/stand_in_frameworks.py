"""As much of PyTorch, JAX and CuPy as the models of `examples/gpu` use, over the stand-in for NVIDIA's driver.

Arrays are in GPU memory, or on the CPU, as those of the frameworks; they are computed by numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from device_arrays import DeviceArray


class Array:
    """An array of any of the three."""

    def __init__(self, data: Any) -> None:
        self.data = data  # a DeviceArray, or numpy's

    def numpy(self) -> Any:
        return self.data.numpy() if isinstance(self.data, DeviceArray) else self.data

    def _with(self, values: Any) -> Array:
        values = np.asarray(values, np.float32)
        return Array(DeviceArray.of(values) if isinstance(self.data, DeviceArray) else values)

    def to(self, device: str) -> Array:
        assert device == "cuda"
        return self if isinstance(self.data, DeviceArray) else Array(DeviceArray.of(self.data))

    def mean(self, axis: int, *, keepdim: bool) -> Array:
        return self._with(self.numpy().mean(axis, keepdims=keepdim))

    def std(self, axis: int, *, keepdim: bool) -> Array:
        return self._with(self.numpy().std(axis, ddof=1, keepdims=keepdim))

    def __sub__(self, other: Array) -> Array:
        return self._with(self.numpy() - other.numpy())

    def __truediv__(self, other: Array) -> Array:
        return self._with(self.numpy() / other.numpy())

    def __mul__(self, other: Array) -> Array:
        return self._with(self.numpy() * other.numpy())

    def __add__(self, number: float) -> Array:
        return self._with(self.numpy() + number)

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.data.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()


def from_dlpack(tensor: Any) -> Array:
    kind, _ = tensor.__dlpack_device__()
    return Array(DeviceArray.from_dlpack(tensor) if kind == 2 else np.from_dlpack(tensor))


def device_put(array: Array, device: str) -> Array:
    return array.to(device)


def devices() -> list[str]:
    return ["cuda"]


def tanh(array: Array) -> Array:
    return array._with(np.tanh(array.numpy()))


def asarray(array: Any) -> Array:
    return Array(DeviceArray.of(array))


class cuda:
    @staticmethod
    def is_available() -> bool:
        return True
