"""Requests over gRPC, with grpcio: one channel for all workers. Decoupled models are asked with a stream a request."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from naiad.core.errors import NaiadError, OptionError
from naiad.core.extras import install_command
from naiad.protocol.inference import InferRequest
from naiad_operations.bench.requests import BenchModel, model_of_config

_SERVICE = "/inference.GRPCInferenceService/"
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class GrpcEndpoint:
    """A channel to a server; made on a running event loop."""

    def __init__(self, address: str) -> None:
        try:
            import grpc.aio
        except ImportError:
            raise OptionError(f"cannot use --grpc: grpcio is not installed: `{install_command('remote')}`") from None
        self.address = address.rpartition("://")[2].rstrip("/")
        self.errors: Any = grpc.aio.AioRpcError
        self.channel: Any = grpc.aio.insecure_channel(self.address, options=_OPTIONS)

    async def model(self, name: str, version: str) -> BenchModel:
        from google.protobuf.json_format import MessageToDict

        from naiad.frontends.kserve_grpc import service_pb2

        call = self.channel.unary_unary(
            f"{_SERVICE}ModelConfig",
            request_serializer=service_pb2.ModelConfigRequest.SerializeToString,
            response_deserializer=service_pb2.ModelConfigResponse.FromString,
        )
        try:
            answer = await call(service_pb2.ModelConfigRequest(name=name, version=version))
        except self.errors as error:
            preface = f"cannot measure model '{name}': the server at {self.address} responded: "
            raise self.failure(error, preface) from None
        return model_of_config(MessageToDict(answer.config, preserving_proto_field_name=True), version)

    def failure(self, error: Any, preface: str = "") -> NaiadError:
        import grpc

        if error.code() is grpc.StatusCode.UNAVAILABLE and "onnect" in (error.details() or ""):
            return NaiadError(
                f"cannot reach a server at {self.address}: connection refused; start one with `naiad serve`, or name "
                "the address of its gRPC port with --url"
            )
        return NaiadError(f"{preface}{error.details() or error.code()}")

    async def close(self) -> None:
        await self.channel.close()


class GrpcTarget:
    """Sends one request again and again to a server."""

    def __init__(self, server: GrpcEndpoint, model: BenchModel, request: InferRequest, version: str) -> None:
        self._server = server
        self._messages = _messages(model, request, version)
        name = "ModelStreamInfer" if model.is_decoupled else "ModelInfer"
        # Bytes in, bytes out: parsing would be measured, too.
        self._call = server.channel.unary_unary(f"{_SERVICE}{name}")
        self._stream = server.channel.stream_stream(f"{_SERVICE}{name}")
        self._is_decoupled = model.is_decoupled

    async def open(self, workers: int) -> None:
        """All workers share the channel."""

    async def send(self, worker: int) -> int:
        """Send the request; for a decoupled model, return the time to its first response."""
        del worker
        try:
            if not self._is_decoupled:
                await self._call(next(self._messages))
                return 0
            return await self._send_on_stream(next(self._messages))
        except self._server.errors as error:
            raise self._server.failure(error) from None

    async def _send_on_stream(self, message: bytes) -> int:
        from naiad.frontends.kserve_grpc import service_pb2

        async def requests() -> AsyncIterator[bytes]:
            yield message

        started, first = time.monotonic_ns(), 0
        async for answer in self._stream(requests()):
            first = first or time.monotonic_ns() - started
            problem = service_pb2.ModelStreamInferResponse.FromString(answer).error_message
            if problem:
                raise NaiadError(problem)
        return first


def _messages(model: BenchModel, request: InferRequest, version: str) -> Iterator[bytes]:
    id_type = model.sequence_id_type
    if id_type is None:
        return itertools.repeat(_message(model, request, version, None))
    # Each request is a separate sequence.
    return (_message(model, request, version, id_type(number)) for number in itertools.count(1))


def _message(model: BenchModel, request: InferRequest, version: str, sequence_id: int | str | None) -> bytes:
    from naiad.frontends.kserve_grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name=model.metadata.name, model_version=version)
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.data))
    parameters = dict(request.parameters)
    if sequence_id is not None:
        parameters |= {"sequence_id": sequence_id, "sequence_start": True, "sequence_end": True}
    for name, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], field, value)
    return bytes(message.SerializeToString())
