"""Outputs that a client wants in another form: as their top classes, or written to its shared memory.

Texts and forms: SRV src/classification.cc, docs/protocol/extension_classification.md, extension_shared_memory.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from naiad.errors import InvalidRequestError
from naiad.frontends.regions import OutputRegion
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import ModelMetadata

if TYPE_CHECKING:
    import numpy as np

_CLASSIFIABLE = frozenset({Datatype.FP32, Datatype.FP64}) | {
    datatype for datatype in Datatype if datatype.name.startswith(("INT", "UINT"))
}
_MAX_ELEMENTS = 1_000_000
"""Largest output that is sorted. Sorting blocks the event loop: a million elements take a few tenths of a second."""


@dataclass(slots=True)
class RequestedOutputs:
    """The special forms that one request asks for, by name of the output. An object without any is false.

    Attributes:
        classes: Number of classes to return instead of the values.
        regions: Where to write the output instead of sending it.
        labels: Class names of the outputs that have a label file.
        is_batched: Whether the first dimension of each output is the batch.
    """

    classes: dict[str, int] = field(default_factory=dict)
    regions: dict[str, OutputRegion] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_batched: bool = False

    def __bool__(self) -> bool:
        return bool(self.classes or self.regions)

    def set_model(self, metadata: ModelMetadata, config: Mapping[str, Any]) -> None:
        """Read labels and batching from the model, which the request alone does not tell."""
        self.labels = {tensor.name: tensor.labels for tensor in metadata.outputs}
        self.is_batched = config.get("max_batch_size", 0) > 0

    def apply(self, response: InferResponse) -> InferResponse:
        """The response in the requested forms. Outputs written to shared memory keep no data in it.

        Raises:
            NaiadError: If an output has no classes, or does not fit into its region.
        """
        outputs = [self._apply_to(tensor) for tensor in response.outputs]
        return replace(response, outputs=outputs, layout=None)

    def _apply_to(self, tensor: OutputTensor) -> OutputTensor:
        count = self.classes.get(tensor.name, 0)
        if count:
            return classify(tensor, count, self.labels.get(tensor.name, ()), is_batched=self.is_batched)
        region = self.regions.get(tensor.name)
        if region is None:
            return tensor
        region.write(tensor.name, tensor.data)
        return OutputTensor(tensor.name, tensor.datatype, tensor.shape, b"")


def classify(tensor: OutputTensor, count: int, labels: Sequence[str], *, is_batched: bool) -> OutputTensor:
    """The *count* greatest elements of each batch item as strings `<value>:<index>[:<label>]`, greatest first.

    Raises:
        InvalidRequestError: If the elements are not numbers, or too many to sort.
    """
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
    texts = [text for row in values for text in _top_classes(row, count, labels)]
    data = b"".join([len(text).to_bytes(4, "little") + text for text in texts])
    return OutputTensor(tensor.name, Datatype.BYTES, (items, count) if is_batched else (count,), data)


def _top_classes(row: np.ndarray[tuple[int], np.dtype[np.generic]], count: int, labels: Sequence[str]) -> list[bytes]:
    # numpy sorts ascending only. Reversing the row before a stable sort and the order after it gives descending values,
    # equal elements by ascending index, and NaN first.
    order = len(row) - 1 - row[::-1].argsort(kind="stable")[::-1][:count]
    texts = []
    for index in order.tolist():
        value = row[index].item()
        text = f"{value:.6f}:{index}" if isinstance(value, float) else f"{value}:{index}"
        texts.append((f"{text}:{labels[index]}" if index < len(labels) else text).encode())
    return texts
