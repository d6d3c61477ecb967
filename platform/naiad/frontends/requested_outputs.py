"""What a request asks for beside its model's outputs: classes in place of values, and tensors in shared memory.

Texts and forms: SRV src/classification.cc, docs/protocol/extension_classification.md, extension_shared_memory.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from naiad.core.errors import InvalidRequestError
from naiad.frontends.regions import WRITTEN_AT_ONCE, RegionPart
from naiad.frontends.request_budget import Charge
from naiad.protocol.datatypes import Datatype
from naiad.protocol.device_bytes import DeviceUse
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor
from naiad.protocol.metadata import ModelMetadata
from naiad.protocol.steps import finish

if TYPE_CHECKING:
    import numpy as np

_CLASSIFIABLE = frozenset({Datatype.FP32, Datatype.FP64}) | {
    datatype for datatype in Datatype if datatype.name.startswith(("INT", "UINT"))
}
_MAX_ELEMENTS = 1_000_000  # largest output that is sorted
_LONG_OUTPUT = 64 << 10  # bytes of an output from which its classes take longer than some milliseconds
_TEXTS_PER_STEP = 2000  # classes made in one step of a millisecond; other work is counted in classes, too
_ROW_COST = 10
_SELECTED_FROM = 4096  # elements from which the greatest ones are selected before they are sorted


@dataclass(slots=True)
class RequestedOutputs:
    """The special forms that one request asks for. An object without any is false."""

    classes: dict[str, int] = field(default_factory=dict)  # how many to return in place of values, by output
    regions: dict[str, RegionPart] = field(default_factory=dict)  # where outputs are written, by name
    has_region_inputs: bool = False  # inputs are in regions: their data is a `RegionPart` as yet
    read: list[RegionPart] = field(default_factory=list)  # of inputs, in use until the request ends
    charge: Charge | None = None
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of classes, by output
    is_batched: bool = False  # whether the first dimension of each output is the batch

    def __bool__(self) -> bool:
        return bool(self.classes or self.regions or self.has_region_inputs)

    def __del__(self) -> None:
        # The regions' parts do it themselves; in an offload process there are placeholders of them instead.
        if self.charge is not None:
            self.charge.release()

    def release(self) -> None:
        """The last response is ready to be sent, or none will be: nothing of it uses a region any more."""
        for part in (*self.regions.values(), *self.read):
            part.release()
        if self.charge is not None:
            self.charge.release()

    def prepare(self, request: InferRequest, metadata: ModelMetadata, config: Mapping[str, Any]) -> None:
        """Read labels and batching from the model, and have its guests write outputs that go to GPU memory."""
        places = {name: part.device_bytes() for name, part in self.regions.items() if part.is_on_device}
        if places:
            request.device = request.device or DeviceUse()
            request.device.places = places
        self.labels = {tensor.name: tensor.labels for tensor in metadata.outputs}
        self.is_batched = config.get("max_batch_size", 0) > 0

    def apply(self, response: InferResponse) -> InferResponse:
        """The response in the requested forms. Outputs written to shared memory keep no data in it."""
        return finish(self.apply_steps(response))

    def apply_steps(self, response: InferResponse) -> Generator[None, None, InferResponse]:
        """As `apply`, in steps of a few milliseconds."""
        outputs = []
        for tensor in response.outputs:
            output = yield from self._apply_to(tensor)
            outputs.append(output)
        return replace(response, outputs=outputs, layout=None)

    def is_long(self, response: InferResponse) -> bool:
        """Whether `apply` would take long: classes of long outputs are requested, or long outputs in regions."""
        return any(self.is_long_output(tensor) for tensor in response.outputs)

    def is_long_output(self, tensor: OutputTensor) -> bool:
        """Whether bringing one output into its form would take long."""
        size = len(tensor.data)
        if tensor.name in self.regions:
            return size > WRITTEN_AT_ONCE and not self.regions[tensor.name].is_on_device
        return size >= _LONG_OUTPUT and tensor.name in self.classes

    def _apply_to(self, tensor: OutputTensor) -> Generator[None, None, OutputTensor]:
        count = self.classes.get(tensor.name, 0)
        if count:
            labels = self.labels.get(tensor.name, ())
            return (yield from classify_steps(tensor, count, labels, is_batched=self.is_batched))
        region = self.regions.get(tensor.name)
        if region is None:
            return tensor
        yield from region.write_steps(tensor.name, tensor.data)
        return OutputTensor(tensor.name, tensor.datatype, tensor.shape, b"")


def classify_steps(
    tensor: OutputTensor, count: int, labels: Sequence[str], *, is_batched: bool
) -> Generator[None, None, OutputTensor]:
    """The *count* greatest elements of each batch item as strings `<value>:<index>[:<label>]`, greatest first."""
    if tensor.datatype not in _CLASSIFIABLE:
        raise InvalidRequestError(
            f"class result not available for output due to unsupported type '{tensor.datatype.name}'"
        )
    shape = tensor.shape
    items = shape[0] if is_batched and shape else 1
    length = prod(shape[1:] if is_batched else shape)
    if items * length > _MAX_ELEMENTS:
        raise InvalidRequestError(
            f"classification of output '{tensor.name}' is limited to {_MAX_ELEMENTS} elements; it has {items * length}"
        )
    import numpy as np  # imported late: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    values = np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).reshape(items, length)
    count = min(count, length)
    parts = []
    done = 0
    for row in values:
        order = _top_classes(row, count)
        done += _ROW_COST + (length >> 6)
        for start in range(0, count, _TEXTS_PER_STEP):
            if done >= _TEXTS_PER_STEP:
                yield
                done = 0
            indices = order[start : start + _TEXTS_PER_STEP]
            parts.append(_class_texts(row, indices, labels))
            done += len(indices)
    data = b"".join(parts)
    return OutputTensor(tensor.name, Datatype.BYTES, (items, count) if is_batched else (count,), data)


def _top_classes(
    row: np.ndarray[tuple[int], np.dtype[np.generic]], count: int
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The indices of the *count* greatest elements, greatest first."""
    import numpy as np  # imported late: see `protocol.numpy_types`

    if len(row) < _SELECTED_FROM or count > len(row) // 8:
        return _descending(row)[:count]
    # Selecting the greatest elements takes a tenth of the time of sorting all. NaN counts as greater than all others.
    least = np.partition(row, len(row) - count)[len(row) - count]
    greatest = np.flatnonzero(np.isnan(row) if np.isnan(least) else ~(row < least))
    return greatest[_descending(row[greatest])[:count]]


def _descending(row: np.ndarray[tuple[int], np.dtype[np.generic]]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    # numpy sorts ascending only. Reversing the row before a stable sort and the order after it gives descending values,
    # equal elements by ascending index, and NaN first.
    order: np.ndarray[tuple[int], np.dtype[np.intp]] = len(row) - 1 - row[::-1].argsort(kind="stable")[::-1]
    return order


def _class_texts(
    row: np.ndarray[tuple[int], np.dtype[np.generic]],
    indices: np.ndarray[tuple[int], np.dtype[np.intp]],
    labels: Sequence[str],
) -> bytes:
    """Some classes as elements of a BYTES tensor."""
    parts: list[bytes] = []
    for index, value in zip(indices.tolist(), row[indices].tolist(), strict=True):
        text = f"{value:.6f}:{index}" if isinstance(value, float) else f"{value}:{index}"
        data = (f"{text}:{labels[index]}" if index < len(labels) else text).encode()
        parts += (len(data).to_bytes(4, "little"), data)
    return b"".join(parts)
