"""Messages of all methods but inference: the engine's values to responses, requests to arguments. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from naiad.core.errors import InvalidRequestError
from naiad.frontends.kserve_grpc import service_pb2 as pb
from naiad.frontends.regions import Region
from naiad.protocol.metadata import (
    Duration,
    IndexEntry,
    ModelMetadata,
    ModelStatistics,
    ServerMetadata,
    TensorMetadata,
)

_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
_RESPONSE_DURATIONS = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def server_metadata(metadata: ServerMetadata) -> pb.ServerMetadataResponse:
    """Name, version and extensions."""
    return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)


def model_metadata(metadata: ModelMetadata) -> pb.ModelMetadataResponse:
    """Versions, inputs and outputs of a model."""
    return pb.ModelMetadataResponse(
        name=metadata.name,
        versions=metadata.versions,
        platform=metadata.platform,
        inputs=[_tensor(tensor) for tensor in metadata.inputs],
        outputs=[_tensor(tensor) for tensor in metadata.outputs],
    )


def _tensor(tensor: TensorMetadata) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)


def model_config(config: Mapping[str, Any]) -> pb.ModelConfigResponse:
    """A model's configuration, from its JSON form."""
    response = pb.ModelConfigResponse()
    json_format.ParseDict(dict(config), response.config)
    return response


def model_statistics(statistics: Sequence[ModelStatistics]) -> pb.ModelStatisticsResponse:
    """Statistics of any number of model versions."""
    return pb.ModelStatisticsResponse(model_stats=[_statistics(model) for model in statistics])


def _statistics(model: ModelStatistics) -> pb.ModelStatistics:
    message = pb.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.last_inference,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=pb.InferStatistics(**{name: _duration(getattr(model, name)) for name in _DURATIONS}),
    )
    for batch in model.batch_stats:
        message.batch_stats.add(
            batch_size=batch.batch_size,
            compute_input=_duration(batch.compute_input),
            compute_infer=_duration(batch.compute_infer),
            compute_output=_duration(batch.compute_output),
        )
    for memory in model.memory_usage:
        message.memory_usage.add(type=memory.type, id=memory.id, byte_size=memory.byte_size)
    for position, responses in model.responses:
        durations = {name: _duration(getattr(responses, name)) for name in _RESPONSE_DURATIONS}
        message.response_stats[str(position)].CopyFrom(pb.InferResponseStatistics(**durations))
    return message


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


def repository_index(entries: Sequence[IndexEntry]) -> pb.RepositoryIndexResponse:
    """Models with their states."""
    response = pb.RepositoryIndexResponse()
    for entry in entries:
        state = entry.state.value if entry.state is not None else ""
        response.models.add(name=entry.name, version=entry.version, state=state, reason=entry.reason)
    return response


def load_parameters(request: pb.RepositoryModelLoadRequest) -> dict[str, str | bytes]:
    """The parameters of a load: `config` as text, `file:<path>` as bytes."""
    parameters: dict[str, str | bytes] = {}
    for key, parameter in request.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if key == "config":
            expected = "string_param"
        elif key.startswith("file:"):
            expected = "bytes_param"
        else:
            raise InvalidRequestError(f"unrecognized load parameter '{key}'.")
        if kind != expected:
            raise InvalidRequestError(f"invalid value type for load parameter '{key}', expected {expected}.")
        parameters[key] = getattr(parameter, expected)
    return parameters


def unload_dependents(request: pb.RepositoryModelUnloadRequest) -> bool:
    """Whether the models that an ensemble depends on are unloaded with it. Other parameters are ignored."""
    if "unload_dependents" not in request.parameters:
        return False
    parameter = request.parameters["unload_dependents"]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidRequestError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
    return parameter.bool_param


def regions(found: Sequence[Region]) -> pb.SystemSharedMemoryStatusResponse:
    """Registered shared memory regions, by name."""
    response = pb.SystemSharedMemoryStatusResponse()
    for region in found:
        entry = response.regions[region.name]
        entry.name, entry.key, entry.offset, entry.byte_size = region.name, region.key, region.offset, region.byte_size
    return response
