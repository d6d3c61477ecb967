"""Typed tensor contents (`InferTensorContents`) to the bytes that tensors have everywhere else."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from naiad.errors import InvalidRequestError
from naiad.frontends.kserve_grpc.service_pb2 import InferTensorContents
from naiad.protocol.datatypes import Datatype

_FIELDS: tuple[tuple[str, tuple[Datatype, ...]], ...] = (
    ("bool_contents", (Datatype.BOOL,)),
    ("int_contents", (Datatype.INT32, Datatype.INT8, Datatype.INT16)),
    ("int64_contents", (Datatype.INT64,)),
    ("uint_contents", (Datatype.UINT32, Datatype.UINT8, Datatype.UINT16)),
    ("uint64_contents", (Datatype.UINT64,)),
    ("fp32_contents", (Datatype.FP32,)),
    ("fp64_contents", (Datatype.FP64,)),
    ("bytes_contents", (Datatype.BYTES,)),
)
"""Fields in the reference's order of looking (it decides which error comes first), each with the datatypes it may
carry; the first is the one that errors name."""


def to_bytes(contents: InferTensorContents, datatype: Datatype, input_name: str, model_name: str) -> bytes:
    """The elements as little-endian bytes; none at all where every field is empty."""
    data = b""
    for field, datatypes in _FIELDS:
        elements = getattr(contents, field)
        if not elements:
            continue
        _check(data, datatype, datatypes, input_name, model_name)
        data = _serialize(elements, datatype)
    return data


def _check(data: bytes, datatype: Datatype, datatypes: Sequence[Datatype], input_name: str, model_name: str) -> None:
    where = f"unexpected explicit tensor data for input tensor '{input_name}' for model '{model_name}'"
    if data:
        raise InvalidRequestError(f"{where}, binary data was already supplied.")
    if datatype not in datatypes:
        expected = "<invalid>" if datatype is Datatype.INVALID else datatype.name
        raise InvalidRequestError(f"{where} of type '{datatypes[0].name}', expected datatype '{expected}'")


def _serialize(elements: Sequence[int] | Sequence[float] | Sequence[bytes], datatype: Datatype) -> bytes:
    if datatype is Datatype.BYTES:
        return _serialize_strings(elements)  # type: ignore[arg-type] # _check matched datatype and field
    import numpy as np  # here: see `protocol.numpy_types`

    target = datatype.numpy
    assert target is not None, f"{datatype.name} has no typed contents"
    # Small integers travel as 32-bit ones and lose their upper bytes, as in the reference.
    wide = np.dtype(f"<{target.kind}4") if target.kind in "iu" and target.itemsize < 4 else target  # noqa: PLR2004
    return np.fromiter(elements, wide, len(elements)).astype(target, copy=False).tobytes()


def _serialize_strings(elements: Iterable[bytes]) -> bytes:
    pieces: list[bytes] = []
    for element in elements:
        pieces += (struct.pack("<I", len(element)), element)
    return b"".join(pieces)
