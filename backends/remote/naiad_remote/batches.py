"""One call for the requests that the server has batched: their rows are joined, and those of the response split."""

from __future__ import annotations

import dataclasses
import math
from typing import Hashable, List, Sequence

from naiad_remote.wire import ITEM_SIZES, WireRequest, WireResponse, WireTensor


def layout_of(request: WireRequest) -> Hashable:
    """Equal for requests whose rows may be joined: they differ in rows and bytes alone."""
    return (
        tuple((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in request.inputs),
        tuple(request.outputs),
        tuple(request.parameters.items()),
        tuple(request.headers),
    )


def rows_of(request: WireRequest) -> int:
    """The rows of a request; 0 if its inputs differ in them, so that they cannot be joined to others."""
    rows = {tensor.shape[0] if tensor.shape else 0 for tensor in request.inputs}
    return rows.pop() if len(rows) == 1 else 0


def join(requests: Sequence[WireRequest]) -> WireRequest:
    """One request with the rows of all, which have the same layout."""
    if len(requests) == 1:
        return requests[0]
    first = requests[0]
    inputs = []
    for index, tensor in enumerate(first.inputs):
        same = [request.inputs[index] for request in requests]
        shape = (sum(each.shape[0] for each in same), *tensor.shape[1:])
        inputs.append(dataclasses.replace(tensor, shape=shape, parts=[part for each in same for part in each.parts]))
    return dataclasses.replace(first, inputs=inputs)


def split(response: WireResponse, rows: Sequence[int]) -> List[WireResponse]:
    """The response of each request, which had these rows; ValueError if an output has another number of rows."""
    if len(rows) == 1:
        return [response]
    parts: List[List[WireTensor]] = [[] for _ in rows]
    for tensor in response.outputs:
        total = sum(rows)
        if not tensor.shape or tensor.shape[0] != total:
            raise ValueError(f"output '{tensor.name}' has shape {list(tensor.shape)} for a batch of {total}")
        for part, piece in zip(parts, _split_tensor(tensor, rows)):
            part.append(piece)
    return [WireResponse(outputs, dict(response.parameters)) for outputs in parts]


def _split_tensor(tensor: WireTensor, rows: Sequence[int]) -> List[WireTensor]:
    data, item = memoryview(tensor.parts[0]), ITEM_SIZES[tensor.datatype]
    pieces = []
    position = 0
    for count in rows:
        start, elements = position, count * math.prod(tensor.shape[1:])
        position += elements * item
        for _ in range(0 if item else elements):
            position += 4 + int.from_bytes(data[position : position + 4], "little")
        pieces.append(dataclasses.replace(tensor, shape=(count, *tensor.shape[1:]), parts=[data[start:position]]))
    if position != len(data):
        raise ValueError(f"output '{tensor.name}' has {len(data)} bytes, of which its elements take {position}")
    return pieces
