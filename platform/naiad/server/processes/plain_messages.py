"""Requests and responses as values that can be pickled, for those that go to a branch or come from its guests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from naiad.core.errors import NaiadError
from naiad.protocol.datatypes import Datatype
from naiad.protocol.inference import InferRequest, InferResponse, OutputTensor, Parameter
from naiad.server.processes.messages import ErrorFields, error_fields, error_of

__all__ = ["PlainResponse", "plain_request", "plain_response", "response_of"]


class PlainResponse(NamedTuple):
    """A response."""

    model_name: str
    model_version: int
    request_id: str
    outputs: tuple[tuple[str, Datatype, tuple[int, ...], bytes], ...]
    parameters: Mapping[str, Parameter]
    error: ErrorFields | None


def plain_request(request: InferRequest) -> InferRequest:
    """A copy of *request*, which has nothing to do with GPU memory, with bytes of its own and without its trace."""
    inputs = [replace(tensor, data=bytes(tensor.data), strings=None) for tensor in request.inputs]
    return replace(request, inputs=inputs, layout_key=None, trace=None, place=None, device=None, reader=0)


def plain_response(response: InferResponse | None) -> PlainResponse | None:
    """A copy of *response* with bytes of its own; None for an end without one."""
    if response is None:
        return None
    return PlainResponse(
        response.model_name,
        response.model_version,
        response.request_id,
        tuple([(each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in response.outputs]),
        dict(response.parameters),
        None if response.error is None else error_fields(response.error),
    )


def response_of(plain: PlainResponse | None) -> InferResponse | None:
    """The response again."""
    if plain is None:
        return None
    error: NaiadError | None = None if plain.error is None else error_of(plain.error)
    outputs = [OutputTensor(*each) for each in plain.outputs]
    return InferResponse(plain.model_name, plain.model_version, plain.request_id, outputs, plain.parameters, error)
