"""Builds the requests of a batch of sequences as the model sees them: with controls and states added.

A slot of the batch without a request gets a row of zeros, so that every other request stays in the slot of its
sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.engine.open_request import OpenRequest
from naiad.engine.scheduling.interface import Row
from naiad.protocol.datatypes import zeros
from naiad.protocol.inference import InferRequest, InputTensor


def row_requests(rows: Sequence[Row[OpenRequest]]) -> list[InferRequest]:
    """The request of each row, as the model sees it."""
    model, state = next((row.item.request, row.state) for row in rows if row.item is not None)
    zero_inputs: list[InputTensor] = []
    zero_state: list[InputTensor] = []
    if any(row.item is None for row in rows):
        zero_inputs = [_zeros(tensor) for tensor in model.inputs]
        zero_state = [_zeros(tensor) for tensor in state.inputs] if state is not None else []
    return [
        _request(row, row.item.request)
        if row.item is not None
        else _empty_row(row, model, [*zero_inputs, *row.controls, *zero_state])
        for row in rows
    ]


def _request(row: Row[OpenRequest], request: InferRequest) -> InferRequest:
    state = row.state.inputs if row.state is not None else ()
    if not row.controls and not state and row.correlation_id == request.correlation_id and row.flags == request.flags:
        return request
    return InferRequest(
        request.model_name,
        request.model_version,
        [*request.inputs, *row.controls, *state],
        request.request_id,
        request.requested_outputs,
        request.parameters,
        row.correlation_id,
        row.flags,
        request.priority,
        request.timeout_us,
        trace=request.trace,
        propagated=request.propagated,
        device=request.device,
    )


def _empty_row(row: Row[OpenRequest], model: InferRequest, inputs: Sequence[InputTensor]) -> InferRequest:
    return InferRequest(
        model.model_name,
        model.model_version,
        inputs,
        requested_outputs=model.requested_outputs,
        correlation_id=row.correlation_id,
        flags=row.flags,
    )


def _zeros(tensor: InputTensor) -> InputTensor:
    return InputTensor(tensor.name, tensor.datatype, tensor.shape, zeros(tensor.datatype, tensor.shape))
