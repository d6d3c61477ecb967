"""What a model is given of a batch of sequences: their requests with control tensors, and zeros where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from naiad.engine.pending import Pending
from naiad.protocol.datatypes import BYTE_SIZES
from naiad.protocol.inference import InferRequest, InputTensor
from naiad.scheduling.interface import Row

_EMPTY_STRING = bytes(4)


def row_requests(rows: Sequence[Row[Pending]]) -> list[InferRequest]:
    """The request of each row, as the model shall see it."""
    model = next(row.item.request for row in rows if row.item is not None)
    zeros = [_zeros(tensor) for tensor in model.inputs] if any(row.item is None for row in rows) else []
    return [_request(row, row.item.request) if row.item is not None else _nothing(row, model, zeros) for row in rows]


def _request(row: Row[Pending], request: InferRequest) -> InferRequest:
    if not row.controls and row.correlation_id == request.correlation_id and row.flags == request.flags:
        return request
    return InferRequest(
        request.model_name,
        request.model_version,
        [*request.inputs, *row.controls],
        request.request_id,
        request.requested_outputs,
        request.parameters,
        row.correlation_id,
        row.flags,
        request.priority,
        request.timeout_us,
    )


def _nothing(row: Row[Pending], model: InferRequest, zeros: Sequence[InputTensor]) -> InferRequest:
    return InferRequest(
        model.model_name,
        model.model_version,
        [*zeros, *row.controls],
        requested_outputs=model.requested_outputs,
        correlation_id=row.correlation_id,
        flags=row.flags,
    )


def _zeros(tensor: InputTensor) -> InputTensor:
    elements = prod(tensor.shape)
    width = BYTE_SIZES[tensor.datatype]
    data = bytes(elements * width) if width else _EMPTY_STRING * elements
    return InputTensor(tensor.name, tensor.datatype, tensor.shape, data)
