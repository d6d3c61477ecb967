"""Messages that protobuf takes too long to parse on the event loop, read in an offload process.

Raw contents stay with the host where they are found without parsing, so that these are messages with typed tensors, or
with more fields than any model needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from naiad.core.errors import Code, NaiadError
from naiad.engine.facade import EngineFacade
from naiad.frontends.extensions import Extensions
from naiad.frontends.kserve_grpc.control_messages import load_parameters
from naiad.frontends.kserve_grpc.request_codec import InferMessage, LongHead, decode_request
from naiad.frontends.kserve_grpc.service_pb2 import ModelInferRequest, RepositoryModelLoadRequest
from naiad.frontends.offload.deferred import DeferredRegions, check_parameter_count, deferred_values, prepare, resolver
from naiad.frontends.offload.messages import long_buffer
from naiad.frontends.offload.pool import OffloadTask
from naiad.frontends.requested_outputs import RequestedOutputs
from naiad.frontends.tensor_limits import TensorLimits, limits_of
from naiad.protocol.inference import InferRequest


class LongMessage(NamedTuple):
    """A message that was read; see `request_codec.decode_request`."""

    request: InferRequest
    enable_empty_final: bool  # whether its stream ends with an empty final response
    requested: RequestedOutputs | None  # outputs in another form; None without any


def read_message(content: memoryview, raw_count: int | None, version: int, limits: TensorLimits) -> LongMessage:
    """Read a message, without the *raw_count* raw contents that the host has; runs in an offload process."""
    try:
        body = ModelInferRequest.FromString(bytes(content))
    except DecodeError:
        raise NaiadError("Unable to parse request", code=Code.INTERNAL) from None
    raw = body.raw_input_contents if raw_count is None else deferred_values(raw_count)
    request, enable_empty_final, requested = decode_request(InferMessage(body, raw), version, DeferredRegions(), limits)
    return LongMessage(prepare(request), enable_empty_final, requested)


def read_load(content: memoryview) -> tuple[str, str, dict[str, Any]]:
    """Repository, model and parameters of a load request; runs in an offload process. Files are long buffers."""
    try:
        message = RepositoryModelLoadRequest.FromString(bytes(content))
    except DecodeError:
        raise NaiadError("Unable to parse request", code=Code.INTERNAL) from None
    check_parameter_count(len(message.parameters))
    parameters = {
        key: value if isinstance(value, str) else long_buffer(value) for key, value in load_parameters(message).items()
    }
    return message.repository_name, message.model_name, parameters


def start_reading(
    head: LongHead,
    version: int,
    engine: EngineFacade,
    extensions: Extensions,
    on_done: Callable[[LongMessage], None],
    on_failed: Callable[[Exception], None],
) -> OffloadTask:
    """Read a message in an offload process."""
    limits = limits_of(engine.model_metadata(head.body.model_name, version))
    raw = head.raw
    return extensions.background.pool.start(
        read_message,
        head.content,
        (None if raw is None else len(raw), version, limits),
        resolver(extensions.regions, values=raw or ()),
        on_done,
        on_failed,
    )
