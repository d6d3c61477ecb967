"""What a client may wish of single outputs: their best classes instead of their values, or to have them in its region.

Texts and forms: SRV src/classification.cc, docs/protocol/extension_classification.md, extension_shared_memory.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

from naiad.errors import InvalidRequestError
from naiad.frontends.regions import Place
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferResponse, OutputTensor
from naiad.protocol.metadata import ModelMetadata

if TYPE_CHECKING:
    import numpy as np

_CLASSES_OF = frozenset({Datatype.FP32, Datatype.FP64}) | {
    datatype for datatype in Datatype if datatype.name.startswith(("INT", "UINT"))
}
_MOST_ELEMENTS = 1_000_000


@dataclass(slots=True)
class OutputWishes:
    """The wishes of one request, by name of the output.

    Attributes:
        classes: How many classes to answer with.
        places: Where to write the output.
        labels: Names of classes, of outputs that have some.
        is_batched: Whether the first dimension of each output counts the items of a batch.
    """

    classes: dict[str, int] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    is_batched: bool = False

    def __bool__(self) -> bool:
        return bool(self.classes or self.places)

    def know_model(self, metadata: ModelMetadata, config: Mapping[str, Any]) -> None:
        """Take from the model what classes are told by."""
        self.labels = {tensor.name: tensor.labels for tensor in metadata.outputs}
        self.is_batched = config.get("max_batch_size", 0) > 0

    def fulfil(self, response: InferResponse) -> InferResponse:
        """The response as the client wants it; outputs that are in its regions are left without data.

        Raises:
            NaiadError: If an output has no classes, or does not fit into its place.
        """
        outputs = [self._fulfil_one(tensor) for tensor in response.outputs]
        return replace(response, outputs=outputs, layout=None)

    def _fulfil_one(self, tensor: OutputTensor) -> OutputTensor:
        count = self.classes.get(tensor.name, 0)
        if count:
            return best_classes(tensor, count, self.labels.get(tensor.name, ()), is_batched=self.is_batched)
        place = self.places.get(tensor.name)
        if place is None:
            return tensor
        place.write(tensor.name, tensor.data)
        return OutputTensor(tensor.name, tensor.datatype, tensor.shape, b"")


def best_classes(tensor: OutputTensor, count: int, labels: Sequence[str], *, is_batched: bool) -> OutputTensor:
    """The *count* greatest elements of each item of a batch as texts `<value>:<index>[:<label>]`, the greatest first.

    Raises:
        InvalidRequestError: If the elements are no numbers, or too many to be sorted.
    """
    if tensor.datatype not in _CLASSES_OF:
        raise InvalidRequestError(
            f"class result not available for output due to unsupported type '{tensor.datatype.name}'"
        )
    shape = tensor.shape
    items = shape[0] if is_batched and shape else 1
    length = prod(shape[1:] if is_batched else shape)
    if items * length > _MOST_ELEMENTS:
        raise InvalidRequestError(
            f"classification of output '{tensor.name}' is limited to {_MOST_ELEMENTS} elements; it has {items * length}"
        )
    import numpy as np  # here: see `protocol.numpy_types`

    from naiad.protocol.numpy_types import NUMPY_TYPES

    values = np.frombuffer(tensor.data, NUMPY_TYPES[tensor.datatype]).reshape(items, length)
    count = min(count, length)
    texts = [text for row in values for text in _best(row, count, labels)]
    data = b"".join([len(text).to_bytes(4, "little") + text for text in texts])
    return OutputTensor(tensor.name, Datatype.BYTES, (items, count) if is_batched else (count,), data)


def _best(row: np.ndarray[tuple[int], np.dtype[np.generic]], count: int, labels: Sequence[str]) -> list[bytes]:
    # From the end of a stable ascending order of the reversed row: descending, equal elements by index, NaN first.
    order = len(row) - 1 - row[::-1].argsort(kind="stable")[::-1][:count]
    texts = []
    for index in order.tolist():
        value = row[index].item()
        text = f"{value:.6f}:{index}" if isinstance(value, float) else f"{value}:{index}"
        texts.append((f"{text}:{labels[index]}" if index < len(labels) else text).encode())
    return texts
