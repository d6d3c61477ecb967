"""Requests and responses between this backend and its targets, the same for both protocols."""

from __future__ import annotations

import dataclasses
import math
from typing import Dict, List, Tuple, Union

Buffer = Union[bytes, bytearray, memoryview]
Parameter = Union[bool, int, str]

DATATYPES = (
    *("", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16"),
)  # names of datatypes in the protocol, at their number in a model's configuration
CODES = {name: code for code, name in enumerate(DATATYPES) if name}
ITEM_SIZES = dict(zip(DATATYPES, (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2)))  # bytes of one element; 0 for BYTES


@dataclasses.dataclass
class WireTensor:
    """A tensor as raw bytes: little-endian in C order; BYTES as length and bytes of each element."""

    name: str
    datatype: str
    shape: Tuple[int, ...]
    parts: List[Buffer]  # the bytes, in one or more buffers

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)

    def copy(self) -> WireTensor:
        return WireTensor(self.name, self.datatype, self.shape, [b"".join(self.parts)])

    def check(self) -> None:
        """Raise ValueError unless the bytes are as many as datatype and shape say."""
        if self.datatype not in CODES or any(size < 0 for size in self.shape):
            raise ValueError(f"output '{self.name}' has datatype '{self.datatype}' and shape {list(self.shape)}")
        item = ITEM_SIZES[self.datatype]
        if item and math.prod(self.shape) * item != self.size:
            raise ValueError(
                f"output '{self.name}' with datatype {self.datatype} and shape {list(self.shape)} has {self.size} bytes"
            )


@dataclasses.dataclass
class WireRequest:
    """One call of a target."""

    request_id: str
    inputs: List[WireTensor]
    outputs: List[str]  # names of the requested outputs
    parameters: Dict[str, Parameter]  # those of sequences included
    headers: List[Tuple[str, str]]  # in lower case

    def copy(self) -> WireRequest:
        """A copy in separate memory."""
        return dataclasses.replace(self, inputs=[tensor.copy() for tensor in self.inputs])


@dataclasses.dataclass
class WireResponse:
    """One response of a target."""

    outputs: List[WireTensor]
    parameters: Dict[str, Parameter]


@dataclasses.dataclass(frozen=True)
class TensorDescription:
    """A tensor of a target's model."""

    name: str
    data_type: str  # as in a model's configuration, such as `TYPE_FP32`
    dims: Tuple[int, ...]  # without the dimension of the batch; -1 for any size
    is_optional: bool = False


@dataclasses.dataclass(frozen=True)
class Description:
    """The interface of a target's model."""

    max_batch_size: int
    inputs: Tuple[TensorDescription, ...]
    outputs: Tuple[TensorDescription, ...]
    is_decoupled: bool
